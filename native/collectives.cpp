// native/collectives.cpp: the collectives, staged. Above each: the idea, its barriers, its bytes.
#include "collective_context.hpp"

namespace unisono {

namespace {

/// Length of piece `index` of `total` bytes that are divided into pieces of `size`.
std::size_t piece(std::size_t total, std::size_t index, std::size_t size) {
    const std::size_t begin = index * size;
    return begin >= total ? 0 : std::min(size, total - begin);
}

/// Whose memory is read on the direct way, if it is that of all ranks.
constexpr auto everybody = [](int) { return true; };

// ---- all_reduce --------------------------------------------------------------------------------

void all_reduce_sliced(Context& c, bool begun);

/// One-shot: stage everything, then every rank reduces everything. Barriers: 1.
/// Bytes staged: S; read from peers: (P-1)S. Best for short buffers, where latency matters.
void all_reduce_once(Context& c) {
    const std::size_t bytes = c.share();
    c.group.begin_step();
    c.group.commit_slot(bytes);
    c.k.copy(c.group.slot(c.me), c.arguments.source, bytes, c.group.staging());
    c.first_barrier();
    if (c.way(everybody) == Way::staged_again) return all_reduce_sliced(c, true);
    reduce_into(c, c.arguments.target, StoreMode::plain, nullptr, StoreMode::plain,
                c.sources(c.arguments.source, 0), bytes);
    c.group.probe(bytes);
}

/// Two-shot: rank r reduces slice r. Stage what others reduce; barrier; reduce the own slice into
/// the result and the slot in one pass; barrier; copy the other slices out. Barriers: 2 a chunk.
/// Bytes staged: S; read from peers: 2(P-1)/P S. `begun`: the first barrier is behind us.
void all_reduce_sliced(Context& c, bool begun) {
    const std::size_t total = c.share();
    const std::size_t chunk = c.chunk(total);
    const StoreMode result = c.result(total);
    c.group.commit_slot(std::min(chunk, total));
    for (std::size_t done = 0; done < total; done += chunk) {
        const std::size_t length = std::min(chunk, total - done);
        const std::byte* source = c.arguments.source + done;
        std::byte* target = c.arguments.target + done;
        const Slice own(length, c.n, c.me);
        c.group.begin_step(chunk);
        std::byte* slot = c.group.slot(c.me);
        c.k.copy(slot, source, own.begin, c.group.staging());
        const std::size_t end = own.begin + own.length;
        c.k.copy(slot + end, source + end, length - end, c.group.staging());
        if (done == 0 && !begun) {
            c.first_barrier();
            if (c.way(everybody) == Way::staged_again) return all_reduce_sliced(c, true);
        } else {
            c.group.barrier();
        }
        reduce_into(c, target + own.begin, result, slot + own.begin, c.group.staging(),
                    c.sources(source + own.begin, own.begin), own.length);
        c.group.barrier();
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            const Slice theirs(length, c.n, peer);
            c.k.copy(target + theirs.begin, c.group.slot(peer) + theirs.begin, theirs.length,
                     result);
        }
    }
    c.group.probe(total);
}

void all_reduce(Context& c) {
    constexpr std::size_t limit = std::size_t{8} << 10;
    if (c.leaves_slot_empty()) {
        c.group.begin_step();
        c.first_barrier();
        if (c.way(everybody) == Way::direct) return all_reduce_directly(c);
        return all_reduce_sliced(c, true);
    }
    if (c.share() <= std::min(limit, c.group.slot_bytes()))
        all_reduce_once(c);
    else
        all_reduce_sliced(c, false);
}

// ---- reduce ------------------------------------------------------------------------------------

/// The root reduces directly from the slots. Barriers: 1 a chunk. Bytes staged by each other
/// rank: S; read by the root: (P-1)S. Best for short buffers and for two ranks. `begun`: the first
/// barrier is behind us.
void reduce_at_root(Context& c, bool begun) {
    const bool root = c.me == c.arguments.root;
    const std::size_t total = c.share();
    const std::size_t chunk = c.chunk(total);
    std::size_t done = 0;
    do {
        const std::size_t length = std::min(chunk, total - done);
        c.group.begin_step(chunk);
        if (!root) {
            c.group.commit_slot(length);
            c.k.copy(c.group.slot(c.me), c.arguments.source + done, length, c.group.staging());
        }
        if (done == 0 && !begun) {
            c.first_barrier();
            if (c.way(everybody) == Way::staged_again) return reduce_at_root(c, true);
        } else {
            c.group.barrier();
        }
        if (root)
            reduce_into(c, c.arguments.target + done, c.result(total), nullptr, StoreMode::plain,
                        c.sources(c.arguments.source + done, 0), length);
        done += chunk;
    } while (done < total);
    c.group.probe(total);
}

/// Like the two-shot all_reduce, but only the root copies slices out. Barriers: 2 a chunk. Bytes
/// staged: S; read by each rank: (P-1)/P S, by the root twice that. `begun`: the first barrier is
/// behind us.
void reduce_sliced(Context& c, bool begun) {
    const bool root = c.me == c.arguments.root;
    const std::size_t total = c.share();
    const std::size_t chunk = c.chunk(total);
    c.group.commit_slot(std::min(chunk, total));
    for (std::size_t done = 0; done < total; done += chunk) {
        const std::size_t length = std::min(chunk, total - done);
        const std::byte* source = c.arguments.source + done;
        const Slice own(length, c.n, c.me);
        const std::size_t end = own.begin + own.length;
        c.group.begin_step(chunk);
        std::byte* slot = c.group.slot(c.me);
        c.k.copy(slot, source, own.begin, c.group.staging());
        c.k.copy(slot + end, source + end, length - end, c.group.staging());
        if (done == 0 && !begun) {
            c.first_barrier();
            if (c.way(everybody) == Way::staged_again) return reduce_sliced(c, true);
        } else {
            c.group.barrier();
        }
        std::byte* to = root ? c.arguments.target + done : slot;
        reduce_into(c, to + own.begin, root ? StoreMode::plain : c.group.staging(), nullptr,
                    StoreMode::plain, c.sources(source + own.begin, own.begin), own.length);
        c.group.barrier();
        if (!root) continue;
        for (int i = 1; i < c.n; ++i) {
            const int peer = (c.me + i) % c.n;
            const Slice theirs(length, c.n, peer);
            c.k.copy(c.arguments.target + done + theirs.begin, c.group.slot(peer) + theirs.begin,
                     theirs.length, c.result(total));
        }
    }
    c.group.probe(total);
}

void reduce(Context& c) {
    const bool begun = c.leaves_slot_empty();
    if (begun) {
        c.group.begin_step();
        c.first_barrier();
        if (c.way(everybody) == Way::direct) return reduce_directly(c);
    }
    // Slices cost one barrier more, and save the root from reading all slots alone. Where ranks
    // share cores a barrier is dear, and the others do not work at the same time anyway.
    const std::size_t limit = c.group.arena().oversubscribed()
                                  ? std::size_t{32} << 10
                                  : (std::size_t{16} << 10) / static_cast<std::size_t>(c.n);
    if (c.n == 2 || c.share() <= limit)
        reduce_at_root(c, begun);
    else
        reduce_sliced(c, begun);
}

// ---- collectives on parts: one loop over steps; their number is known after the first barrier --

/// Runs `fill(step)` before and `drain(step)` after the barrier of each step; the number of steps
/// follows from the largest share, which all ranks know after the consistency check. The first fill
/// uses only what this rank knows itself. If the call goes the direct way, `directly` does the
/// rest; `reads(peer)` says whether the memory of that rank is read then.
template <class Fill, class Drain, class Reads>
void in_steps(Context& c, std::size_t unit, Fill fill, Drain drain, Reads reads,
              void (*directly)(Context&)) {
    c.group.begin_step(unit);
    if (!c.leaves_slot_empty()) fill(std::size_t{0});
    c.first_barrier();
    const Way way = c.way(reads);
    if (way == Way::direct) return directly(c);
    const std::size_t largest = c.group.largest_share() * c.arguments.item_bytes;
    const std::size_t steps = std::max<std::size_t>(1, (largest + unit - 1) / unit);
    std::size_t step = 0;
    if (way == Way::staged) drain(step++);
    for (; step < steps; ++step) {
        c.group.begin_step(unit);
        fill(step);
        c.group.barrier();
        drain(step);
    }
    c.group.probe(largest);
}

/// broadcast: the root stages, the others copy out; with two slots the root is a chunk ahead.
/// Barriers: 1 a chunk. Bytes staged: S, by the root. It alone has slots in its cache, so chunks of
/// long buffers are twice as long as elsewhere. Two ranks keep both slots in their caches instead:
/// what one writes the other reads at once, and a barrier of two is cheap.
void broadcast(Context& c) {
    const bool root = c.me == c.arguments.root;
    const std::size_t total = c.share();
    const bool both = c.n == 2;
    const std::size_t chunk =
        total >= huge && both
            ? std::size_t{256} << 10
            : std::min(c.chunk(total) * (total >= huge ? 2 : 1), c.group.slot_bytes());
    const StoreMode result = both ? c.copied(total) : c.copied_from_slots(total);
    in_steps(
        c, chunk,
        [&](std::size_t step) {
            if (!root) return;
            const std::size_t length = piece(total, step, chunk);
            c.group.commit_slot(length);
            c.k.copy_twice(c.group.slot(c.me), c.group.staging(), c.arguments.target + step * chunk,
                           result, c.arguments.source + step * chunk, length);
        },
        [&](std::size_t step) {
            if (!root)
                c.k.copy(c.arguments.target + step * chunk, c.group.slot(c.arguments.root),
                         piece(total, step, chunk), result);
        },
        [&](int peer) { return peer == c.arguments.root; }, broadcast_directly);
}

/// all_gather and gather: read the own part once and store it twice, into the slot and the result;
/// then copy the others' parts. Barriers: 1 a chunk. Bytes staged: S/P; read from peers: (P-1)/P S.
void all_gather(Context& c) {
    const bool collects = c.arguments.verb == Verb::all_gather || c.me == c.arguments.root;
    const std::size_t chunk = c.plain_chunk();
    const std::size_t own = c.share();
    const StoreMode result = c.copied_from_slots(even_total(c));
    std::byte* own_part =
        collects ? c.arguments.target + part_offset(c, c.arguments.receives, c.me) : nullptr;
    in_steps(
        c, chunk,
        [&](std::size_t step) {
            const std::size_t length = piece(own, step, chunk);
            const std::byte* source = c.arguments.source + step * chunk;
            if (c.me == c.arguments.root) {  // nobody reads the slot of a gather's root
                c.k.copy(own_part + step * chunk, source, length, result);
                return;
            }
            c.group.commit_slot(length);
            if (collects)
                c.k.copy_twice(c.group.slot(c.me), c.group.staging(), own_part + step * chunk,
                               result, source, length);
            else
                c.k.copy(c.group.slot(c.me), source, length, c.group.staging());
        },
        [&](std::size_t step) {
            for (int i = 1; collects && i < c.n; ++i) {
                const int peer = (c.me + i) % c.n;
                std::byte* part = c.arguments.target + part_offset(c, c.arguments.receives, peer);
                c.k.copy(part + step * chunk, c.group.slot(peer),
                         piece(c.bytes(peer, c.me), step, chunk), result);
            }
        },
        [&](int peer) { return peer != c.arguments.root; }, all_gather_directly);
}

/// scatter: the root stages one cell for each rank; each copies its own out. Barriers: 1 a chunk.
/// Bytes staged: (P-1)/P S, by the root.
void scatter(Context& c) {
    const bool root = c.me == c.arguments.root;
    const std::size_t cell = c.cell();
    const StoreMode result = c.copied_from_slots(c.share());
    in_steps(
        c, cell,
        [&](std::size_t step) {
            if (!root) return;
            const std::size_t stride = c.own_stride();
            c.group.commit_slot(stride * static_cast<std::size_t>(c.n));
            for (int peer = 0; peer < c.n; ++peer) {
                const std::size_t length =
                    piece(part_bytes(c, c.arguments.sends, peer), step, cell);
                const std::byte* source =
                    c.arguments.source + part_offset(c, c.arguments.sends, peer) + step * cell;
                if (peer == c.me)
                    c.k.copy(c.arguments.target + step * cell, source, length, result);
                else
                    c.k.copy(c.group.slot(c.me) + static_cast<std::size_t>(peer) * stride, source,
                             length, c.group.staging());
            }
        },
        [&](std::size_t step) {
            if (root) return;
            c.k.copy(c.arguments.target + step * cell, c.cell_for_me(c.arguments.root),
                     piece(c.share(), step, cell), result);
        },
        [&](int peer) { return peer == c.arguments.root; }, scatter_directly);
}

/// Stages one cell of our source for each peer.
void stage_cells(Context& c, std::size_t step, std::size_t cell) {
    const std::size_t stride = c.own_stride();
    c.group.commit_slot(stride * static_cast<std::size_t>(c.n));
    for (int i = 1; i < c.n; ++i) {
        const int peer = (c.me + i) % c.n;
        const std::size_t length = piece(part_bytes(c, c.arguments.sends, peer), step, cell);
        c.k.copy(c.group.slot(c.me) + static_cast<std::size_t>(peer) * stride,
                 c.arguments.source + part_offset(c, c.arguments.sends, peer) + step * cell, length,
                 c.group.staging());
    }
}

/// all_to_all: the slot is divided by destination; each copies its cells out of all slots.
/// Barriers: 1 if a part fits into a cell, else 1 a cell. Bytes staged and read: (P-1)/P S. In
/// place a step only overwrites what it has staged, because equal shares are at equal offsets.
void all_to_all(Context& c) {
    const std::size_t cell = c.cell();
    // In place, what is overwritten has just been staged, and is in the cache.
    const StoreMode result = c.arguments.source == c.arguments.target
                                 ? StoreMode::plain
                                 : c.copied_from_slots(even_total(c));
    in_steps(
        c, cell, [&](std::size_t step) { stage_cells(c, step, cell); },
        [&](std::size_t step) {
            const std::size_t done = step * cell;
            c.k.copy(c.arguments.target + part_offset(c, c.arguments.receives, c.me) + done,
                     c.arguments.source + part_offset(c, c.arguments.sends, c.me) + done,
                     piece(c.bytes(c.me, c.me), step, cell), result);
            for (int i = 1; i < c.n; ++i) {
                const int peer = (c.me + i) % c.n;
                c.k.copy(c.arguments.target + part_offset(c, c.arguments.receives, peer) + done,
                         c.cell_for_me(peer), piece(c.bytes(peer, c.me), step, cell), result);
            }
        },
        everybody, all_to_all_directly);
}

/// reduce_scatter: like all_to_all, but what arrives is reduced in rank order. Barriers: 1 a chunk.
void reduce_scatter(Context& c) {
    const std::size_t cell = c.cell();
    const std::size_t own = part_bytes(c, c.arguments.sends, c.me);
    const std::byte* own_part = c.arguments.source + part_offset(c, c.arguments.sends, c.me);
    in_steps(
        c, cell, [&](std::size_t step) { stage_cells(c, step, cell); },
        [&](std::size_t step) {
            const std::size_t length = piece(own, step, cell);
            for (int rank = 0; rank < c.n; ++rank)
                c.from[static_cast<std::size_t>(rank)] =
                    rank == c.me ? own_part + step * cell : c.cell_for_me(rank);
            reduce_into(c, c.arguments.target + step * cell, StoreMode::plain, nullptr,
                        StoreMode::plain, c.from.data(), length);
        },
        everybody, reduce_scatter_directly);
}

void barrier(Context& c) {
    c.group.begin_step();
    c.first_barrier();
}

/// A call on a GPU: ranks compare it, and tell each other something of equal length. Barriers: 1.
/// Bytes staged: what one rank tells; read from peers: P-1 times as much.
void tell(Context& c) {
    const std::size_t bytes = c.arguments.told_bytes;
    c.group.begin_step();
    c.group.commit_slot(bytes);
    c.k.copy(c.group.slot(c.me), c.arguments.source, bytes, StoreMode::plain);
    c.first_barrier();
    for (int rank = 0; rank < c.n; ++rank)
        c.k.copy(c.arguments.target + static_cast<std::size_t>(rank) * bytes, c.group.slot(rank),
                 bytes, StoreMode::plain);
}

/// A group of one rank: the result is the source, reduced alone.
void run_alone(Context& c) {
    const std::size_t bytes = part_bytes(c, c.arguments.sends, 0);
    if (const std::size_t room = part_bytes(c, c.arguments.receives, 0); room != bytes)
        throw Failure(FailureKind::mismatch,
                      format("rank 0 sends %zu bytes to itself, but receives %zu", bytes, room),
                      {0});
    if (c.arguments.op != ReduceOp::none) {
        const void* from = c.arguments.source;
        reduce_into(c, c.arguments.target, StoreMode::plain, nullptr, StoreMode::plain, &from,
                    bytes);
    } else if (c.arguments.verb != Verb::barrier) {
        c.k.copy(c.arguments.target, c.arguments.source, bytes, c.copied(bytes));
    }
}

}  // namespace

void run_collective(Group& group, const CallArguments& arguments) {
    Context c(group, arguments);
    if (arguments.on_gpu()) return tell(c);
    if (group.size() == 1) return run_alone(c);
    c.make_offer();
    switch (arguments.verb) {
        case Verb::broadcast:
            return broadcast(c);
        case Verb::reduce:
            return reduce(c);
        case Verb::all_reduce:
            return all_reduce(c);
        case Verb::reduce_scatter:
            return reduce_scatter(c);
        case Verb::gather:
        case Verb::all_gather:
            return all_gather(c);
        case Verb::scatter:
            return scatter(c);
        case Verb::all_to_all:
            return all_to_all(c);
        case Verb::barrier:
            return barrier(c);
        default:
            throw Failure(FailureKind::system, "not a collective");
    }
}

}  // namespace unisono
