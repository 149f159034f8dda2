// native/call.hpp: one call, as a rank makes it and as the others see it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "types.hpp"

namespace unisono {

/// One call, as a rank makes it. Counts are in elements.
struct Request {
    Verb verb = Verb::nothing;
    DType dtype = DType::moved;
    std::uint8_t dtype_code = 0;  ///< the exact code, where several types are only moved
    std::uint32_t item = 1;       ///< bytes of an element
    ReduceOp op = ReduceOp::none;
    double factor = 1;
    std::int32_t root = -1;
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    std::uint64_t count = 0;  ///< of the smaller buffer: what one rank gives or gets
    /// For counts that differ by rank: what this rank sends to and receives from each. Else empty.
    std::vector<std::uint64_t> sends, receives;
};

/// A request as others see it. Words are atomic because error messages read them at any time; they
/// are ordered by the turn counter.
struct Card {
    std::atomic<std::uint64_t> words[4];

    /// Fills the card in and returns the fingerprint of what must be the same on all ranks.
    std::uint64_t write(const Request& request, std::uint32_t number) noexcept;
};

/// The fields of a card, unpacked.
struct Call {
    explicit Call(const Card& card) noexcept;

    std::uint64_t count;
    double factor;
    std::int32_t root;
    std::uint32_t number;
    Verb verb;
    std::uint8_t dtype;
    ReduceOp op;
    bool uneven;

    /// Whether all agrees but the counts.
    bool same_kind(const Call& other) const noexcept;

    /// Whether counts of this verb may differ by rank.
    bool has_counts() const noexcept;

    /// For example "all_reduce float32 x 1024 sum".
    std::string text() const;
};

}  // namespace unisono
