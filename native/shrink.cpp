// native/shrink.cpp: survivors of a group agree on a smaller one.
//
// Every survivor marks itself in its Member of the old group and waits until each other member has
// marked itself, has left, or is dead. Then the lowest living rank that is marked prepares the
// memory of the new group, with a list of the marked ranks that are alive, and publishes its offset
// with one compare-exchange in the old header. So there is one list, even if the rank that wrote it
// dies. If it dies before it has published, the next lowest takes over. A rank that is in the list
// and dies later is lost in the new group, which can be shrunk again.
#include <algorithm>

#include "group.hpp"
#include "process.hpp"

namespace unisono {

namespace {

double seconds_until(Clock::time_point deadline) noexcept {
    return std::max(0.0, std::chrono::duration<double>(deadline - Clock::now()).count());
}

}  // namespace

std::vector<int> Group::members_at(const Arena& arena, std::size_t offset) {
    static_assert(sizeof(GroupHeader) + max_ranks * sizeof(std::int32_t) <= page);
    arena.check_group_offset(offset, page);
    const Mapping mapping(arena.fd(), offset, page);
    const std::uint32_t size = reinterpret_cast<GroupHeader*>(mapping.data())->size;
    if (size < 1 || size > max_ranks)
        throw damaged(format("the header of the group at offset %zu says that it has %u ranks",
                             offset, size));
    const GroupLayout layout(static_cast<int>(size));
    const auto* first = reinterpret_cast<const std::int32_t*>(mapping.data() + layout.world_ranks);
    std::vector<int> ranks(first, first + size);
    check_ranks(arena, ranks);
    return ranks;
}

std::size_t Group::shrink(const std::vector<int>& exclude, const Limits& limits) {
    if (closed_) throw Failure(FailureKind::closed, "the group is closed and cannot be shrunk");
    const auto deadline = deadline_after(limits.seconds);
    std::vector<bool> excluded(static_cast<std::size_t>(size_));
    for (const int rank : exclude) {
        if (rank < 0 || rank >= size_ || rank == rank_)
            throw Failure(FailureKind::closed, format("rank %d cannot be excluded by rank %d of %d",
                                                      rank, rank_, size_));
        excluded[static_cast<std::size_t>(rank)] = true;
    }
    set_mark(ShrinkMark::waiting);
    if (broken_ == nullptr) {
        broken_ = std::make_unique<Failure>(FailureKind::closed, "the group was shrunk");
        usable_.store(false, std::memory_order_relaxed);  // as in close()
        give_up(LeaveReason::shrinking, rank_);
    }
    wake_all(members_[rank_].turn);
    try {
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_ && !excluded[static_cast<std::size_t>(peer)])
                await_mark(peer, deadline, limits);
        for (;;) {
            // acquire: pairs with publish_new_group(): the new group is prepared.
            if (const auto offset = header_->shrunk.load(std::memory_order_acquire)) return offset;
            const std::vector<int> ranks = survivors(excluded);
            if (ranks.front() == rank_) return publish_new_group(ranks);
            bool is_next = false;
            wait_until(
                header_->published, arena_->spin_policy(),
                {seconds_until(deadline), limits.interrupted},
                [&] { return is_next || header_->shrunk.load(std::memory_order_acquire) != 0; },
                [&] { is_next = survivors(excluded).front() == rank_; },
                [&] { expire_shrink({ranks.front()}, limits.seconds); });
        }
    } catch (...) {
        // A rank that has seen our mark may still include us; then our next try finds that group.
        set_mark(ShrinkMark::gave_up);
        throw;
    }
}

ShrinkMark Group::mark(int rank) const noexcept {
    // seq_cst: pairs with set_mark(); a wake-up follows it where peers may sleep.
    return static_cast<ShrinkMark>(members_[rank].shrinking.load(std::memory_order_seq_cst));
}

void Group::set_mark(ShrinkMark mark) noexcept {
    // seq_cst: pairs with mark().
    members_[rank_].shrinking.store(static_cast<std::uint32_t>(mark), std::memory_order_seq_cst);
}

/// Whether a member cannot mark itself any more: it has left the group or the job, or it has ended.
bool Group::gone(int rank) const noexcept {
    const int world = world_rank(rank);
    // acquire: pairs with mark_departed() and Arena::leave().
    return members_[rank].departed.load(std::memory_order_acquire) != 0 ||
           arena_->rank_info(world).left.load(std::memory_order_acquire) != 0 ||
           !arena_->alive(world);
}

/// Waits until a member has marked itself or is gone, or until the new group is published.
void Group::await_mark(int peer, Clock::time_point deadline, const Limits& limits) {
    bool missing = false;
    wait_until(
        members_[peer].turn, arena_->spin_policy(), {seconds_until(deadline), limits.interrupted},
        [&] {
            return missing || mark(peer) == ShrinkMark::waiting ||
                   header_->shrunk.load(std::memory_order_relaxed) != 0;
        },
        [&] { missing = gone(peer); },
        [&] {
            // Name only ranks that did not call shrink(), not those that timed out as we do.
            std::vector<int> late;
            for (int rank = peer; rank < size_; ++rank)
                if (rank != rank_ && mark(rank) == ShrinkMark::none && !gone(rank))
                    late.push_back(rank);
            if (late.empty()) late.push_back(peer);
            expire_shrink(late, limits.seconds);
        });
}

/// The members that are marked and alive, in order; we are one of them.
std::vector<int> Group::survivors(const std::vector<bool>& excluded) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
        if (excluded[static_cast<std::size_t>(rank)]) continue;
        if (rank == rank_ || (mark(rank) == ShrinkMark::waiting && arena_->alive(world_rank(rank))))
            ranks.push_back(rank);
    }
    return ranks;
}

/// Prepares the new group and publishes it, unless another rank has published one before.
std::size_t Group::publish_new_group(const std::vector<int>& ranks) {
    std::vector<int> world_ranks;
    for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
    const std::size_t offset = prepare(*arena_, world_ranks, false);
    std::uint64_t other = 0;
    // release: pairs with the acquires in shrink(), here and below: a rank that reads the
    // offset finds the new group prepared.
    if (!header_->shrunk.compare_exchange_strong(other, offset, std::memory_order_acq_rel,
                                                 std::memory_order_acquire)) {
        arena_->release(offset, GroupLayout(static_cast<int>(ranks.size())).bytes);
        return other;
    }
    post(header_->published, 1);
    return offset;
}

void Group::expire_shrink(const std::vector<int>& missing, double seconds) const {
    std::string text;
    for (const int rank : missing) {
        const ProcessState process = read_process_state(
            arena_->rank_info(world_rank(rank)).pid.load(std::memory_order_relaxed));
        text +=
            format("; %s is alive but %s; %s", describe_rank(rank).c_str(),
                   process.stopped() ? "stopped" : "has not come", last_call_clause(rank).c_str());
    }
    throw Failure(FailureKind::timeout,
                  format("shrinking the group reached its timeout of %g s waiting for %s%s",
                         seconds, name_ranks(missing).c_str(), text.c_str()),
                  missing);
}

}  // namespace unisono
