// native/isa_half.hpp: float16 and bfloat16 to float and back, rounded to nearest even.
// Included by kernels_isa.cpp alone, which is compiled once for each instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace unisono::UNISONO_ISA {
namespace {

struct Half {
    std::uint16_t bits;
};
struct BFloat {
    std::uint16_t bits;
};

inline float from_bits(std::uint32_t bits) noexcept {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline std::uint32_t to_bits(float value) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(BFloat x) noexcept { return from_bits(std::uint32_t{x.bits} << 16); }

inline BFloat narrow_bfloat(float value) noexcept {
    const std::uint32_t bits = to_bits(value);
    const std::uint32_t rounded =
        (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;   // nearest, ties to even
    const std::uint32_t quiet = (bits >> 16) | 0x40;  // a NaN stays a NaN
    return {static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
}

inline float widen(Half x) noexcept {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    __fp16 half;  // the compiler makes vectors of this, but not of the way back
    std::memcpy(&half, &x.bits, sizeof half);
    return half;
#else
    const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
    const std::uint32_t body = std::uint32_t{x.bits & 0x7fffu} << 13;
    if (body >= 0x7c00u << 13)  // infinity or NaN; hardware makes a NaN quiet, so do we
        return from_bits(sign | 0x7f800000 | body | (body > 0x7c00u << 13 ? 0x400000u : 0u));
    // The exponent bias differs by 112; the multiplication also normalises subnormal numbers.
    const float scaled = from_bits(body) * from_bits((254u - 15u) << 23);
    return from_bits(sign | to_bits(scaled));
#endif
}

inline Half narrow_half(float value) noexcept {
#if defined(__F16C__)
    return {static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT))};
#elif defined(__aarch64__)
    const auto half = static_cast<__fp16>(value);
    Half result;
    std::memcpy(&result.bits, &half, sizeof half);
    return result;
#else
    const std::uint32_t bits = to_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000;
    const std::uint32_t body = bits & 0x7fffffff;
    std::uint32_t half;
    if (body > 0x7f800000) {
        half = 0x7e00 | ((body >> 13) & 0x3ff);
    } else if (body >= 0x477ff000) {
        half = 0x7c00;  // rounds to infinity
    } else if (body < 0x38800000) {
        // Subnormal: adding 0.5 puts the half's last bit at the float's last bit, and rounds.
        half = to_bits(from_bits(body) + 0.5f) - to_bits(0.5f);
    } else {
        half = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    }
    return {static_cast<std::uint16_t>(sign | half)};
#endif
}

template <class A>
inline A convert_out(float value) noexcept;
template <>
inline Half convert_out<Half>(float value) noexcept {
    return narrow_half(value);
}
template <>
inline BFloat convert_out<BFloat>(float value) noexcept {
    return narrow_bfloat(value);
}

/// An element in memory, at any address: torch's tensors may begin at an odd one.
template <class T>
struct [[gnu::packed]] Stored {
    T value;
};

/// Reads N elements into the accumulator type.
template <class T, class A, std::size_t N>
inline void load(A* __restrict block, const Stored<T>* from) noexcept {
    if constexpr (std::is_same_v<T, Half>) {
#if defined(__F16C__)
        for (std::size_t i = 0; i < N; i += 8)
            _mm256_storeu_ps(
                block + i,
                _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#else
        for (std::size_t i = 0; i < N; ++i) block[i] = widen(from[i].value);
#endif
    } else if constexpr (std::is_same_v<T, BFloat>) {
        for (std::size_t i = 0; i < N; ++i) block[i] = widen(from[i].value);
    } else {
        for (std::size_t i = 0; i < N; ++i) block[i] = static_cast<A>(from[i].value);
    }
}

/// Rounds N elements to the element type.
template <class T, class A, std::size_t N>
inline void unload(T* __restrict out, const A* __restrict block) noexcept {
    if constexpr (std::is_same_v<T, Half>) {
#if defined(__F16C__)
        for (std::size_t i = 0; i < N; i += 8)
            _mm_storeu_si128(
                reinterpret_cast<__m128i*>(out + i),
                _mm256_cvtps_ph(_mm256_loadu_ps(block + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
        for (std::size_t i = 0; i < N; i += 4)
            vst1_u16(reinterpret_cast<std::uint16_t*>(out + i),
                     vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(block + i))));
#else
        for (std::size_t i = 0; i < N; ++i) out[i] = narrow_half(block[i]);
#endif
    } else if constexpr (std::is_same_v<T, BFloat>) {
        for (std::size_t i = 0; i < N; ++i) out[i] = narrow_bfloat(block[i]);
    } else {
        for (std::size_t i = 0; i < N; ++i) out[i] = static_cast<T>(block[i]);
    }
}

template <class T>
inline auto widen_one(T x) noexcept {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat>)
        return widen(x);
    else
        return x;
}

template <class T, class A>
inline T narrow_one(A x) noexcept {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat>)
        return convert_out<T>(x);
    else
        return static_cast<T>(x);
}

}  // namespace
}  // namespace unisono::UNISONO_ISA
