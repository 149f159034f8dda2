// native/call.hpp: one call: its arguments, and the descriptor that the other ranks see.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "types.hpp"

namespace unisono {

/// The source line of the user's program that makes a call. `id` is below log_call_sites, and the
/// same for the same text everywhere in a process; 0: not known.
struct CallSite {
    std::uint16_t id = 0;
    const char* text = nullptr;  ///< "train.py:88"; lives as long as the process
};

/// The arguments of one call on this rank. Counts are in elements.
struct CallArguments {
    Verb verb = Verb::nothing;
    DType dtype = DType::moved;
    std::uint8_t dtype_code = 0;   ///< the exact code, also for types that are only copied
    std::uint32_t item_bytes = 1;  ///< bytes of an element
    ReduceOp op = ReduceOp::none;
    double factor = 1;
    std::int32_t root = -1;
    bool backward = false;  ///< placed by a compiler in the backward pass of a graph
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    std::uint64_t count = 0;  ///< of the smaller buffer: what one rank contributes or receives
    /// If counts differ by rank: what this rank sends to and receives from each rank. Else empty.
    std::vector<std::uint64_t> sends, receives;
    /// Not 0: the memory of the call is on a GPU. The hosts then compare the call and tell each
    /// other so many bytes: this rank's are at `source`, and those of all ranks go to `target`.
    std::uint32_t told_bytes = 0;
    CallSite call_site;

    bool on_gpu() const noexcept { return told_bytes != 0; }
};

/// The descriptor of a call in shared memory. Words are atomic because error messages read them at
/// any time; they are ordered by the turn counter.
struct PackedCall {
    std::atomic<std::uint64_t> words[4];

    /// Writes the descriptor and returns the fingerprint of what must be the same on all ranks.
    std::uint64_t write(const CallArguments& arguments, std::uint32_t number) noexcept;
};

/// What all ranks may know about a call; compared for the consistency check.
struct CallDescriptor {
    CallDescriptor() = default;
    explicit CallDescriptor(const PackedCall& packed) noexcept;

    std::uint64_t count = 0;
    double factor = 1;
    std::int32_t root = -1;
    std::uint32_t number = 0;
    Verb verb = Verb::nothing;
    std::uint8_t dtype = 0;
    ReduceOp op = ReduceOp::none;
    bool uneven = false;
    bool backward = false;
    bool on_gpu = false;

    bool is_message() const noexcept { return verb == Verb::send || verb == Verb::recv; }

    /// Whether everything but the counts is the same.
    bool same_kind(const CallDescriptor& other) const noexcept;

    /// Whether counts of this verb may differ between ranks.
    bool has_counts() const noexcept;

    /// For example "all_reduce float32 x 1024 sum".
    std::string text() const;
};

}  // namespace unisono
