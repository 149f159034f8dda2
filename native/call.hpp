// native/call.hpp: one call, as a rank makes it and as the others see it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "types.hpp"

namespace unisono {

/// A line of the caller's source. `id` is below log_call_sites, the same for the same text in all
/// of a process; 0: not known.
struct CallSite {
    std::uint16_t id = 0;
    const char* text = nullptr;  ///< "train.py:88"; lives as long as the process
};

/// One call, as a rank makes it. Counts are in elements.
struct CallArguments {
    Verb verb = Verb::nothing;
    DType dtype = DType::moved;
    std::uint8_t dtype_code = 0;   ///< the exact code, where several types are only moved
    std::uint32_t item_bytes = 1;  ///< bytes of an element
    ReduceOp op = ReduceOp::none;
    double factor = 1;
    std::int32_t root = -1;
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    std::uint64_t count = 0;  ///< of the smaller buffer: what one rank gives or gets
    /// For counts that differ by rank: what this rank sends to and receives from each. Else empty.
    std::vector<std::uint64_t> sends, receives;
    CallSite call_site;
};

/// A arguments as others see it. Words are atomic because error messages read them at any time;
/// they are ordered by the turn counter.
struct PackedCall {
    std::atomic<std::uint64_t> words[4];

    /// Fills the card in and returns the fingerprint of what must be the same on all ranks.
    std::uint64_t write(const CallArguments& arguments, std::uint32_t number) noexcept;
};

/// The fields of a card, unpacked.
struct CallDescriptor {
    CallDescriptor() = default;
    explicit CallDescriptor(const PackedCall& card) noexcept;

    std::uint64_t count = 0;
    double factor = 1;
    std::int32_t root = -1;
    std::uint32_t number = 0;
    Verb verb = Verb::nothing;
    std::uint8_t dtype = 0;
    ReduceOp op = ReduceOp::none;
    bool uneven = false;

    bool is_message() const noexcept { return verb == Verb::send || verb == Verb::recv; }

    /// Whether all agrees but the counts.
    bool same_kind(const CallDescriptor& other) const noexcept;

    /// Whether counts of this verb may differ by rank.
    bool has_counts() const noexcept;

    /// For example "all_reduce float32 x 1024 sum".
    std::string text() const;
};

}  // namespace unisono
