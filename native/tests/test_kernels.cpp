// native/tests/test_kernels.cpp: every kernel of every instruction set against a scalar reference.
//
// The reference is written from the definitions, one element at a time, and shares no code with the
// kernels: conversions go through exact double arithmetic.
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "check.hpp"
#include "kernels.hpp"

using namespace unisono;
using unisono::test::Numbers;

namespace {

double from_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
    if (exponent == 0) return sign * std::ldexp(fraction, -24);
    return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double from_bfloat(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

/// Rounds to the nearest number with `fraction` bits and smallest exponent `lowest`; ties to even.
double round_to(double value, int fraction, int lowest, double largest) {
    if (std::isnan(value) || std::isinf(value) || value == 0) return value;
    int exponent;
    std::frexp(value, &exponent);
    const int unit = std::max(exponent - 1, lowest) - fraction;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
    return std::abs(rounded) > largest ? std::copysign(HUGE_VAL, value) : rounded;
}

double round_half(double value) { return round_to(value, 10, -14, 65504); }
double round_bfloat(double value) { return round_to(value, 7, -126, std::ldexp(255, 120)); }

/// One element combined by definition; integers wrap, averages are exact, a NaN stays a NaN.
template <class T>
T combine(ReduceOp op, const std::vector<T>& x, double factor) {
    using U = std::conditional_t<std::is_integral_v<T>, unsigned __int128, T>;
    if (op == ReduceOp::avg) {
        if constexpr (std::is_integral_v<T>) {
            __int128 total = 0;
            for (const T value : x) total += value;
            return static_cast<T>(total / static_cast<int>(x.size()));
        }
    }
    T result = x[0];
    if (op == ReduceOp::premul_sum) result = static_cast<T>(result * static_cast<T>(factor));
    for (std::size_t i = 1; i < x.size(); ++i) {
        const T value = x[i];
        switch (op) {
            case ReduceOp::sum:
            case ReduceOp::avg:
                result = static_cast<T>(static_cast<U>(result) + static_cast<U>(value));
                break;
            case ReduceOp::product:
                result = static_cast<T>(static_cast<U>(result) * static_cast<U>(value));
                break;
            case ReduceOp::premul_sum: {
                const T scaled = static_cast<T>(value * static_cast<T>(factor));
                result = static_cast<T>(result + scaled);
                break;
            }
            case ReduceOp::min:
                if (result == result && (value != value || value < result)) result = value;
                break;
            case ReduceOp::max:
                if (result == result && (value != value || value > result)) result = value;
                break;
            default:
                if constexpr (std::is_integral_v<T>) {
                    if (op == ReduceOp::band) result = static_cast<T>(result & value);
                    if (op == ReduceOp::bor) result = static_cast<T>(result | value);
                    if (op == ReduceOp::bxor) result = static_cast<T>(result ^ value);
                }
        }
    }
    if constexpr (std::is_floating_point_v<T>)
        if (op == ReduceOp::avg) result /= static_cast<T>(x.size());
    return result;
}

bool same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

const std::vector<std::size_t> counts{0, 1, 7, 63, 64, 65, 257, 1009};

/// Runs one kernel in all variants: plain and streaming, with and without a second target, in
/// place.
template <class T, class Expect>
void try_kernel(const Kernels& k, DType dtype, ReduceOp op, double factor, int sources,
                std::vector<std::vector<T>> inputs, Expect expect) {
    for (const std::size_t count : counts) {
        for (int way = 0; way < 4; ++way) {
            auto copies = inputs;
            std::vector<const void*> from;
            for (auto& copy : copies) from.push_back(copy.data());
            const bool in_place = way == 3;
            std::vector<T> apart(count + 8, T{}), second(count + 8, T{});
            T* to = in_place ? copies[static_cast<std::size_t>(sources) - 1].data() : apart.data();
            const StoreMode store = way == 1 ? StoreMode::streaming : StoreMode::plain;
            const bool done =
                k.reduce(dtype, op, factor, to, store, way == 2 ? second.data() : nullptr,
                         StoreMode::streaming, from.data(), sources, count);
            fence();
            CHECK(done);
            for (std::size_t i = 0; i < count; ++i) {
                CHECK(expect(i, to[i]));
                if (way == 2) CHECK(expect(i, second[i]));
            }
            if (!in_place)
                for (std::size_t i = count; i < count + 8; ++i)
                    CHECK(std::memcmp(&apart[i], &second[count], sizeof(T)) ==
                          0);  // and nothing past the end
        }
    }
}

template <class T>
std::vector<std::vector<T>> random_inputs(int sources, std::uint64_t seed) {
    Numbers numbers{seed};
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(sources),
                                       std::vector<T>(counts.back()));
    for (auto& input : inputs)
        for (std::size_t i = 0; i < input.size(); ++i) {
            const std::uint64_t raw = numbers.next();
            if constexpr (std::is_floating_point_v<T>) {
                input[i] =
                    static_cast<T>(static_cast<double>(static_cast<std::int64_t>(raw)) * 1e-17);
                if (i % 97 == 3) input[i] = std::numeric_limits<T>::quiet_NaN();
                if (i % 89 == 5) input[i] = std::numeric_limits<T>::infinity();
                if (i % 83 == 7) input[i] = std::numeric_limits<T>::denorm_min();
            } else {
                std::memcpy(&input[i], &raw, sizeof(T));
            }
        }
    return inputs;
}

template <class T>
void test_plain(const Kernels& k, DType dtype, const std::vector<ReduceOp>& ops) {
    for (const ReduceOp op : ops)
        for (const int sources : {1, 2, 3, 5}) {
            const auto inputs = random_inputs<T>(sources, 17 + static_cast<std::uint64_t>(sources));
            try_kernel<T>(k, dtype, op, 0.3, sources, inputs, [&](std::size_t i, T got) {
                std::vector<T> x;
                for (const auto& input : inputs) x.push_back(input[i]);
                const T wanted = combine(op, x, 0.3);
                if constexpr (std::is_floating_point_v<T>)
                    return same(got, wanted);
                else
                    return got == wanted;
            });
        }
}

/// 16-bit floats: combined in float, rounded once at the end.
void test_short_float(const Kernels& k, DType dtype, double (*widen)(std::uint16_t),
                      double (*narrow)(double)) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max,
                              ReduceOp::avg, ReduceOp::premul_sum})
        for (const int sources : {1, 2, 3, 5}) {
            const auto inputs = random_inputs<std::uint16_t>(sources, 5);
            try_kernel<std::uint16_t>(k, dtype, op, 0.3, sources, inputs,
                                      [&](std::size_t i, std::uint16_t got) {
                                          std::vector<float> x;
                                          for (const auto& input : inputs)
                                              x.push_back(static_cast<float>(widen(input[i])));
                                          return same(widen(got), narrow(combine(op, x, 0.3)));
                                      });
        }
    // Every value, widened and rounded back.
    std::vector<std::uint16_t> all(65536), out(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const void* from = all.data();
    CHECK(k.reduce(dtype, ReduceOp::sum, 1, out.data(), StoreMode::plain, nullptr, StoreMode::plain,
                   &from, 1, all.size()));
    for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(out[i] == all[i] || (std::isnan(widen(all[i])) && std::isnan(widen(out[i]))));
}

template <class R>
void test_complex(const Kernels& k, DType dtype) {
    using T = std::complex<R>;
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::product, ReduceOp::avg, ReduceOp::premul_sum})
        for (const int sources : {1, 2, 4}) {
            std::vector<std::vector<T>> inputs;
            const auto parts = random_inputs<R>(2 * sources, 3);
            for (int s = 0; s < sources; ++s) {
                std::vector<T> input(counts.back());
                for (std::size_t i = 0; i < input.size(); ++i)
                    input[i] = {parts[static_cast<std::size_t>(2 * s)][i],
                                parts[static_cast<std::size_t>(2 * s + 1)][i]};
                inputs.push_back(input);
            }
            try_kernel<T>(k, dtype, op, 0.3, sources, inputs, [&](std::size_t i, T got) {
                const auto product = [](T a, T b) {
                    return T(a.real() * b.real() - a.imag() * b.imag(),
                             a.real() * b.imag() + a.imag() * b.real());
                };
                const T scale(static_cast<R>(0.3), 0);
                const auto first = [&](T x) {
                    return op == ReduceOp::premul_sum ? product(x, scale) : x;
                };
                T wanted = first(inputs[0][i]);
                for (int s = 1; s < sources; ++s) {
                    const T x = first(inputs[static_cast<std::size_t>(s)][i]);
                    wanted = op == ReduceOp::product
                                 ? product(wanted, x)
                                 : T(wanted.real() + x.real(), wanted.imag() + x.imag());
                }
                if (op == ReduceOp::avg)
                    wanted = {wanted.real() / static_cast<R>(sources),
                              wanted.imag() / static_cast<R>(sources)};
                return same(got.real(), wanted.real()) && same(got.imag(), wanted.imag());
            });
        }
}

void test_copies(const Kernels& k) {
    std::vector<char> from(5000), to(5100), also(5100);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + i / 251);
    for (const std::size_t bytes : {0, 1, 255, 256, 257, 4096, 4999})
        for (const std::size_t shift : {0, 1, 16, 64})
            for (const StoreMode store :
                 {StoreMode::plain, StoreMode::streaming, StoreMode::whole}) {
                std::fill(to.begin(), to.end(), 'x');
                std::fill(also.begin(), also.end(), 'x');
                k.copy(to.data() + shift, from.data(), bytes, store);
                fence();
                CHECK(std::memcmp(to.data() + shift, from.data(), bytes) == 0);
                CHECK(to[shift + bytes] == 'x');
                std::fill(to.begin(), to.end(), 'x');
                k.copy_twice(to.data() + shift, store, also.data(), StoreMode::streaming,
                             from.data(), bytes);
                fence();
                CHECK(std::memcmp(to.data() + shift, from.data(), bytes) == 0);
                CHECK(std::memcmp(also.data(), from.data(), bytes) == 0);
                CHECK(to[shift + bytes] == 'x' && also[bytes] == 'x');
                std::fill(to.begin(), to.end(), 'x');
                std::fill(also.begin(), also.end(), 'x');
                k.copy_twice(also.data(), StoreMode::streaming, to.data() + shift, store,
                             from.data(), bytes);
                fence();
                CHECK(std::memcmp(to.data() + shift, from.data(), bytes) == 0);
                CHECK(std::memcmp(also.data(), from.data(), bytes) == 0);
                CHECK(to[shift + bytes] == 'x' && also[bytes] == 'x');
            }
}

void test_bool(const Kernels& k) {
    std::vector<std::uint8_t> a{0, 0, 1, 1}, b{0, 1, 0, 1}, out(4);
    const void* from[] = {a.data(), b.data()};
    const auto run = [&](ReduceOp op) {
        CHECK(k.reduce(DType::boolean, op, 1, out.data(), StoreMode::plain, nullptr,
                       StoreMode::plain, from, 2, 4));
        return out;
    };
    using Bits = std::vector<std::uint8_t>;
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::bor})
        CHECK(run(op) == (Bits{0, 1, 1, 1}));
    for (const ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::band})
        CHECK(run(op) == (Bits{0, 0, 0, 1}));
    CHECK(run(ReduceOp::bxor) == (Bits{0, 1, 1, 0}));
    CHECK(!k.reduce(DType::boolean, ReduceOp::avg, 1, out.data(), StoreMode::plain, nullptr,
                    StoreMode::plain, from, 2, 4));
    CHECK(!k.reduce(DType::moved, ReduceOp::sum, 1, out.data(), StoreMode::plain, nullptr,
                    StoreMode::plain, from, 2, 4));
    CHECK(!k.reduce(DType::float32, ReduceOp::band, 1, out.data(), StoreMode::plain, nullptr,
                    StoreMode::plain, from, 2, 1));
}

/// Sets every NaN of N-byte floats to one: processors make different ones.
template <class Bits>
void unify_nans(std::vector<char>& bytes, Bits infinity) {
    constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
        Bits bits;
        std::memcpy(&bits, &bytes[i], sizeof bits);
        if ((bits & static_cast<Bits>(~sign)) > infinity) bits = static_cast<Bits>(~Bits{0});
        std::memcpy(&bytes[i], &bits, sizeof bits);
    }
}

/// All reductions of the same random bits, as one number. Whatever the processor, it is this one:
/// a job may span several kinds, and its checkpoints move between them. Buffers begin `shift` bytes
/// behind an aligned address.
void test_same_bits_on_every_processor(const Kernels& k, std::size_t shift) {
    constexpr std::size_t count = 1009;
    constexpr int sources = 3;
    Numbers numbers{23};
    std::vector<std::vector<char>> inputs(sources, std::vector<char>(shift + 16 * count));
    const void* from[sources];
    for (int source = 0; source < sources; ++source) {
        char* input = inputs[static_cast<std::size_t>(source)].data() + shift;
        for (std::size_t i = 0; i < 2 * count; ++i) {
            const std::uint64_t word = numbers.next();
            std::memcpy(input + 8 * i, &word, sizeof word);
        }
        from[source] = input;
    }
    std::uint64_t digest = 0;
    int reductions = 0;
    for (int dtype = 0; dtype < static_cast<int>(DType::moved); ++dtype)
        for (int op = 0; op < static_cast<int>(ReduceOp::none); ++op) {
            const auto type = static_cast<DType>(dtype);
            std::vector<char> first(shift + 16 * count), second(shift + 16 * count);
            if (!k.reduce(type, static_cast<ReduceOp>(op), 0.3, first.data() + shift,
                          StoreMode::plain, second.data() + shift, StoreMode::plain, from, sources,
                          count))
                continue;
            CHECK(first == second);
            std::vector<char> out(first.begin() + static_cast<std::ptrdiff_t>(shift), first.end());
            if (type == DType::float16) unify_nans<std::uint16_t>(out, 0x7c00);
            if (type == DType::bfloat16) unify_nans<std::uint16_t>(out, 0x7f80);
            if (type == DType::float32 || type == DType::complex64)
                unify_nans<std::uint32_t>(out, 0x7f800000);
            if (type == DType::float64 || type == DType::complex128)
                unify_nans<std::uint64_t>(out, 0x7ff0000000000000);
            for (const char byte : out)
                digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
            ++reductions;
        }
    CHECK(reductions == 103);
    CHECK(digest == 0xa1f615ebbfd082d4);
}

}  // namespace

int main() {
    const std::vector<ReduceOp> whole{ReduceOp::sum,  ReduceOp::product, ReduceOp::min,
                                      ReduceOp::max,  ReduceOp::band,    ReduceOp::bor,
                                      ReduceOp::bxor, ReduceOp::avg};
    const std::vector<ReduceOp> real{ReduceOp::sum, ReduceOp::product, ReduceOp::min,
                                     ReduceOp::max, ReduceOp::avg,     ReduceOp::premul_sum};
    int tables = 0;
    const Kernels* const* all = all_kernels(tables);
    for (int i = 0; i < tables; ++i) {
        const Kernels& k = *all[i];
        test_copies(k);
        test_bool(k);
        for (const std::size_t shift : {0, 1}) test_same_bits_on_every_processor(k, shift);
        test_plain<std::int8_t>(k, DType::int8, whole);
        test_plain<std::int16_t>(k, DType::int16, whole);
        test_plain<std::int32_t>(k, DType::int32, whole);
        test_plain<std::int64_t>(k, DType::int64, whole);
        test_plain<std::uint8_t>(k, DType::uint8, whole);
        test_plain<std::uint16_t>(k, DType::uint16, whole);
        test_plain<std::uint32_t>(k, DType::uint32, whole);
        test_plain<std::uint64_t>(k, DType::uint64, whole);
        test_plain<float>(k, DType::float32, real);
        test_plain<double>(k, DType::float64, real);
        test_short_float(k, DType::float16, from_half, round_half);
        test_short_float(k, DType::bfloat16, from_bfloat, round_bfloat);
        test_complex<float>(k, DType::complex64);
        test_complex<double>(k, DType::complex128);
        std::printf("kernels %s: ok\n", k.isa);
    }
}
