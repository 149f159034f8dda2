// native/group.cpp: barriers, the consistency check, and how a group ends when a call fails.
#include "group.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "collectives.hpp"

namespace unisono {

GroupLayout::GroupLayout(int size) {
    const auto n = static_cast<std::size_t>(size);
    world_ranks = sizeof(GroupHeader);
    members = round_up(world_ranks + n * sizeof(std::int32_t), 128);
    rows = members + n * sizeof(Member);
    slots = round_up(rows + 4 * n * n * sizeof(std::uint64_t), page);
    // 1 MiB per slot up to 32 ranks, then less, so that a group needs at most 64 MiB.
    slot = std::size_t{1} << 20;
    while (slot > (std::size_t{64} << 10) && 2 * n * slot > (std::size_t{64} << 20)) slot /= 2;
    bytes = slots + 2 * n * slot;
}

std::size_t Group::prepare(Arena& arena, const std::vector<int>& world_ranks, bool whole) {
    const int size = static_cast<int>(world_ranks.size());
    const GroupLayout layout(size);
    const std::size_t offset = arena.allocate(layout.bytes);
    arena.commit(offset, whole ? layout.bytes : layout.slots);
    const auto mapping = arena.map(offset, layout.bytes);
    auto* header = new (mapping->data()) GroupHeader{};
    header->size = static_cast<std::uint32_t>(size);
    header->number = arena.header().next_group.fetch_add(1, std::memory_order_relaxed);
    header->committed = whole ? layout.slot : 0;
    auto* ranks = reinterpret_cast<std::int32_t*>(mapping->data() + layout.world_ranks);
    std::copy(world_ranks.begin(), world_ranks.end(), ranks);
    for (int rank = 0; rank < size; ++rank)
        new (mapping->data() + layout.members + static_cast<std::size_t>(rank) * sizeof(Member))
            Member{};
    return offset;
}

Group::Group(std::shared_ptr<Arena> arena, std::size_t offset, int rank, int size)
    : arena_(std::move(arena)), offset_(offset), rank_(rank), size_(size) {
    const GroupLayout layout(size);
    bytes_ = layout.bytes;
    slot_bytes_ = layout.slot;
    slots_offset_ = offset + layout.slots;
    mapping_ = arena_->map(offset, layout.bytes);
    header_ = reinterpret_cast<GroupHeader*>(mapping_->data());
    members_ = reinterpret_cast<Member*>(mapping_->data() + layout.members);
    rows_ = reinterpret_cast<std::uint64_t*>(mapping_->data() + layout.rows);
    slots_ = mapping_->data() + layout.slots;
    committed_ = header_->committed == layout.slot ? layout.slot : 0;
    number_ = header_->number;
    const auto* ranks =
        reinterpret_cast<const std::int32_t*>(mapping_->data() + layout.world_ranks);
    // A copy, because these are indexes into rank infos, logs and rings: checked once, then used.
    std::vector<int> world_ranks(ranks, ranks + size);
    check_ranks(*arena_, world_ranks);
    group_members_ =
        std::make_shared<GroupMembers>(GroupMembers{std::move(world_ranks), mapping_, members_});
}

void Group::check_ranks(const Arena& arena, const std::vector<int>& world_ranks) {
    for (const int rank : world_ranks)
        if (rank < 0 || rank >= arena.size())
            throw damaged(
                format("the header of a group names rank %d in a job of %d", rank, arena.size()));
}

Group::~Group() {
    close();
    group_members_.reset();
    mapping_.reset();
    arena_->forget(offset_);
}

void Group::close() noexcept {
    if (closed_) return;
    closed_ = true;
    usable_.store(false, std::memory_order_relaxed);  // a hint for usable(), which orders nothing
    if (broken_ == nullptr) give_up(LeaveReason::closed, rank_);
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_ && !arena_->alive(world_rank(peer))) mark_departed(peer);
    mark_departed(rank_);
}

/// Counts a member as departed, once. The last one releases the pages; the offset is not reused.
void Group::mark_departed(int rank) noexcept {
    // acquire, release: pairs with gone() on members in shrink(), and several members may do this
    // for a rank that has ended.
    if (members_[rank].departed.exchange(1, std::memory_order_acq_rel) != 0) return;
    wake_all(members_[rank].turn);
    // acq_rel: pairs with the other members' increments, so that their last writes come before
    // the release of the pages.
    if (header_->closed.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<std::uint32_t>(size_))
        arena_->release(offset_, bytes_);
}

void Group::run(const CallArguments& arguments, const Limits& limits) {
    if (closed_) throw Failure(FailureKind::closed, "the group is closed; make a new one");
    if (broken_ != nullptr)
        throw Failure(
            broken_->kind,
            format("the group has been broken since call %u: %s", calls_, broken_->what()),
            broken_->ranks);
    limits_ = &limits;
    reads_began_ = {};
    ++calls_;
    try {
        try {
            run_collective(*this, arguments);
        } catch (const std::bad_alloc&) {
            throw Failure(FailureKind::memory, "this process has no private memory for the call",
                          {rank_});
        }
    } catch (const Failure& failure) {
        if (failure.kind !=
            FailureKind::mismatch) {  // after a mismatch all ranks are still in step
            broken_ = std::make_unique<Failure>(failure);
            usable_.store(false, std::memory_order_relaxed);  // as in close()
            const int blamed = failure.ranks.empty() ? rank_ : failure.ranks.front();
            switch (failure.kind) {
                case FailureKind::timeout:
                    give_up(LeaveReason::timeout, blamed);
                    break;
                case FailureKind::lost:
                    give_up(LeaveReason::lost, blamed);
                    break;
                case FailureKind::memory:
                    give_up(LeaveReason::memory, blamed);
                    break;
                case FailureKind::interrupted:
                    broken_->kind = FailureKind::closed;
                    shut_out();
                    give_up(LeaveReason::interrupted, rank_);
                    break;
                default:
                    shut_out();
                    give_up(LeaveReason::stopped, rank_);
                    break;
            }
        }
        throw;
    }
}

bool Group::peers_come(Clock::duration longest) noexcept {
    const std::uint32_t number = calls_ + 1;
    // Relaxed, here and below: nothing is read because of it but the turn, in the call itself.
    members_[rank_].coming.store(number, std::memory_order_relaxed);
    const auto comes = [&](int peer) {
        const std::uint32_t coming = members_[peer].coming.load(std::memory_order_relaxed);
        const std::uint32_t turn = members_[peer].turn.value.load(std::memory_order_relaxed);
        return static_cast<std::int32_t>(coming - number) >= 0 ||
               static_cast<std::int32_t>(turn - turn_) > 0;
    };
    const auto deadline = Clock::now() + longest;
    const bool spins = arena_->spin_policy().spins != 0;
    for (int i = 1; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;
        while (!comes(peer)) {
            if (Clock::now() >= deadline) return false;
            if (spins)
                pause();
            else
                yield_core();
        }
    }
    return true;
}

void Group::give_up(LeaveReason why, int blamed) noexcept {
    Member& self = members_[rank_];
    const auto word = static_cast<std::uint32_t>(why) | static_cast<std::uint32_t>(blamed + 1) << 8;
    self.gave_up.store(word, std::memory_order_seq_cst);  // pairs with check_peers()
    wake_all(self.turn);
}

void Group::commit_slot(std::size_t bytes) {
    if (bytes <= committed_) return;
    // A group that only sums a few numbers should not need megabytes: a page, 64 KiB, then all.
    const std::size_t some = std::size_t{64} << 10;
    const std::size_t wanted = bytes <= page ? page : bytes <= some ? some : slot_bytes_;
    for (std::size_t parity = 0; parity < 2; ++parity)
        arena_->commit(slots_offset_ + (parity * size_ + rank_) * slot_bytes_, wanted);
    committed_ = wanted;
}

void Group::publish(const CallArguments& arguments) {
    Member& self = members_[rank_];
    const std::uint64_t print = self.call[step_ & 1].write(arguments, calls_);
    const bool uneven = !arguments.sends.empty();
    if (uneven) {
        std::uint64_t* mine = rows(rank_);
        std::copy(arguments.sends.begin(), arguments.sends.end(), mine);
        std::copy(arguments.receives.begin(), arguments.receives.end(), mine + size_);
    }
    // Relaxed: the store of the turn in barrier() orders it. If counts differ by rank, each rank
    // has a different fingerprint, so that all compare in full.
    self.fingerprint[step_ & 1].store(
        uneven ? print + static_cast<std::uint64_t>(rank_) + 1 : print, std::memory_order_relaxed);
}

void Group::read_peer(int peer, Offer offer, std::size_t offset, std::byte* target,
                      std::size_t bytes, StoreMode store) {
    if (bytes == 0) return;
    if (const std::byte* mapped = peer_memory(offer, offset, bytes)) {
        kernels().copy(target, mapped, bytes, store);
        return;
    }
    if (reads_began_ == Clock::time_point{}) reads_began_ = Clock::now();
    const int error =
        read_memory(arena_->pid(world_rank(peer)), offer.place() + offset, target, bytes);
    if (error != 0) raise_unreadable(peer, error);
}

void Group::closing_barrier() {
    // A peer that has arrived and died since may have left its process number to another process,
    // which we would have read. A number comes round again after thousands of others: that takes
    // longer than most calls.
    const auto began = std::exchange(reads_began_, Clock::time_point{});
    if (began != Clock::time_point{} && Clock::now() - began > slice)
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_ && !arena_->alive(world_rank(peer))) raise_departed(peer, 0);
    barrier();
}

std::byte* Group::scratch(std::size_t bytes) {
    if (bytes > scratch_bytes_) {
        scratch_ = {static_cast<std::byte*>(std::aligned_alloc(page, bytes)), std::free};
        if (scratch_ == nullptr)
            throw Failure(FailureKind::memory,
                          format("%zu KiB of private memory are needed", bytes >> 10), {rank_});
        scratch_bytes_ = bytes;
    }
    return scratch_.get();
}

bool Group::reached(int peer) const noexcept {
    // acquire: pairs with post() of the peer in barrier(): its slot and its descriptor are readable
    // now.
    const std::uint32_t turn = members_[peer].turn.value.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(turn - turn_) >= 0;
}

void Group::barrier() {
    turn_ += 2;
    fence();  // streaming stores are not ordered by the store of the turn
    // Fails if a peer has given up this barrier and shut us out of it.
    if (!post_from(members_[rank_].turn, turn_ - 2, turn_)) raise_given_up();
    for (int i = 1; i < size_; ++i) wait_for((rank_ + i) % size_);
}

void Group::wait_for(int peer) {
    wait_until(
        members_[peer].turn, arena_->spin_policy(), *limits_, [&] { return reached(peer); },
        [&] { check_peers(); },
        [&] {
            if (shut_out()) expire(timeout_text());
        });
}

/// Gives up the barrier in which we wait: makes the turn of one peer that has not arrived odd, so
/// that it cannot arrive any more. From then on nobody passes: a call succeeds on all ranks or on
/// none. False if all have arrived in the meantime; then there is nothing to give up.
bool Group::shut_out() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        std::uint32_t seen = turn_ - 2;
        // seq_cst: pairs with post_from() in barrier(): either the peer has arrived, or it finds
        // that it is shut out.
        if (members_[peer].turn.value.compare_exchange_strong(seen, turn_ - 1,
                                                              std::memory_order_seq_cst)) {
            wake_all(members_[peer].turn);
            return true;
        }
        if (seen == turn_ - 1) return true;  // another rank has done so
    }
    return false;
}

void Group::check_peers() {
    if (stopping_.load(std::memory_order_relaxed))
        throw Failure(FailureKind::closed, "the group was closed while this call was waiting");
    for (int peer = 0; peer < size_; ++peer) {
        // acquire: pairs with shut_out().
        const std::uint32_t turn = members_[peer].turn.value.load(std::memory_order_acquire);
        if (peer == rank_) continue;
        const std::uint32_t word =
            members_[peer].gave_up.load(std::memory_order_seq_cst);  // give_up()
        if (static_cast<std::int32_t>(turn - turn_) >= 0) {
            // One that has arrived and died is news as well: those who are missing may come much
            // later. If all have arrived in the meantime, this barrier is passed.
            if (word == 0 && !arena_->alive(world_rank(peer)) && shut_out())
                raise_departed(peer, word);
            continue;
        }
        if (turn == turn_ - 1)
            check_given_up(true);
        else if (turn != turn_ - 2)  // no rank can have that turn now
            throw damaged(
                format("the turn of rank %d is %u; it must be %u", peer, turn, turn_ - 2));
        const bool dead = word == 0 && !arena_->alive(world_rank(peer));
        if ((word == 0 && !dead) || reached(peer)) continue;  // it may have arrived and then ended
        if (static_cast<LeaveReason>(word & 0xff) == LeaveReason::closed &&
            arena_->about_to_end(world_rank(peer)))
            continue;  // its exit status is known in a moment
        raise_departed(peer, word);
    }
}

/// A peer has given up this barrier: raises who and why, when that is known. Ranks that `arrived`
/// and waited too get the same timeout error as the peer whose deadline passed.
void Group::check_given_up(bool arrived) {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const std::uint32_t word =
            members_[peer].gave_up.load(std::memory_order_seq_cst);  // give_up()
        switch (static_cast<LeaveReason>(word & 0xff)) {
            case LeaveReason::timeout:
                if (arrived)
                    expire(format("ended at the deadline of %s,", describe_rank(peer).c_str()));
                raise_departed(peer, word);
            case LeaveReason::stopped:
            case LeaveReason::interrupted:
            case LeaveReason::lost:
                raise_departed(peer, word);
            case LeaveReason::none:  // it may have died after it had shut out a peer
                if (!arena_->alive(world_rank(peer))) raise_departed(peer, word);
                break;
            default:
                break;
        }
    }
}

/// We are shut out of a barrier; the peer that did it is about to publish why.
void Group::raise_given_up() {
    const std::uint32_t turn = members_[rank_].turn.value.load(std::memory_order_relaxed);
    if (turn != turn_ - 1)
        throw damaged(format("the turn of this rank is %u; it must be %u", turn, turn_ - 2));
    check_given_up(false);
    wait_until(
        members_[rank_].turn, arena_->spin_policy(), *limits_, [] { return false; },
        [&] { check_given_up(false); }, [&] { expire(timeout_text()); });
    __builtin_unreachable();
}

void Group::check_consistency(const CallArguments& arguments) {
    const auto parity = step_ & 1;
    const std::uint64_t mine = members_[rank_].fingerprint[parity].load(std::memory_order_relaxed);
    if (!checked_reads_) {
        // Every member has connected before its first call, so its answer is final, and all of us
        // come to the same result.
        reads_peers_ = checked_reads_ = true;
        bool quickly = true;
        for (int rank = 0; rank < size_; ++rank) {
            const ReadsPeers answer = arena_->reads_peers(world_rank(rank));
            reads_peers_ = reads_peers_ && answer >= ReadsPeers::slowly;
            quickly = quickly && answer == ReadsPeers::quickly;
        }
        for (std::size_t verb = 0; reads_peers_ && verb < SingleCopyTable::verbs; ++verb)
            single_copy_[verb] = arena_->single_copy_range(static_cast<Verb>(verb), size_, quickly);
    }
    uneven_ = false;
    share_ = arguments.count;
    largest_ = arguments.on_gpu() ? 0 : share_;  // nothing of it goes through the slots
    bool same = arguments.sends.empty();
    for (int i = 1; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;
        // Relaxed: ordered by the acquire of the peer's turn, which is in the same cache line.
        same = same && members_[peer].fingerprint[parity].load(std::memory_order_relaxed) == mine;
    }
    if (!same) compare_all(arguments);
    if (rotates_) {
        // All know the largest part now. The lines of short ones are few, and long ones do not stay
        // in the shared cache: both are better off at one place.
        constexpr std::size_t shortest = std::size_t{8} << 10;
        constexpr std::size_t longest = std::size_t{8} << 20;
        const std::size_t bytes = largest_ * arguments.item_bytes;
        advance_ = bytes < shortest || bytes >= longest
                       ? 0
                       : std::min(round_up(bytes, page), rotating_piece);
    }
}

/// Some fingerprint differs: either ranks disagree, or their counts differ by rank and must match.
/// All ranks compare the same descriptors and rows, so all come to the same result. Each takes its
/// own from its arguments: they are the lengths of its buffers, and only its caller may set them.
void Group::compare_all(const CallArguments& arguments) {
    const auto n = static_cast<std::size_t>(size_);
    PackedCall own;
    own.write(arguments, calls_);
    const CallDescriptor mine(own);
    std::vector<std::uint64_t> receives(n * n, 0);
    matrix_.assign(n * n, 0);
    one_count_.assign(n, false);
    for (int rank = 0; rank < size_; ++rank) {
        const CallDescriptor call =
            rank == rank_ ? mine : CallDescriptor(members_[rank].call[step_ & 1]);
        if (!call.same_kind(mine) || !call.has_counts()) raise_mismatch();
        if (call.on_gpu) continue;  // the callers compare their counts by what they tell each other
        const std::uint64_t* sent = rank == rank_ ? arguments.sends.data() : rows(rank);
        const std::uint64_t* got = rank == rank_ ? arguments.receives.data() : rows(rank) + size_;
        one_count_[static_cast<std::size_t>(rank)] = !call.uneven;
        for (int peer = 0; peer < size_; ++peer) {
            std::uint64_t sends = call.count;
            std::uint64_t gets = call.count;
            if (call.uneven) {
                sends = sent[peer];
                gets = got[peer];
            } else if (call.verb == Verb::gather) {
                sends = peer == call.root ? call.count : 0;
                gets = rank == call.root ? call.count : 0;
            } else if (call.verb == Verb::scatter) {
                sends = rank == call.root ? call.count : 0;
                gets = peer == call.root ? call.count : 0;
            }
            matrix_[static_cast<std::size_t>(rank) * n + static_cast<std::size_t>(peer)] = sends;
            receives[static_cast<std::size_t>(peer) * n + static_cast<std::size_t>(rank)] = gets;
        }
    }
    if (matrix_ != receives) raise_mismatch();
    if (mine.on_gpu) return;
    uneven_ = true;
    largest_ = *std::max_element(matrix_.begin(), matrix_.end());
}

}  // namespace unisono
