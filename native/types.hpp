// native/types.hpp: element types, operators and verbs, with the codes that Python uses too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace unisono {

/// Codes as in src/unisono/core/dtypes.py. Types from `moved` on are only copied, not reduced.
enum class DType : std::uint8_t {
    boolean,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    complex64,
    complex128,
    moved
};

enum class ReduceOp : std::uint8_t {
    sum,
    product,
    min,
    max,
    band,
    bor,
    bxor,
    avg,
    premul_sum,
    none
};

enum class Verb : std::uint8_t {
    nothing,
    broadcast,
    reduce,
    all_reduce,
    reduce_scatter,
    gather,
    all_gather,
    scatter,
    all_to_all,
    barrier,
    send,
    recv
};

const char* name(DType dtype) noexcept;
const char* name(ReduceOp op) noexcept;
const char* name(Verb verb) noexcept;

/// What went wrong, in the terms of src/unisono/errors.py.
enum class FailureKind : std::uint8_t {
    mismatch,     ///< ranks disagree about the call
    lost,         ///< a peer ended or left
    timeout,      ///< the deadline passed
    interrupted,  ///< Ctrl-C: Limits::interrupted returned true
    memory,       ///< the host does not have enough shared memory
    closed,       ///< the group is closed or broken
    system        ///< a system call failed, or the shared memory is damaged
};

/// The one exception of the native code. `ranks` are ranks of the group that was called.
class Failure : public std::exception {
public:
    Failure(FailureKind kind, std::string text, std::vector<int> ranks = {})
        : kind(kind), text(std::move(text)), ranks(std::move(ranks)) {}

    const char* what() const noexcept override { return text.c_str(); }

    FailureKind kind;
    std::string text;
    std::vector<int> ranks;
};

/// Printf into a string, for error messages: not fast.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// The failure of a rank that finds something in shared memory that no rank writes.
Failure damaged(const std::string& what);

/// "rank 2" or "ranks 0, 1, 3".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace unisono
