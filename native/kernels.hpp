// native/kernels.hpp: copies and element-wise reductions, one table for each instruction set.
#pragma once

#include <cstddef>

#include "types.hpp"

namespace unisono {

/// How to store: into the cache as usual, or past it. Streaming stores do not have to fetch a line
/// back from the peer that has just read it, nor read memory that they are going to overwrite.
/// They are not ordered by a release store: call `fence` before publishing them. `whole`: copies
/// as the C library does, which knows the processor: lines of a long target are not read before
/// they are overwritten, and still stay in the cache. It only pays where the target is not in the
/// cache already; what is not a copy stores plainly then.
enum class StoreMode : unsigned char { plain, streaming, whole };

struct Kernels {
    const char* isa;

    /// Copies `bytes`; the ranges are equal or disjoint.
    void (*copy)(void* to, const void* from, std::size_t bytes, StoreMode store);

    /// Copies `bytes` to two targets with one read.
    void (*copy_twice)(void* to, StoreMode store, void* also, StoreMode also_store,
                       const void* from, std::size_t bytes);

    /// to[i] = from[0][i] (op) from[1][i] (op) ... in this order, and the same into `also` unless
    /// it is null. 16-bit floats are combined in float32 and rounded once. `to` may be one of the
    /// sources; other ranges are disjoint. `factor` is for premul_sum. False: there is no such
    /// reduction.
    bool (*reduce)(DType dtype, ReduceOp op, double factor, void* to, StoreMode store, void* also,
                   StoreMode also_store, const void* const* from, int sources, std::size_t count);
};

/// The best table for this processor, or the one that UNISONO_ISA names (baseline, avx2, avx512).
/// Throws Failure(system) if this processor cannot run that one. SharedJob calls this first, so
/// that later calls cannot throw.
const Kernels& kernels();

/// Every table that this processor can run, the best one last.
const Kernels* const* all_kernels(int& count);

/// Orders streaming stores before what follows.
void fence() noexcept;

}  // namespace unisono
