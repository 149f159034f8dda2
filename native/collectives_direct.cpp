// native/collectives_direct.cpp: the collectives that read the memory of their peers: one copy, or
// none where they reduce.
//
// Each begins after the first barrier of the call, which has carried where peers may read, and the
// consistency check, after which all know how much; it ends with the closing barrier. Peers are
// read in rotated order, so that not all ranks read the same one at the same time.
#include <unistd.h>

#include <optional>

#include "collective_context.hpp"
#include "heap.hpp"

namespace unisono {

namespace {

/// Bytes of a slice of all_reduce in memory that is mapped: most of a core's own cache.
constexpr std::size_t direct_chunk = std::size_t{512} << 10;

/// Whether two ranges of bytes have nothing in common.
bool apart(const std::byte* one, std::size_t bytes, const std::byte* two, std::size_t length) {
    return bytes == 0 || length == 0 || one + bytes <= two || two + length <= one;
}

/// Bytes of the cache that a core has for itself which pieces of peers' memory may take.
std::size_t scratch_bytes() {
    return std::clamp(near_cache_bytes() / 2, std::size_t{512} << 10, std::size_t{1} << 20);
}

/// Bytes of a slice of a block, for `total` bytes that `ranks` ranks reduce: long, because calls of
/// the kernel are dear, but short enough that some blocks follow each other, because what comes
/// after the reduction runs beside that of the next block.
std::size_t slice_bytes(const Context& c, std::size_t total, int ranks) {
    constexpr std::size_t blocks = 6;
    const std::size_t each = round_up(total / static_cast<std::size_t>(ranks) / blocks, page);
    return std::min(std::clamp(each, std::size_t{64} << 10, std::size_t{256} << 10),
                    c.group.slot_bytes());
}

/// Bytes of a buffer that has a part for each rank.
std::size_t total_bytes(const Context& c, const std::vector<std::uint64_t>& counts) {
    return part_offset(c, counts, c.n);
}

/// What all ranks have offered in a step, kept beyond it.
struct Offers {
    explicit Offers(const Context& c) : ranks(static_cast<std::size_t>(c.n)) {
        for (std::size_t rank = 0; rank < ranks; ++rank)
            of[rank] = c.group.memory(static_cast<int>(rank));
    }

    Offer operator[](int rank) const { return of[static_cast<std::size_t>(rank)]; }

    /// Whether all sources are in memory that we have mapped, or all results.
    bool all_in_file() const {
        return std::all_of(of.begin(), of.begin() + ranks,
                           [](Offer offer) { return offer.is_in_file(); });
    }
    bool all_results_in_file() const {
        return std::all_of(of.begin(), of.begin() + ranks,
                           [](Offer offer) { return offer.has_result_in_file(); });
    }

    std::size_t ranks;
    std::array<Offer, max_ranks> of;
};

/// Reduces `bytes` of all ranks, in rank order: ours at `own`, those of a peer `offset(peer)`
/// behind what it has offered; into `target`, and `also` unless it is null. Memory that we have
/// mapped is reduced where it is; pieces of other memory are read into scratch memory that stays in
/// the cache of this core, and reduced from there.
template <class Offset>
void reduce_from_peers(Context& c, const Offers& offers, const std::byte* own, std::byte* target,
                       StoreMode store, std::size_t bytes, Offset offset,
                       std::byte* also = nullptr) {
    int unmapped = 0;
    for (int peer = 0; peer < c.n; ++peer)
        if (peer != c.me && !offers[peer].is_in_file()) ++unmapped;
    const auto copies = static_cast<std::size_t>(unmapped);
    const std::size_t piece = copies == 0 ? bytes
                                          : std::clamp(scratch_bytes() / copies / page * page,
                                                       4 * page, std::size_t{256} << 10);
    std::byte* const scratch = copies == 0 ? nullptr : c.group.scratch(piece * copies);
    for (std::size_t done = 0; done < bytes; done += piece) {
        const std::size_t length = std::min(piece, bytes - done);
        std::byte* next = scratch;
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            const std::byte* part = c.group.peer_memory(offers[peer], offset(peer) + done, length);
            if (part == nullptr) {
                c.group.read_peer(peer, offers[peer], offset(peer) + done, next, length,
                                  StoreMode::plain);
                part = next;
                next += piece;
            }
            c.from[static_cast<std::size_t>(peer)] = part;
        }
        c.from[static_cast<std::size_t>(c.me)] = own + done;
        reduce_into(c, target + done, store, also == nullptr ? nullptr : also + done,
                    c.group.staging(), c.from.data(), length);
    }
}

/// Copies a part of a peer into the result, which has `total` bytes.
void read_part(Context& c, int peer, std::size_t offset, std::byte* target, std::size_t bytes,
               std::size_t total) {
    c.group.read_peer(peer, c.group.memory(peer), offset, target, bytes, c.copied(total));
}

}  // namespace

std::size_t near_cache_bytes() {
    static const std::size_t bytes = [] {
        const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);  // 0 where it is not known
        return cache <= 0 ? std::size_t{1} << 20 : static_cast<std::size_t>(cache);
    }();
    return bytes;
}

void Context::first_barrier() {
    group.publish(arguments);
    group.publish_memory(offer);
    group.barrier();
    group.check_consistency(arguments);
}

void Context::find_offer(std::size_t bytes) {
    const bool to_one = arguments.verb == Verb::broadcast || arguments.verb == Verb::scatter;
    if ((to_one && me != arguments.root) || !source_stays()) return;
    const bool has_parts = arguments.verb == Verb::scatter || arguments.verb == Verb::all_to_all ||
                           arguments.verb == Verb::reduce_scatter;
    const std::size_t length = has_parts ? total_bytes(*this, arguments.sends) : share();
    const bool asks_kernel = may_read && bytes >= single_copy.from &&
                             (!arguments.sends.empty() || bytes < single_copy.below);
    const Arena& arena = group.arena();
    // Nobody reads an empty source, which may have no address.
    const std::uint64_t offset = length == 0 ? 0 : Heap::find(arena, arguments.source, length);
    if (offset != Heap::nowhere)
        offer.word = Offer::in_file | offset;
    else if (may_read && (asks_kernel || !arguments.sends.empty()))
        offer.word = reinterpret_cast<std::uintptr_t>(arguments.source);
    if (offer.is_readable() && (asks_kernel || (offer.is_in_file() && bytes >= mapped_from)))
        offer.word |= Offer::slot_is_empty;
    if (arguments.verb == Verb::all_reduce && offer.is_in_file() &&
        Heap::find(arena, arguments.target, length) != Heap::nowhere)
        offer.word |= Offer::result_in_file;
}

Offer Context::result_offer() const {
    const std::uint64_t offset = Heap::find(group.arena(), arguments.target, share());
    return {offset != Heap::nowhere ? Offer::in_file | offset
                                    : reinterpret_cast<std::uintptr_t>(arguments.target)};
}

bool Context::source_stays() const {
    const std::byte* source = arguments.source;
    const std::byte* target = arguments.target;
    const bool collects = arguments.verb == Verb::all_gather || me == arguments.root;
    switch (arguments.verb) {
        case Verb::broadcast:
        case Verb::all_reduce:
            return target == source || apart(source, share(), target, share());
        case Verb::reduce:
            return me != arguments.root || target == source ||
                   apart(source, share(), target, share());
        case Verb::gather:
        case Verb::all_gather:
            // In place: the own part is copied to itself.
            return !collects || source == target + part_offset(*this, arguments.receives, me) ||
                   apart(source, share(), target, total_bytes(*this, arguments.receives));
        case Verb::scatter:
        case Verb::reduce_scatter:
            // Nobody else reads our own part.
            return target == source + part_offset(*this, arguments.sends, me) ||
                   apart(source, total_bytes(*this, arguments.sends), target, share());
        case Verb::all_to_all:
            return apart(source, total_bytes(*this, arguments.sends), target,
                         total_bytes(*this, arguments.receives));
        default:
            return false;
    }
}

/// broadcast: the others read the root's source. Barriers: 2. Bytes read by each other rank: S.
void broadcast_directly(Context& c) {
    const std::size_t total = c.share();
    if (c.me == c.arguments.root)
        c.k.copy(c.arguments.target, c.arguments.source, total, c.copied(total));
    else
        read_part(c, c.arguments.root, 0, c.arguments.target, total, total);
    c.group.closing_barrier();
}

/// all_gather and gather: read the part of every peer. Barriers: 2. Bytes read: (P-1)/P S.
void all_gather_directly(Context& c) {
    const std::vector<std::uint64_t>& receives = c.arguments.receives;
    if (c.arguments.verb == Verb::all_gather || c.me == c.arguments.root) {
        c.k.copy(c.arguments.target + part_offset(c, receives, c.me), c.arguments.source, c.share(),
                 c.copied(even_total(c)));
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            read_part(c, peer, 0, c.arguments.target + part_offset(c, receives, peer),
                      c.bytes(peer, c.me), even_total(c));
        }
    }
    c.group.closing_barrier();
}

/// scatter: each reads its part of the root's source. Barriers: 2. Bytes read: S/P.
void scatter_directly(Context& c) {
    if (c.me == c.arguments.root)
        c.k.copy(c.arguments.target, c.arguments.source + part_offset(c, c.arguments.sends, c.me),
                 c.share(), c.copied(even_total(c)));
    else
        read_part(c, c.arguments.root, c.offset_at(c.arguments.root), c.arguments.target, c.share(),
                  even_total(c));
    c.group.closing_barrier();
}

/// all_to_all: read the own part of every peer's source. Barriers: 2. Bytes read: (P-1)/P S.
void all_to_all_directly(Context& c) {
    c.k.copy(c.arguments.target + part_offset(c, c.arguments.receives, c.me),
             c.arguments.source + part_offset(c, c.arguments.sends, c.me), c.bytes(c.me, c.me),
             c.copied(even_total(c)));
    for (int i = 1; i < c.n; ++i) {
        const int peer = (c.me + i) % c.n;
        read_part(c, peer, c.offset_at(peer),
                  c.arguments.target + part_offset(c, c.arguments.receives, peer),
                  c.bytes(peer, c.me), even_total(c));
    }
    c.group.closing_barrier();
}

/// reduce_scatter: read the own part of every peer's source, and reduce. Barriers: 2. Bytes read:
/// (P-1)/P S.
void reduce_scatter_directly(Context& c) {
    reduce_from_peers(c, Offers(c), c.arguments.source + part_offset(c, c.arguments.sends, c.me),
                      c.arguments.target, c.result(even_total(c)), c.bytes(c.me, c.me),
                      [&](int peer) { return c.offset_at(peer); });
    c.group.closing_barrier();
}

namespace {

/// all_reduce, if sources can be read but results are not mapped: rank r reduces slice r of a block
/// out of all sources into its result and its slot; barrier; copy the other slices out. Barriers: 1
/// + 1 a block. Bytes staged: S/P; read from peers: 2(P-1)/P S.
void all_reduce_by_slots(Context& c, const Offers& sources) {
    const std::size_t total = c.share();
    const std::size_t slice = slice_bytes(c, total, c.n);
    const std::size_t block = slice * static_cast<std::size_t>(c.n);
    const StoreMode copied = total >= huge ? StoreMode::streaming : StoreMode::plain;
    c.group.commit_slot(slice);
    for (std::size_t done = 0; done < total; done += block) {
        const std::size_t length = std::min(block, total - done);
        const Slice own(length, c.n, c.me);
        const std::size_t at = done + own.begin;
        c.group.begin_step();
        reduce_from_peers(
            c, sources, c.arguments.source + at, c.arguments.target + at, c.result(total),
            own.length, [&](int) { return at; }, c.group.slot(c.me));
        if (done + length < total)
            c.group.barrier();
        else
            c.group.closing_barrier();  // what is left to read is in slots
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            const Slice theirs(length, c.n, peer);
            c.k.copy(c.arguments.target + done + theirs.begin, c.group.slot(peer), theirs.length,
                     copied);
        }
    }
    c.group.probe(total);
}

}  // namespace

/// all_reduce: rank r reduces slice r out of all sources into its own result; barrier, the first of
/// which carries where the results are; read the other slices. In place a rank only writes its own
/// slice before that barrier, which no other rank reads. Memory that is mapped goes in chunks, so
/// that slices are in the cache when they are read; the kernel takes all at once, because its calls
/// are dear. Barriers: 2 + 1 a chunk. Bytes read: 2(P-1)/P S.
void all_reduce_directly(Context& c) {
    const std::size_t total = c.share();
    const Offers sources(c);
    const bool mapped = sources.all_in_file();
    // Two ranks read all of each other's memory in two calls of the kernel; many would wait for
    // each other there, and slots are in a cache.
    if (mapped ? !sources.all_results_in_file() : c.n > 2) return all_reduce_by_slots(c, sources);
    const std::size_t chunk = mapped ? direct_chunk * static_cast<std::size_t>(c.n) : total;
    const StoreMode copied = total >= huge ? StoreMode::streaming : c.group.staging();
    std::optional<Offers> results;
    for (std::size_t done = 0; done < total; done += chunk) {
        const std::size_t length = std::min(chunk, total - done);
        const Slice own(length, c.n, c.me);
        const std::size_t begin = done + own.begin;
        reduce_from_peers(c, sources, c.arguments.source + begin, c.arguments.target + begin,
                          mapped ? c.group.staging() : c.result(total), own.length,
                          [&](int) { return begin; });
        if (done == 0) {
            c.group.begin_step();
            c.group.publish_memory(c.result_offer());
        }
        c.group.barrier();
        if (done == 0) results.emplace(c);
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            const Slice theirs(length, c.n, peer);
            c.group.read_peer(peer, (*results)[peer], done + theirs.begin,
                              c.arguments.target + done + theirs.begin, theirs.length, copied);
        }
    }
    c.group.closing_barrier();
    c.group.probe(total);
}

/// reduce: each rank but the root reduces a slice of a block out of all sources into its slot;
/// barrier; the root copies slices out while the others reduce the next block, which takes about as
/// long. In place the root only writes a block that all have read. Barriers: 1 + 1 a block. Bytes
/// read by each other rank: P/(P-1) S, of P sources; by the root: S, from slots. If the root has
/// the source of its only peer mapped, it reduces alone: 2 barriers, S read.
void reduce_directly(Context& c) {
    const bool root = c.me == c.arguments.root;
    const std::size_t total = c.share();
    const Offers sources(c);
    if (c.n == 2 && sources.all_in_file()) {
        if (root)
            reduce_from_peers(c, sources, c.arguments.source, c.arguments.target, c.result(total),
                              total, [](int) { return 0; });
        return c.group.closing_barrier();
    }
    const int workers = c.n - 1;
    const std::size_t slice = slice_bytes(c, total, workers);
    const std::size_t block = slice * static_cast<std::size_t>(workers);
    if (!root) c.group.commit_slot(slice);
    for (std::size_t done = 0; done < total; done += block) {
        const std::size_t length = std::min(block, total - done);
        c.group.begin_step();
        if (!root) {
            const Slice own(length, workers, c.me - (c.me > c.arguments.root ? 1 : 0));
            const std::size_t at = done + own.begin;
            reduce_from_peers(c, sources, c.arguments.source + at, c.group.slot(c.me),
                              StoreMode::plain, own.length, [&](int) { return at; });
        }
        if (done + length < total)
            c.group.barrier();
        else
            c.group.closing_barrier();  // what is left to read is in slots
        for (int worker = 0; root && worker < workers; ++worker) {
            const Slice theirs(length, workers, worker);
            c.k.copy(c.arguments.target + done + theirs.begin,
                     c.group.slot(worker + (worker >= c.arguments.root ? 1 : 0)), theirs.length,
                     c.result(total));
        }
    }
}

}  // namespace unisono
