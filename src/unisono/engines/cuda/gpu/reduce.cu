// src/unisono/engines/cuda/gpu/reduce.cu: the reductions on a GPU, with the bits of the CPU's, and
// the moves. One rank launches them for all: they read and write the memory of every rank.
//
// kernels.py compiles one instantiation at a time by NVRTC, which has no headers; a function
// without a mark is one of the device. The operators are those of native/kernels_isa.cpp. Products
// and sums must stay apart (--fmad=false): a fused result has other bits.

using int8 = signed char;
using int16 = short;
using int32 = int;
using int64 = long long;
using int128 = __int128;
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using uint128 = unsigned __int128;

struct Half {
    uint16 bits;
};
struct BFloat {
    uint16 bits;
};
template <class R>
struct Complex {
    R real, imaginary;
};

// ---- element type to accumulator type and back -------------------------------------------------

union Float {
    uint32 bits;
    float value;
};

inline float from_bits(uint32 bits) { return Float{bits}.value; }

inline uint32 to_bits(float value) {
    Float both;
    both.value = value;
    return both.bits;
}

template <class To, class From>
inline To convert(From x) {
    return static_cast<To>(x);
}

template <>
inline float convert(BFloat x) {
    return from_bits(static_cast<uint32>(x.bits) << 16);
}

template <>
inline BFloat convert(float x) {
    const uint32 bits = to_bits(x);
    const uint32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // nearest, ties to even
    const uint32 quiet = (bits >> 16) | 0x40;                           // a NaN stays a NaN
    return {static_cast<uint16>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
}

// A GPU has these two as instructions; the other branch, for tests on a CPU, gives the same bits.
template <>
inline float convert(Half x) {
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
#else
    const uint32 sign = (x.bits & 0x8000u) << 16;
    const uint32 body = (x.bits & 0x7fffu) << 13;
    if (body >= 0x7c00u << 13) return from_bits(sign | 0x7f800000 | body);  // infinity or NaN
    // The exponent bias differs by 112; the multiplication also normalises subnormal numbers.
    return from_bits(sign | to_bits(from_bits(body) * from_bits((127u + 112u) << 23)));
#endif
}

template <>
inline Half convert(float x) {
#ifdef __CUDA_ARCH__
    Half result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#else
    const uint32 sign = (to_bits(x) >> 16) & 0x8000;
    const uint32 body = to_bits(x) & 0x7fffffff;
    uint32 half;
    if (body > 0x7f800000) {
        half = 0x7e00;  // NaN
    } else if (body >= 0x477ff000) {
        half = 0x7c00;  // rounds to infinity
    } else if (body < 0x38800000) {
        // Subnormal: adding 0.5 puts the half's last bit at the float's last bit, and rounds.
        half = to_bits(from_bits(body) + 0.5f) - to_bits(0.5f);
    } else {
        half = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    }
    return {static_cast<uint16>(sign | half)};
#endif
}

// ---- operators: combine(a, b) for the accumulator type A ---------------------------------------

// Signed sums and products wrap: they are computed unsigned, small types in 32 bits so that they
// are not promoted to signed int.
template <class A>
struct Wrapping {
    using type = A;
};
template <>
struct Wrapping<int8> {
    using type = uint32;
};
template <>
struct Wrapping<int16> {
    using type = uint32;
};
template <>
struct Wrapping<int32> {
    using type = uint32;
};
template <>
struct Wrapping<int64> {
    using type = uint64;
};
template <>
struct Wrapping<int128> {
    using type = uint128;
};
template <>
struct Wrapping<uint8> {
    using type = uint32;
};
template <>
struct Wrapping<uint16> {
    using type = uint32;
};

template <class A>
inline A add(A a, A b) {
    using W = typename Wrapping<A>::type;
    return static_cast<A>(static_cast<W>(a) + static_cast<W>(b));
}
template <class R>
inline Complex<R> add(Complex<R> a, Complex<R> b) {
    return {a.real + b.real, a.imaginary + b.imaginary};
}

template <class A>
inline A multiply(A a, A b) {
    using W = typename Wrapping<A>::type;
    return static_cast<A>(static_cast<W>(a) * static_cast<W>(b));
}
template <class R>
inline Complex<R> multiply(Complex<R> a, Complex<R> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
}

struct Sum {
    template <class A>
    static A combine(A a, A b) {
        return add(a, b);
    }
};
struct Product {
    template <class A>
    static A combine(A a, A b) {
        return multiply(a, b);
    }
};
// The result is NaN if an operand is, and the first NaN if there are several: b replaces a if a is
// a number and b is smaller (or larger), or a NaN. Integers are never NaN.
struct Min {
    template <class A>
    static A combine(A a, A b) {
        return !(b >= a) & (a == a) ? b : a;
    }
};
struct Max {
    template <class A>
    static A combine(A a, A b) {
        return !(b <= a) & (a == a) ? b : a;
    }
};
struct And {
    template <class A>
    static A combine(A a, A b) {
        return a & b;
    }
};
struct Or {
    template <class A>
    static A combine(A a, A b) {
        return a | b;
    }
};
struct Xor {
    template <class A>
    static A combine(A a, A b) {
        return a ^ b;
    }
};

// ---- what happens to each operand first, and to the result last --------------------------------

struct Keep {
    template <class A, class Unused>
    static A apply(A x, Unused) {
        return x;
    }
};
struct Scale {
    template <class A>
    static A apply(A x, double factor) {
        return x * static_cast<A>(factor);
    }
    template <class R>
    static Complex<R> apply(Complex<R> x, double factor) {
        // The factor is the complex number (factor, 0); multiplied out, so that signed zeros and
        // infinities are those of a complex product.
        return multiply(x, Complex<R>{static_cast<R>(factor), R{0}});
    }
};
struct Divide {
    template <class A>
    static A apply(A x, int by) {
        return x / static_cast<A>(by);
    }
    template <class R>
    static Complex<R> apply(Complex<R> x, int by) {
        return {x.real / static_cast<R>(by), x.imaginary / static_cast<R>(by)};
    }
};

// ---- the kernels -------------------------------------------------------------------------------

/// How a launch is a part of a step. A rank that gives a call up may use its memory again, so each
/// launch asks whether it may still write; the last one of a step says that all is done. All but
/// `verdict` and `arrived` are words in the memory of the host, see signals.py.
struct Permit {
    const volatile uint32* cancelled;
    volatile uint32* skipped;    // the first step that was not done because of that
    volatile uint32* begun;      // the step that is done now
    volatile uint64* verdict;    // a step, and in the last bit whether it is cancelled
    uint32* arrived;             // blocks of the last launch that have ended
    volatile uint32* done[64];   // what is set to the step at its end, by the last launch alone
    int dones;
    uint32 step;
};

/// One block asks for all, because the memory of the host is far and answers one question after the
/// other; the others wait for its verdict, in the memory of the GPU. It runs already: blocks begin
/// in their order. First it says that the step has begun, and whoever cancels looks for that
/// afterwards: so either we see that it is cancelled, or they see that we may be writing.
inline bool is_cancelled(const Permit& permit) {
    __shared__ bool cancelled;
    if (threadIdx.x == 0) {
        const uint64 step = static_cast<uint64>(permit.step) << 1;
        if (blockIdx.x == 0 && blockIdx.y == 0 && (*permit.verdict | 1) != (step | 1)) {
            *permit.begun = permit.step;
            __threadfence_system();
            const uint64 given_up = *permit.cancelled != 0;
            if (given_up && *permit.skipped == 0) *permit.skipped = permit.step;
            *permit.verdict = step | given_up;
        }
        uint64 verdict;
        do {
            verdict = *permit.verdict;
        } while ((verdict | 1) != (step | 1));
        cancelled = verdict & 1;
    }
    __syncthreads();
    return cancelled;
}

/// The end of a launch, for each block: the last one says that the step is done, when what all
/// blocks have written can be seen by everybody.
inline void finish(const Permit& permit) {
    if (permit.dones == 0) return;
    __syncthreads();
    if (threadIdx.x != blockDim.x - 1) return;
    __threadfence();
    const uint32 blocks = gridDim.x * gridDim.y;
    if (atomicAdd(permit.arrived, 1) != blocks - 1) return;
    *permit.arrived = 0;
    __threadfence_system();
    for (int i = 0; i < permit.dones; ++i) *permit.done[i] = permit.step;
}

/// Elements that one thread reads at once; W is a type of their size that is read in one piece.
template <class T, class W>
union Block {
    W whole;
    T element[sizeof(W) / sizeof(T)];
};

template <class W>
inline void store(void* to, W value) {
    *static_cast<W*>(to) = value;
}

// Written out, because the compiler divides it into the elements that it was made from.
template <>
inline void store(void* to, uint4 value) {
#ifdef __CUDA_ARCH__
    asm volatile(
        "{ .reg .u64 place; cvta.to.global.u64 place, %0;"
        " st.global.v4.u32 [place], {%1, %2, %3, %4}; }" ::"l"(to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
#else
    *static_cast<uint4*>(to) = value;
#endif
}

constexpr uint64 kBlock = sizeof(uint4);

inline uint64 number(const void* address) { return reinterpret_cast<uint64>(address); }

/// The operands in rank order, and where the result goes. They travel with the launch, so nothing
/// is copied before that.
struct Operands {
    const void* source[64];
    void* target[64];
    int sources, targets;
};

/// Combines the block at `index` of all sources, and only then stores it: a target may be a source.
template <class W, class T, class A, class Op, class First, class Last>
inline void reduce_block(const Operands& all, uint64 index, double factor) {
    constexpr int width = sizeof(W) / sizeof(T);
    constexpr int batch = 4;  // loads that are on their way at once
    A total[width];
#pragma unroll 1
    for (int done = 0; done < all.sources; done += batch) {
        Block<T, W> block[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            if (done + i >= all.sources) continue;
            const T* start = static_cast<const T*>(all.source[done + i]) + index;
            block[i].whole = *reinterpret_cast<const W*>(start);
        }
#pragma unroll
        for (int i = 0; i < batch; ++i) {
            if (done + i >= all.sources) continue;
            for (int j = 0; j < width; ++j) {
                const A operand = First::apply(convert<A>(block[i].element[j]), factor);
                total[j] = done + i == 0 ? operand : Op::combine(total[j], operand);
            }
        }
    }
    Block<T, W> result;
    for (int j = 0; j < width; ++j)
        result.element[j] = convert<T>(Last::apply(total[j], all.sources));
#pragma unroll 1
    for (int i = 0; i < all.targets; ++i) store(static_cast<T*>(all.target[i]) + index, result.whole);
}

/// target[t][i] = all source[s][i], combined in rank order; T: element type, A: accumulator type. A
/// target may be a source but must not overlap one otherwise. Elements are aligned to their parts.
template <class T, class A, class Op, class First, class Last>
inline void reduce_all(const Operands& all, uint64 count, double factor) {
    // Neighbouring threads take neighbouring blocks of 16 bytes, and all go on by the size of the
    // grid. A source is read once and each result stored once: (sources + targets) * count *
    // sizeof(T) bytes move, and nothing else, so that memory is the limit. Blocks lie at multiples
    // of 16 in all arrays: a few elements before the first block and after the last one are taken
    // one by one, and so are all if the arrays are not shifted alike.
    constexpr uint64 width = kBlock / sizeof(T);
    const uint64 first = number(all.target[0]);
    const uint64 before = -first % kBlock;  // bytes
    bool alike = before % sizeof(T) == 0;
    for (int i = 0; i < all.sources; ++i) alike &= (number(all.source[i]) - first) % kBlock == 0;
    for (int i = 1; i < all.targets; ++i) alike &= (number(all.target[i]) - first) % kBlock == 0;
    const uint64 head = alike && before / sizeof(T) < count ? before / sizeof(T) : 0;
    const uint64 blocks = alike ? (count - head) / width : 0;

    const uint64 thread = static_cast<uint64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64 threads = static_cast<uint64>(gridDim.x) * blockDim.x;
    for (uint64 block = thread; block < blocks; block += threads)
        reduce_block<uint4, T, A, Op, First, Last>(all, head + block * width, factor);
    for (uint64 rest = thread; rest < count - blocks * width; rest += threads)
        reduce_block<T, T, A, Op, First, Last>(all, rest < head ? rest : rest + blocks * width,
                                               factor);
}

template <class T, class A, class Op, class First, class Last>
__global__ void reduce(Operands all, uint64 count, double factor, Permit permit) {
    if (!is_cancelled(permit)) reduce_all<T, A, Op, First, Last>(all, count, factor);
    finish(permit);
}

/// Parts of memory that are copied; the second index of a block says which part it works on.
struct Moves {
    void* to[64];
    const void* from[64];
    uint64 count[64];  // elements
};

/// Copies each part; T: a type as large as an element and as its alignment. Parts do not overlap.
template <class T>
inline void move_all(const Moves& all) {
    // As in reduce: whole blocks of 16 bytes where both sides are shifted alike. 2 * count *
    // sizeof(T) bytes move for each part.
    constexpr uint64 width = kBlock / sizeof(T);
    T* const to = static_cast<T*>(all.to[blockIdx.y]);
    const T* const from = static_cast<const T*>(all.from[blockIdx.y]);
    const uint64 count = all.count[blockIdx.y];
    const uint64 before = -number(to) % kBlock / sizeof(T);
    const bool alike = (number(from) - number(to)) % kBlock == 0;
    const uint64 head = alike && before < count ? before : 0;
    const uint64 blocks = alike ? (count - head) / width : 0;

    const uint64 thread = static_cast<uint64>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64 threads = static_cast<uint64>(gridDim.x) * blockDim.x;
    uint4* const wide_to = reinterpret_cast<uint4*>(to + head);
    const uint4* const wide_from = reinterpret_cast<const uint4*>(from + head);
    for (uint64 block = thread; block < blocks; block += threads) wide_to[block] = wide_from[block];
    for (uint64 rest = thread; rest < count - blocks * width; rest += threads) {
        const uint64 index = rest < head ? rest : rest + blocks * width;
        to[index] = from[index];
    }
}

template <class T>
__global__ void move(Moves all, Permit permit) {
    if (!is_cancelled(permit)) move_all<T>(all);
    finish(permit);
}
