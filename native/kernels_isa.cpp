// native/kernels_isa.cpp: the reductions; compiled once for each instruction set into its own
// namespace.
//
// Every loop works on blocks that fit the vector registers: read the block from all sources,
// combine, store once. The compiler turns the fixed inner loops into vectors; streaming stores and
// half-precision conversions are the only intrinsics.
#include <cstdint>
#include <type_traits>

#include "isa_half.hpp"
#include "isa_store.hpp"
#include "kernels.hpp"

namespace unisono::UNISONO_ISA {
namespace {

// ---- operators: combine(a, b) for the accumulator type A ---------------------------------------

template <class R>
struct Complex {
    R real, imaginary;
};

// Signed sums and products wrap, as those of NumPy and torch do: they are computed unsigned, small
// types in 32 bits so that they are not promoted to signed int.
template <class A>
struct Unsigned {
    using type = std::make_unsigned_t<A>;
};
template <>
struct Unsigned<__int128> {
    using type = unsigned __int128;
};
template <>
struct Unsigned<unsigned __int128> {
    using type = unsigned __int128;
};

template <class A>
inline constexpr bool is_integer =
    std::is_integral_v<A> || std::is_same_v<A, __int128> || std::is_same_v<A, unsigned __int128>;

template <class A>
inline A add(A a, A b) noexcept {
    if constexpr (is_integer<A>) {
        using U = typename Unsigned<A>::type;
        return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
        return a + b;
    }
}
template <class R>
inline Complex<R> add(Complex<R> a, Complex<R> b) noexcept {
    return {a.real + b.real, a.imaginary + b.imaginary};
}

template <class A>
inline A multiply(A a, A b) noexcept {
    if constexpr (std::is_integral_v<A>) {
        using U = std::conditional_t<(sizeof(A) < 4), std::uint32_t, std::make_unsigned_t<A>>;
        return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    } else {
        return a * b;
    }
}

/// Hides a value from the optimiser: GCC 12 fuses the multiplication and addition of a complex
/// product even where contraction is off, and a fused result has other bits.
template <class R>
inline R rounded(R x) noexcept {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
    return x;
}

template <class R>
inline Complex<R> multiply(Complex<R> a, Complex<R> b) noexcept {
    return {rounded(a.real * b.real) - rounded(a.imaginary * b.imaginary),
            rounded(a.real * b.imaginary) + rounded(a.imaginary * b.real)};
}

struct Sum {
    template <class A>
    static A combine(A a, A b) noexcept {
        return add(a, b);
    }
};
struct Product {
    template <class A>
    static A combine(A a, A b) noexcept {
        return multiply(a, b);
    }
};
// The result is NaN if an operand is, and the first NaN if there are several: b replaces a if a is
// a number and b is smaller (or larger), or a NaN.
struct Min {
    template <class A>
    static A combine(A a, A b) noexcept {
        if constexpr (std::is_floating_point_v<A>)
            return !(b >= a) & (a == a) ? b : a;
        else
            return b < a ? b : a;
    }
};
struct Max {
    template <class A>
    static A combine(A a, A b) noexcept {
        if constexpr (std::is_floating_point_v<A>)
            return !(b <= a) & (a == a) ? b : a;
        else
            return b > a ? b : a;
    }
};
struct And {
    template <class A>
    static A combine(A a, A b) noexcept {
        return a & b;
    }
};
struct Or {
    template <class A>
    static A combine(A a, A b) noexcept {
        return a | b;
    }
};
struct Xor {
    template <class A>
    static A combine(A a, A b) noexcept {
        return a ^ b;
    }
};

// ---- what happens to each operand first, and to the result last --------------------------------

struct Keep {
    template <class A>
    A operator()(A x) const noexcept {
        return x;
    }
};
struct Scale {
    double factor;
    template <class A>
    A operator()(A x) const noexcept {
        return x * static_cast<A>(factor);
    }
    template <class R>
    Complex<R> operator()(Complex<R> x) const noexcept {
        // The factor is the complex number (factor, 0); multiplied out, so that signed zeros and
        // infinities are those of a complex product.
        return multiply(x, Complex<R>{static_cast<R>(factor), R{0}});
    }
};
struct Divide {
    int by;
    template <class A>
    A operator()(A x) const noexcept {
        return x / static_cast<A>(by);
    }
    template <class R>
    Complex<R> operator()(Complex<R> x) const noexcept {
        return {x.real / static_cast<R>(by), x.imaginary / static_cast<R>(by)};
    }
};

// ---- the loop ----------------------------------------------------------------------------------

struct Operands {
    void* to;
    StoreMode store;
    void* also;
    StoreMode also_store;
    const void* const* from;
    int sources;
    std::size_t count;
};

/// How many blocks ahead lines are fetched. What another core has written takes 100 ns and more to
/// come, and by itself the processor looks only a few blocks ahead. All together are 12 to 16 KiB,
/// which the first cache has room for.
std::size_t blocks_ahead(int sources) noexcept {
    return std::max<std::size_t>(4, 48 / static_cast<std::size_t>(sources));
}

/// Begins to bring a block of each source into the cache. Always inline: the compiler removes calls
/// of a function that does nothing else.
template <std::size_t N, class T>
[[gnu::always_inline]] inline void fetch(const Stored<T>* const* from, int sources,
                                         std::size_t begin) noexcept {
    for (int s = 0; s < sources; ++s)
        for (std::size_t i = 0; i < N; i += 64 / sizeof(T)) __builtin_prefetch(from[s] + begin + i);
}

/// T: element type, A: accumulator type. Reads each source once and stores each result once.
template <class T, class A, class Op, class First, class Last>
void loop(const Operands& operands, First first, Last last) noexcept {
    constexpr std::size_t block = sizeof(A) >= 16 ? 16 : 256 / sizeof(A);
    auto* to = static_cast<Stored<T>*>(operands.to);
    auto* also = static_cast<Stored<T>*>(operands.also);
    const auto* const* from = reinterpret_cast<const Stored<T>* const*>(operands.from);
    const bool stream = streamable(to, operands.store);
    const bool stream_too = also != nullptr && streamable(also, operands.also_store);
    bool down = false;
    for (int s = 0; s < operands.sources; ++s) down = down || seems_to_follow(to, from[s]);
    const auto one = [&](std::size_t i) {
        A total = first(static_cast<A>(widen_one(from[0][i].value)));
        for (int s = 1; s < operands.sources; ++s)
            total = Op::combine(total, first(static_cast<A>(widen_one(from[s][i].value))));
        const T out = narrow_one<T>(last(total));
        to[i].value = out;
        if (also != nullptr) also[i].value = out;
    };
    const std::size_t head =
        stream ? before_line(to, operands.count * sizeof(T)) / sizeof(T) : std::size_t{0};
    for (std::size_t i = 0; i < head; ++i) one(i);
    const std::size_t blocks = (operands.count - head) / block;
    const auto begin_of = [&](std::size_t done) {
        return head + (down ? blocks - 1 - done : done) * block;
    };
    const std::size_t ahead = std::min(blocks, blocks_ahead(operands.sources));
    for (std::size_t done = 0; done < ahead; ++done)
        fetch<block>(from, operands.sources, begin_of(done));
    for (std::size_t done = 0; done < blocks; ++done) {
        if (done + ahead < blocks) fetch<block>(from, operands.sources, begin_of(done + ahead));
        const std::size_t i = begin_of(done);
        alignas(64) A total[block];
        load<T, A, block>(total, from[0] + i);
        for (std::size_t j = 0; j < block; ++j) total[j] = first(total[j]);
        for (int s = 1; s < operands.sources; ++s) {
            alignas(64) A operand[block];
            load<T, A, block>(operand, from[s] + i);
            for (std::size_t j = 0; j < block; ++j)
                total[j] = Op::combine(total[j], first(operand[j]));
        }
        for (std::size_t j = 0; j < block; ++j) total[j] = last(total[j]);
        alignas(64) T out[block];
        unload<T, A, block>(out, total);
        put<block * sizeof(T)>(to + i, out, stream);
        if (also != nullptr) put<block * sizeof(T)>(also + i, out, stream_too);
    }
    for (std::size_t i = head + blocks * block; i < operands.count; ++i) one(i);
}

bool reduce_bool(ReduceOp op, const Operands& operands) {
    using T = std::uint8_t;
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::max:
        case ReduceOp::bor:
            return loop<T, T, Or>(operands, Keep{}, Keep{}), true;
        case ReduceOp::product:
        case ReduceOp::min:
        case ReduceOp::band:
            return loop<T, T, And>(operands, Keep{}, Keep{}), true;
        case ReduceOp::bxor:
            return loop<T, T, Xor>(operands, Keep{}, Keep{}), true;
        default:
            return false;
    }
}

template <class T>
bool reduce_integer(ReduceOp op, const Operands& operands) {
    // An average is exact: the sum is taken in a type that cannot overflow.
    using Small = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    using Large = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    using Wide = std::conditional_t<(sizeof(T) < 8), Small, Large>;
    switch (op) {
        case ReduceOp::sum:
            return loop<T, T, Sum>(operands, Keep{}, Keep{}), true;
        case ReduceOp::product:
            return loop<T, T, Product>(operands, Keep{}, Keep{}), true;
        case ReduceOp::min:
            return loop<T, T, Min>(operands, Keep{}, Keep{}), true;
        case ReduceOp::max:
            return loop<T, T, Max>(operands, Keep{}, Keep{}), true;
        case ReduceOp::band:
            return loop<T, T, And>(operands, Keep{}, Keep{}), true;
        case ReduceOp::bor:
            return loop<T, T, Or>(operands, Keep{}, Keep{}), true;
        case ReduceOp::bxor:
            return loop<T, T, Xor>(operands, Keep{}, Keep{}), true;
        case ReduceOp::avg:
            return loop<T, Wide, Sum>(operands, Keep{}, Divide{operands.sources}), true;
        default:
            return false;
    }
}

template <class T, class A>
bool reduce_float(ReduceOp op, double factor, const Operands& operands) {
    switch (op) {
        case ReduceOp::sum:
            return loop<T, A, Sum>(operands, Keep{}, Keep{}), true;
        case ReduceOp::product:
            return loop<T, A, Product>(operands, Keep{}, Keep{}), true;
        case ReduceOp::min:
            return loop<T, A, Min>(operands, Keep{}, Keep{}), true;
        case ReduceOp::max:
            return loop<T, A, Max>(operands, Keep{}, Keep{}), true;
        case ReduceOp::avg:
            return loop<T, A, Sum>(operands, Keep{}, Divide{operands.sources}), true;
        case ReduceOp::premul_sum:
            return loop<T, A, Sum>(operands, Scale{factor}, Keep{}), true;
        default:
            return false;
    }
}

template <class R>
bool reduce_complex(ReduceOp op, double factor, const Operands& operands) {
    using T = Complex<R>;
    switch (op) {
        case ReduceOp::sum:
            return loop<T, T, Sum>(operands, Keep{}, Keep{}), true;
        case ReduceOp::product:
            return loop<T, T, Product>(operands, Keep{}, Keep{}), true;
        case ReduceOp::avg:
            return loop<T, T, Sum>(operands, Keep{}, Divide{operands.sources}), true;
        case ReduceOp::premul_sum:
            return loop<T, T, Sum>(operands, Scale{factor}, Keep{}), true;
        default:
            return false;
    }
}

bool reduce(DType dtype, ReduceOp op, double factor, void* to, StoreMode store, void* also,
            StoreMode also_store, const void* const* from, int sources, std::size_t count) {
    const Operands operands{to, store, also, also_store, from, sources, count};
    switch (dtype) {
        case DType::boolean:
            return reduce_bool(op, operands);
        case DType::int8:
            return reduce_integer<std::int8_t>(op, operands);
        case DType::int16:
            return reduce_integer<std::int16_t>(op, operands);
        case DType::int32:
            return reduce_integer<std::int32_t>(op, operands);
        case DType::int64:
            return reduce_integer<std::int64_t>(op, operands);
        case DType::uint8:
            return reduce_integer<std::uint8_t>(op, operands);
        case DType::uint16:
            return reduce_integer<std::uint16_t>(op, operands);
        case DType::uint32:
            return reduce_integer<std::uint32_t>(op, operands);
        case DType::uint64:
            return reduce_integer<std::uint64_t>(op, operands);
        case DType::float16:
            return reduce_float<Half, float>(op, factor, operands);
        case DType::bfloat16:
            return reduce_float<BFloat, float>(op, factor, operands);
        case DType::float32:
            return reduce_float<float, float>(op, factor, operands);
        case DType::float64:
            return reduce_float<double, double>(op, factor, operands);
        case DType::complex64:
            return reduce_complex<float>(op, factor, operands);
        case DType::complex128:
            return reduce_complex<double>(op, factor, operands);
        default:
            return false;
    }
}

}  // namespace

extern const Kernels table;
const Kernels table{UNISONO_ISA_NAME, copy, copy_twice, reduce};

}  // namespace unisono::UNISONO_ISA
