// native/collectives_direct.cpp: the collectives that read the memory of their peers: one copy.
//
// Each begins after the first barrier of the call, which has carried where peers may read, and the
// consistency check, after which all know how much; it ends with the closing barrier. Peers are
// read in rotated order, so that not all ranks read the same one at the same time.
#include "collective_context.hpp"

namespace unisono {

namespace {

/// Whether two ranges of bytes have nothing in common.
bool apart(const std::byte* one, std::size_t bytes, const std::byte* two, std::size_t length) {
    return bytes == 0 || length == 0 || one + bytes <= two || two + length <= one;
}

/// Bytes of a buffer that has a part for each rank.
std::size_t total_bytes(const Context& c, const std::vector<std::uint64_t>& counts) {
    return part_offset(c, counts, c.n);
}

/// What all ranks have published in a step, kept beyond it.
struct Published {
    explicit Published(const Context& c) {
        for (int rank = 0; rank < c.n; ++rank)
            memory[static_cast<std::size_t>(rank)] = c.group.memory(rank);
    }

    std::uint64_t operator[](int rank) const { return memory[static_cast<std::size_t>(rank)]; }

    std::array<std::uint64_t, max_ranks> memory;
};

/// Reduces `bytes` of all ranks, in rank order: ours at `own`, those of a peer `offset(peer)`
/// behind what it has published. Pieces of the peers' memory are read into scratch memory that
/// stays in the cache of this core, and reduced from there.
template <class Offset>
void reduce_from_peers(Context& c, const Published& sources, const std::byte* own,
                       std::byte* target, StoreMode store, std::size_t bytes, Offset offset) {
    constexpr std::size_t cache = std::size_t{512} << 10;
    const auto peers = static_cast<std::size_t>(c.n - 1);
    const std::size_t piece =
        std::clamp(cache / peers / page * page, 4 * page, std::size_t{256} << 10);
    std::byte* scratch = c.group.scratch(piece * peers);
    for (std::size_t done = 0; done < bytes; done += piece) {
        const std::size_t length = std::min(piece, bytes - done);
        for (std::size_t i = 0; i < peers; ++i) {
            const int peer = (c.me + 1 + static_cast<int>(i)) % c.n;
            c.group.read_peer(peer, sources[peer] + offset(peer) + done, scratch + i * piece,
                              length);
            c.from[static_cast<std::size_t>(peer)] = scratch + i * piece;
        }
        c.from[static_cast<std::size_t>(c.me)] = own + done;
        reduce_into(c, target + done, store, nullptr, StoreMode::plain, c.from.data(), length);
    }
}

}  // namespace

void Context::first_barrier() {
    group.publish(arguments);
    // With one count for all, nobody reads parts that are short here.
    const bool long_enough = !arguments.sends.empty() || share() >= single_copy.from;
    group.publish_memory(may_read && long_enough ? readable_source() : 0);
    group.barrier();
    group.check_consistency(arguments);
}

std::uint64_t Context::readable_source() const {
    const std::byte* source = arguments.source;
    const std::byte* target = arguments.target;
    const bool collects = arguments.verb == Verb::all_gather || me == arguments.root;
    bool stays = false;
    switch (arguments.verb) {
        case Verb::broadcast:
            stays = target == source || apart(source, share(), target, share());
            break;
        case Verb::gather:
        case Verb::all_gather:
            // In place: the own part is copied to itself.
            stays = !collects || source == target + part_offset(*this, arguments.receives, me) ||
                    apart(source, share(), target, total_bytes(*this, arguments.receives));
            break;
        case Verb::scatter:
            stays = target == source + part_offset(*this, arguments.sends, me) ||
                    apart(source, total_bytes(*this, arguments.sends), target, share());
            break;
        case Verb::all_to_all:
            stays = apart(source, total_bytes(*this, arguments.sends), target,
                          total_bytes(*this, arguments.receives));
            break;
        case Verb::reduce_scatter:
            // Nobody else reads our own part.
            stays = target == source + part_offset(*this, arguments.sends, me) ||
                    apart(source, total_bytes(*this, arguments.sends), target, share());
            break;
        case Verb::reduce:
            stays =
                me != arguments.root || target == source || apart(source, share(), target, share());
            break;
        case Verb::all_reduce:
            stays = target == source || apart(source, share(), target, share());
            break;
        default:
            break;
    }
    // An empty buffer may have no address, and nobody reads there.
    return !stays ? 0 : source == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(source);
}

/// broadcast: the others read the root's source. Barriers: 2. Bytes read by each other rank: S.
void broadcast_directly(Context& c) {
    const std::size_t total = c.share();
    if (c.me == c.arguments.root)
        c.k.copy(c.arguments.target, c.arguments.source, total, c.result(total));
    else
        c.group.read_peer(c.arguments.root, c.group.memory(c.arguments.root), c.arguments.target,
                          total);
    c.group.closing_barrier();
}

/// all_gather and gather: read the part of every peer. Barriers: 2. Bytes read: (P-1)/P S.
void all_gather_directly(Context& c) {
    const std::vector<std::uint64_t>& receives = c.arguments.receives;
    if (c.arguments.verb == Verb::all_gather || c.me == c.arguments.root) {
        c.k.copy(c.arguments.target + part_offset(c, receives, c.me), c.arguments.source, c.share(),
                 c.result(even_total(c)));
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            c.group.read_peer(peer, c.group.memory(peer),
                              c.arguments.target + part_offset(c, receives, peer),
                              c.bytes(peer, c.me));
        }
    }
    c.group.closing_barrier();
}

/// scatter: each reads its part of the root's source. Barriers: 2. Bytes read: S/P.
void scatter_directly(Context& c) {
    if (c.me == c.arguments.root)
        c.k.copy(c.arguments.target, c.arguments.source + part_offset(c, c.arguments.sends, c.me),
                 c.share(), c.result(even_total(c)));
    else
        c.group.read_peer(c.arguments.root,
                          c.group.memory(c.arguments.root) + c.offset_at(c.arguments.root),
                          c.arguments.target, c.share());
    c.group.closing_barrier();
}

/// all_to_all: read the own part of every peer's source. Barriers: 2. Bytes read: (P-1)/P S.
void all_to_all_directly(Context& c) {
    c.k.copy(c.arguments.target + part_offset(c, c.arguments.receives, c.me),
             c.arguments.source + part_offset(c, c.arguments.sends, c.me), c.bytes(c.me, c.me),
             c.result(even_total(c)));
    for (int i = 1; i < c.n; ++i) {
        const int peer = (c.me + i) % c.n;
        c.group.read_peer(peer, c.group.memory(peer) + c.offset_at(peer),
                          c.arguments.target + part_offset(c, c.arguments.receives, peer),
                          c.bytes(peer, c.me));
    }
    c.group.closing_barrier();
}

/// reduce_scatter: read the own part of every peer's source, and reduce. Barriers: 2. Bytes read:
/// (P-1)/P S.
void reduce_scatter_directly(Context& c) {
    reduce_from_peers(c, Published(c), c.arguments.source + part_offset(c, c.arguments.sends, c.me),
                      c.arguments.target, c.result(even_total(c)), c.bytes(c.me, c.me),
                      [&](int peer) { return c.offset_at(peer); });
    c.group.closing_barrier();
}

/// all_reduce: rank r reduces slice r out of all sources into its own result; barrier, which
/// carries where the results are; read the other slices. In place a rank only writes its own slice
/// before that barrier, which no other rank reads. Barriers: 3. Bytes read: 2(P-1)/P S.
void all_reduce_directly(Context& c) {
    const std::size_t total = c.share();
    const Slice own(total, c.n, c.me);
    reduce_from_peers(c, Published(c), c.arguments.source + own.begin,
                      c.arguments.target + own.begin, c.result(total), own.length,
                      [&](int) { return own.begin; });
    c.group.begin_step();
    c.group.publish_memory(reinterpret_cast<std::uintptr_t>(c.arguments.target));
    c.group.barrier();
    for (int i = 1; i < c.n; ++i) {
        const int peer = (c.me + i) % c.n;
        const Slice theirs(total, c.n, peer);
        c.group.read_peer(peer, c.group.memory(peer) + theirs.begin,
                          c.arguments.target + theirs.begin, theirs.length);
    }
    c.group.closing_barrier();
}

/// reduce: each rank but the root reduces a slice of a block out of all sources into its slot;
/// barrier; the root copies slices out while the others reduce the next block, which takes about as
/// long. In place the root only writes a block that all have read. Barriers: 1 + 1 a block. Bytes
/// read by each other rank: P/(P-1) S, of P sources; by the root: S, from slots.
void reduce_directly(Context& c) {
    const bool root = c.me == c.arguments.root;
    const std::size_t total = c.share();
    const auto workers = static_cast<std::size_t>(c.n - 1);
    const std::size_t most = std::min(std::size_t{64} << 10, c.group.slot_bytes());
    const Published sources(c);
    if (!root) c.group.commit_slot(most);
    for (std::size_t done = 0; done < total; done += workers * most) {
        const std::size_t length = std::min(workers * most, total - done);
        const std::size_t each = round_up((length + workers - 1) / workers, line);
        /// Where the slice of a worker begins in this block.
        const auto begin = [&](int worker) {
            return std::min(length, each * static_cast<std::size_t>(worker));
        };
        c.group.begin_step();
        if (!root) {
            const int worker = c.me - (c.me > c.arguments.root ? 1 : 0);
            const std::size_t at = done + begin(worker);
            reduce_from_peers(c, sources, c.arguments.source + at, c.group.slot(c.me),
                              StoreMode::plain, begin(worker + 1) - begin(worker),
                              [&](int) { return at; });
        }
        if (done + length < total)
            c.group.barrier();
        else
            c.group.closing_barrier();  // what is left to read is in slots
        if (!root) continue;
        for (int worker = 0; worker < c.n - 1; ++worker)
            c.k.copy(c.arguments.target + done + begin(worker),
                     c.group.slot(worker + (worker >= c.arguments.root ? 1 : 0)),
                     begin(worker + 1) - begin(worker), c.result(total));
    }
}

}  // namespace unisono
