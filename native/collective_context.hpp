// native/collective_context.hpp: what the collectives know about their call, and which way it goes.
//
// P ranks, S bytes: the larger buffer of one rank. There are two ways for a part to travel:
//
//   staged   it is written into the own slot, from which peers read. Long buffers are sent in
//            chunks, one step of the group for each.
//   direct   peers read it where it is (collectives_direct.cpp): one copy.
//
// All ranks must go the same way. Sizes decide, and where the parts are: in memory that peers have
// mapped (heap.hpp) the direct way pays from `mapped_from` bytes on; elsewhere the table of the job
// says where it pays to ask the kernel. Before the consistency check a rank knows its own parts
// alone: if one of them is long enough for the direct way, it need not fill its slot. With its call
// it publishes where its parts are, and whether its slot is empty (Offer). After the check all know
// all sizes and all offers. If some part cannot be read, and some slot is empty, they begin again,
// staged.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

#include "collectives.hpp"
#include "kernels.hpp"

namespace unisono {

inline constexpr std::size_t line = 64;
inline constexpr std::size_t huge = std::size_t{8}
                                    << 20;  ///< larger than the caches that ranks share

/// Bytes of a part from which on the direct way pays in memory that peers have mapped: one copy
/// less is worth one more barrier, which costs more with more ranks.
constexpr std::size_t mapped_from_bytes(Verb verb, int ranks) {
    // Each rank writes all of its result, which its peers have just read: then a line has to be
    // taken from them first, and slots are as good. Two ranks never gain.
    if (verb == Verb::all_reduce) return ranks == 2 ? ~std::size_t{0} : std::size_t{2} << 20;
    return std::size_t{ranks <= 4 ? 16u : 32u} << 10;
}

/// Bytes of the cache that a core has for itself; 1 MiB where it is not known.
std::size_t near_cache_bytes();

/// How the parts of a call travel.
enum class Way : unsigned char { staged, staged_again, direct };

/// Everything that a collective needs to know about its call.
struct Context {
    Context(Group& group, const CallArguments& arguments)
        : group(group),
          arguments(arguments),
          k(kernels()),
          me(group.rank()),
          n(group.size()),
          may_read(group.reads_peers()),
          single_copy(group.single_copy_range(arguments.verb)),
          mapped_from(mapped_from_bytes(arguments.verb, n)) {}

    Group& group;
    const CallArguments& arguments;
    const Kernels& k;
    int me;
    int n;
    bool may_read;                ///< whether all members knew before this call that they can
    SingleCopyRange single_copy;  ///< sizes of parts that take the direct way by the kernel
    std::size_t mapped_from;      ///< and in memory that is mapped

    /// Bytes of this rank's own share.
    std::size_t share() const { return arguments.count * arguments.item_bytes; }
    std::size_t bytes(int from, int to) const {
        return group.sends(from, to) * arguments.item_bytes;
    }

    /// Bytes in front of the part for us in the source of a rank that sends a part to each.
    std::size_t offset_at(int from) const {
        if (!group.uneven()) return static_cast<std::size_t>(me) * share();
        std::size_t elements = 0;
        for (int to = 0; to < me; ++to) elements += group.sends(from, to);
        return elements * arguments.item_bytes;
    }

    /// Bytes of the largest part that we send or receive, as far as we know it ourselves.
    std::size_t own_largest() const {
        std::uint64_t largest = arguments.count;
        for (const std::uint64_t count : arguments.sends) largest = std::max(largest, count);
        for (const std::uint64_t count : arguments.receives) largest = std::max(largest, count);
        return largest * arguments.item_bytes;
    }

    /// Before the first barrier: finds out what this rank offers to its peers. That is nothing for
    /// short parts; if counts differ by rank, the parts of others may be longer.
    void make_offer() {
        const std::size_t bytes = own_largest();
        if (bytes >= std::min<std::size_t>(mapped_from, single_copy.from) ||
            !arguments.sends.empty())
            find_offer(bytes);
    }

    /// The same for our result, after the first barrier.
    Offer result_offer() const;

    /// Whether this rank need not fill its slot.
    bool leaves_slot_empty() const { return offer.is_empty_slot(); }

    /// After the first barrier: which way all ranks go. `reads(peer)`: whether any rank reads the
    /// memory of this one.
    template <class Reads>
    Way way(Reads reads) const {
        const std::size_t largest = group.largest_share() * arguments.item_bytes;
        if (largest < std::min<std::size_t>(mapped_from, single_copy.from)) return Way::staged;
        bool mapped = largest >= mapped_from;
        bool readable = may_read && single_copy.contains(largest);
        bool some_slot_is_empty = false;
        for (int peer = 0; peer < n; ++peer) {
            const Offer offered = group.memory(peer);
            some_slot_is_empty = some_slot_is_empty || offered.is_empty_slot();
            if (!reads(peer)) continue;
            mapped = mapped && offered.is_in_file();
            readable = readable && offered.is_readable();
        }
        return mapped || readable   ? Way::direct
               : some_slot_is_empty ? Way::staged_again
                                    : Way::staged;
    }

    /// Results that are too large for the cache are stored past it, unless they replace the source.
    StoreMode result(std::size_t total) const {
        return total >= huge && arguments.source != arguments.target ? StoreMode::streaming
                                                                     : StoreMode::plain;
    }

    /// How parts are copied into a result of `total` bytes that is not read in this call. One that
    /// is shorter than half of a core's own cache may still be there from an earlier call.
    StoreMode copied(std::size_t total) const {
        return total < near_cache_bytes() / 2 ? StoreMode::plain : StoreMode::whole;
    }

    /// The same for parts that come out of slots, in pieces, of which the C library does not know
    /// how many follow.
    StoreMode copied_from_slots(std::size_t total) const {
        return total >= huge ? StoreMode::streaming : copied(total);
    }

    /// Bytes of a chunk for a buffer of `total` bytes: small enough for the cache, large enough
    /// that the cost of barriers does not matter. With many ranks that is less, because a core
    /// needs its own slots and slices of all others in its cache.
    std::size_t chunk(std::size_t total) const {
        if (group.rotates() && total < huge) return Group::rotating_piece;
        const bool large = total >= huge && n == 2;
        return std::min((large ? std::size_t{1024} : std::size_t{256}) << 10, group.slot_bytes());
    }

    /// Bytes of a chunk if counts may differ by rank. It is needed before the consistency check, so
    /// it depends on nothing that only some ranks know.
    std::size_t plain_chunk() const {
        return group.rotates() ? Group::rotating_piece
                               : std::min(std::size_t{256} << 10, group.slot_bytes());
    }

    /// The same for each of n cells of a slot. With many ranks a slot holds more, because a barrier
    /// costs more and a cell would be short.
    std::size_t cell() const {
        const std::size_t chunk = std::size_t{n <= 4 ? 256u : 1024u} << 10;
        return std::max(
            line, std::min(chunk, group.slot_bytes()) / static_cast<std::size_t>(n) / line * line);
    }

    /// Bytes from one cell to the next in a slot whose rank sends parts of `share` bytes to all.
    /// Short parts are not spread over the slot: fewer lines change hands, and parts that are a
    /// power of two apart would displace each other in the cache.
    std::size_t stride(std::size_t share) const {
        return std::min(cell(), share < 1024 ? share : round_up(share, line));
    }

    /// The same for the slot of a rank, and for our own before the first barrier.
    std::size_t stride_of(int rank) const {
        return group.has_one_count(rank) ? stride(bytes(rank, me)) : cell();
    }
    std::size_t own_stride() const { return arguments.sends.empty() ? stride(share()) : cell(); }

    /// The first barrier of the call: the caller has filled its slot, or peers may read its memory.
    void first_barrier();

    /// Whether our source stays as it is while we write our target.
    bool source_stays() const;
    void find_offer(std::size_t bytes);

    /// The cell for us in the slot of another rank.
    const std::byte* cell_for_me(int rank) const {
        return group.slot(rank) + static_cast<std::size_t>(me) * stride_of(rank);
    }

    /// Sources for a reduction, in rank order: our own from private memory, the others' from slots.
    const void* const* sources(const std::byte* own, std::size_t slot_offset) {
        for (int rank = 0; rank < n; ++rank)
            from[static_cast<std::size_t>(rank)] =
                rank == me ? own : group.slot(rank) + slot_offset;
        return from.data();
    }

    Offer offer;  ///< see make_offer()
    std::array<const void*, max_ranks> from;
};

/// Slice `index` of `bytes` that are divided into `slices`: where it begins and how long it is.
/// Slices begin on cache lines, and none is longer than the first; the last ones may be empty.
struct Slice {
    Slice(std::size_t bytes, int slices, int index) {
        const auto n = static_cast<std::size_t>(slices);
        const std::size_t each = round_up((bytes + n - 1) / n, line);
        begin = std::min(bytes, each * static_cast<std::size_t>(index));
        length = std::min(bytes, begin + each) - begin;
    }
    std::size_t begin, length;
};

inline void reduce_into(Context& c, std::byte* to, StoreMode store, std::byte* also,
                        StoreMode also_store, const void* const* from, std::size_t bytes) {
    if (bytes == 0) return;
    c.k.reduce(c.arguments.dtype, c.arguments.op, c.arguments.factor, to, store, also, also_store,
               from, c.n, bytes / c.arguments.item_bytes);
}

/// Offset in bytes of part `part` of a buffer that is divided by `counts`, or into equal shares.
inline std::size_t part_offset(const Context& c, const std::vector<std::uint64_t>& counts,
                               int part) {
    if (counts.empty()) return static_cast<std::size_t>(part) * c.share();
    std::size_t elements = 0;
    for (int i = 0; i < part; ++i) elements += counts[static_cast<std::size_t>(i)];
    return elements * c.arguments.item_bytes;
}

inline std::size_t part_bytes(const Context& c, const std::vector<std::uint64_t>& counts,
                              int part) {
    return counts.empty() ? c.share()
                          : counts[static_cast<std::size_t>(part)] * c.arguments.item_bytes;
}

/// Bytes of the larger buffer, if shares are equal; good enough to choose how to store.
inline std::size_t even_total(const Context& c) {
    return c.share() * static_cast<std::size_t>(c.n);
}

// ---- the direct way: from after the first barrier to the end of the call -----------------------

void broadcast_directly(Context& c);
void all_gather_directly(Context& c);
void scatter_directly(Context& c);
void all_to_all_directly(Context& c);
void reduce_scatter_directly(Context& c);
void all_reduce_directly(Context& c);
void reduce_directly(Context& c);

}  // namespace unisono
