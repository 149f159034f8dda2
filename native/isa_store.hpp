// native/isa_store.hpp: plain and streaming stores, and copies with them.
// Included by kernels_isa.cpp alone, which is compiled once for each instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace unisono::UNISONO_ISA {
namespace {

constexpr std::size_t stream_alignment =
    16;  // what malloc guarantees, so stores to user memory can stream

bool streamable(const void* to, StoreMode store) noexcept {
#if defined(__SSE2__)
    return store == StoreMode::streaming &&
           reinterpret_cast<std::uintptr_t>(to) % stream_alignment == 0;
#else
    (void)to, (void)store;
    return false;
#endif
}

/// Stores a block of N bytes, a multiple of 16; `stream` only if `streamable`.
template <std::size_t N>
inline void put(void* to, const void* block, bool stream) noexcept {
#if defined(__SSE2__)
    if (stream) {
        auto* out = static_cast<char*>(to);
        const auto* in = static_cast<const char*>(block);
        for (std::size_t i = 0; i < N; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
        return;
    }
#endif
    (void)stream;
    std::memcpy(to, block, N);
}

constexpr std::size_t copy_block = 256;

void copy(void* to, const void* from, std::size_t bytes, StoreMode store) {
    if (to == from || bytes == 0) return;  // an empty buffer may have no address
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    const bool stream = streamable(to, store);
    std::size_t i = 0;
    if (stream)
        for (; i + copy_block <= bytes; i += copy_block) put<copy_block>(out + i, in + i, true);
    else
        for (; i + copy_block <= bytes; i += copy_block) put<copy_block>(out + i, in + i, false);
    std::memcpy(out + i, in + i, bytes - i);
}

void copy_twice(void* to, StoreMode store, void* also, StoreMode also_store, const void* from,
                std::size_t bytes) {
    if (to == from || bytes == 0) return copy(also, from, bytes, also_store);
    if (also == from) return copy(to, from, bytes, store);
    auto* out = static_cast<char*>(to);
    auto* out_too = static_cast<char*>(also);
    const auto* in = static_cast<const char*>(from);
    const bool stream = streamable(to, store);
    const bool stream_too = streamable(also, also_store);
    std::size_t i = 0;
    for (; i + copy_block <= bytes; i += copy_block) {
        alignas(64) char block[copy_block];
        std::memcpy(block, in + i, copy_block);
        put<copy_block>(out + i, block, stream);
        put<copy_block>(out_too + i, block, stream_too);
    }
    std::memcpy(out + i, in + i, bytes - i);
    std::memcpy(out_too + i, in + i, bytes - i);
}

}  // namespace
}  // namespace unisono::UNISONO_ISA
