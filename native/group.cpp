// native/group.cpp: turns, fingerprints and what becomes of a group when something goes wrong.
#include "group.hpp"

#include <algorithm>
#include <new>

#include "collectives.hpp"
#include "process.hpp"

namespace unisono {

GroupPlan::GroupPlan(int size) {
    const auto n = static_cast<std::size_t>(size);
    world_ranks = sizeof(GroupHeader);
    members = round_up(world_ranks + n * sizeof(std::int32_t), 128);
    rows = members + n * sizeof(Member);
    slots = round_up(rows + 4 * n * n * sizeof(std::uint64_t), page);
    // 1 MiB a slot up to 32 ranks, then smaller, so that a group stays at 64 MiB or less.
    slot = std::size_t{1} << 20;
    while (slot > (std::size_t{64} << 10) && 2 * n * slot > (std::size_t{64} << 20)) slot /= 2;
    bytes = slots + 2 * n * slot;
}

std::size_t Group::prepare(Arena& arena, const std::vector<int>& world_ranks, bool whole) {
    const int size = static_cast<int>(world_ranks.size());
    const GroupPlan plan(size);
    const std::size_t offset = arena.allocate(plan.bytes);
    arena.commit(offset, whole ? plan.bytes : plan.slots);
    const auto mapping = arena.map(offset, plan.bytes);
    auto* header = new (mapping->data()) GroupHeader{};
    header->size = static_cast<std::uint32_t>(size);
    header->number = arena.header().next_group.fetch_add(1, std::memory_order_relaxed);
    header->committed = whole ? plan.slot : 0;
    auto* ranks = reinterpret_cast<std::int32_t*>(mapping->data() + plan.world_ranks);
    std::copy(world_ranks.begin(), world_ranks.end(), ranks);
    for (int rank = 0; rank < size; ++rank)
        new (mapping->data() + plan.members + static_cast<std::size_t>(rank) * sizeof(Member))
            Member{};
    return offset;
}

Group::Group(std::shared_ptr<Arena> arena, std::size_t offset, int rank, int size)
    : arena_(std::move(arena)), offset_(offset), rank_(rank), size_(size) {
    const GroupPlan plan(size);
    bytes_ = plan.bytes;
    slot_bytes_ = plan.slot;
    slots_offset_ = offset + plan.slots;
    mapping_ = arena_->map(offset, plan.bytes);
    header_ = reinterpret_cast<GroupHeader*>(mapping_->data());
    members_ = reinterpret_cast<Member*>(mapping_->data() + plan.members);
    rows_ = reinterpret_cast<std::uint64_t*>(mapping_->data() + plan.rows);
    slots_ = mapping_->data() + plan.slots;
    committed_ = header_->committed;
    number_ = header_->number;
    const auto* ranks = reinterpret_cast<const std::int32_t*>(mapping_->data() + plan.world_ranks);
    directory_ = std::make_shared<Directory>(
        Directory{std::vector<int>(ranks, ranks + size), mapping_, members_});
}

Group::~Group() {
    close();
    directory_.reset();
    mapping_.reset();
    arena_->forget(offset_);
}

void Group::close() noexcept {
    if (closed_) return;
    closed_ = true;
    usable_.store(false, std::memory_order_relaxed);  // a hint for usable(), which orders nothing
    if (broken_ == nullptr) give_up(Leave::closed, rank_);
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_ && !arena_->alive(world_rank(peer))) settle(peer);
    settle(rank_);
}

/// Counts a member out, once. The last one gives the pages back; the offset is not used again.
void Group::settle(int rank) noexcept {
    // acquire, release: pairs with gone() on members that wait for the smaller group, and a rank
    // that has ended may be counted out by several of us.
    if (members_[rank].settled.exchange(1, std::memory_order_acq_rel) != 0) return;
    wake_all(members_[rank].turn);
    // acq_rel: pairs with the other members' increments, so that their last writes come before the
    // pages go.
    if (header_->closed.fetch_add(1, std::memory_order_acq_rel) + 1 ==
        static_cast<std::uint32_t>(size_))
        arena_->release(offset_, bytes_);
}

void Group::run(const Request& request, const Limits& limits) {
    if (closed_) throw Failure(Fault::closed, "the group is closed; make a new one");
    if (broken_ != nullptr)
        throw Failure(broken_->fault,
                      format("the group is broken since call %u: %s", calls_, broken_->what()),
                      broken_->ranks);
    limits_ = &limits;
    ++calls_;
    try {
        run_collective(*this, request);
    } catch (const Failure& failure) {
        if (failure.fault != Fault::mismatch) {  // after a mismatch all ranks are still in step
            broken_ = std::make_unique<Failure>(failure);
            usable_.store(false, std::memory_order_relaxed);  // as in close()
            const int blamed = failure.ranks.empty() ? rank_ : failure.ranks.front();
            switch (failure.fault) {
                case Fault::timeout:
                    give_up(Leave::timeout, blamed);
                    break;
                case Fault::lost:
                    give_up(Leave::lost, blamed);
                    break;
                case Fault::memory:
                    give_up(Leave::memory, blamed);
                    break;
                case Fault::interrupted:
                    broken_->fault = Fault::closed;
                    shut_out();
                    give_up(Leave::interrupted, rank_);
                    break;
                default:
                    shut_out();
                    give_up(Leave::stopped, rank_);
                    break;
            }
        }
        throw;
    }
}

void Group::give_up(Leave why, int blamed) noexcept {
    Member& self = members_[rank_];
    const auto word = static_cast<std::uint32_t>(why) | static_cast<std::uint32_t>(blamed + 1) << 8;
    self.gave_up.store(word, std::memory_order_seq_cst);  // pairs with check_peers()
    wake_all(self.turn);
}

void Group::need_slot(std::size_t bytes) {
    if (bytes <= committed_) return;
    // A group that only ever sums a few numbers should not cost megabytes: a page, 64 KiB, all.
    const std::size_t some = std::size_t{64} << 10;
    const std::size_t wanted = bytes <= page ? page : bytes <= some ? some : slot_bytes_;
    for (std::size_t parity = 0; parity < 2; ++parity)
        arena_->commit(slots_offset_ + (parity * size_ + rank_) * slot_bytes_, wanted);
    committed_ = wanted;
}

void Group::publish(const Request& request) {
    Member& self = members_[rank_];
    const std::uint64_t print = self.card[step_ & 1].write(request, calls_);
    const bool uneven = !request.sends.empty();
    if (uneven) {
        std::uint64_t* mine = rows(rank_);
        std::copy(request.sends.begin(), request.sends.end(), mine);
        std::copy(request.receives.begin(), request.receives.end(), mine + size_);
    }
    // Relaxed: the store of the turn in barrier() orders it. Where counts differ by rank the print
    // is like no other, so that everybody compares in full.
    self.fingerprint[step_ & 1].store(
        uneven ? print + static_cast<std::uint64_t>(rank_) + 1 : print, std::memory_order_relaxed);
}

bool Group::reached(int peer) const noexcept {
    // acquire: pairs with post() of the peer in barrier(): its slot and its card are readable now.
    const std::uint32_t turn = members_[peer].turn.value.load(std::memory_order_acquire);
    return static_cast<std::int32_t>(turn - turn_) >= 0;
}

void Group::barrier() {
    turn_ += 2;
    fence();  // streaming stores are not ordered by the store of the turn
    // Fails if a peer has given this barrier up, and has shut us out of it.
    if (!post_from(members_[rank_].turn, turn_ - 2, turn_)) raise_given_up();
    for (int i = 1; i < size_; ++i) wait_for((rank_ + i) % size_);
}

void Group::wait_for(int peer) {
    wait_until(
        members_[peer].turn, arena_->patience(), *limits_, [&] { return reached(peer); },
        [&] { check_peers(); },
        [&] {
            if (shut_out()) expire(at_deadline());
        });
}

/// Gives up the barrier in which we wait: makes the turn of one peer that has not come odd, so that
/// it cannot come any more. From then on nobody passes: a call ends well on all ranks or on none.
/// False if all have come in the meantime; then there is nothing to give up.
bool Group::shut_out() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        std::uint32_t seen = turn_ - 2;
        // seq_cst: pairs with post_from() in barrier(): either the peer has come, or it finds that
        // it has been shut out.
        if (members_[peer].turn.value.compare_exchange_strong(seen, turn_ - 1,
                                                              std::memory_order_seq_cst)) {
            wake_all(members_[peer].turn);
            return true;
        }
        if (seen == turn_ - 1) return true;  // another one has done so
    }
    return false;
}

void Group::check_peers() {
    if (stopping_.load(std::memory_order_relaxed))
        throw Failure(Fault::closed, "the group was closed while this call was waiting");
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_ || reached(peer)) continue;
        // acquire: pairs with shut_out().
        if (members_[peer].turn.value.load(std::memory_order_acquire) == turn_ - 1)
            check_given_up(true);
        const std::uint32_t word =
            members_[peer].gave_up.load(std::memory_order_seq_cst);  // give_up()
        const bool dead = word == 0 && !arena_->alive(world_rank(peer));
        if ((word == 0 && !dead) || reached(peer)) continue;  // it may have answered and then ended
        if (static_cast<Leave>(word & 0xff) == Leave::closed &&
            arena_->about_to_end(world_rank(peer)))
            continue;  // in a moment we can say how it ended
        raise_departed(peer, word);
    }
}

/// Somebody has given this barrier up: raises who it was, as soon as that is known. Ranks that
/// `came` and waited like a peer whose deadline is over share its error.
void Group::check_given_up(bool came) {
    for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const std::uint32_t word =
            members_[peer].gave_up.load(std::memory_order_seq_cst);  // give_up()
        switch (static_cast<Leave>(word & 0xff)) {
            case Leave::timeout:
                if (came) expire(format("ended at the deadline of %s,", who(peer).c_str()));
                raise_departed(peer, word);
            case Leave::stopped:
            case Leave::interrupted:
            case Leave::lost:
                raise_departed(peer, word);
            case Leave::no:  // it may have died just after it had shut somebody out
                if (!arena_->alive(world_rank(peer))) raise_departed(peer, word);
                break;
            default:
                break;
        }
    }
}

/// We have been shut out of a barrier; whoever did it is about to say why.
void Group::raise_given_up() {
    check_given_up(false);
    wait_until(
        members_[rank_].turn, arena_->patience(), *limits_, [] { return false; },
        [&] { check_given_up(false); }, [&] { expire(at_deadline()); });
    __builtin_unreachable();
}

void Group::raise_departed(int peer, std::uint32_t word) {
    const int blamed = static_cast<int>(word >> 8) - 1;
    const std::string culprit = who(peer);
    switch (static_cast<Leave>(word & 0xff)) {
        case Leave::no:
            throw Failure(Fault::lost, lost(peer, ""), {peer});
        case Leave::closed:
        case Leave::stopped:
            // relaxed: pairs with Arena::exit(), which came before the closing that we have seen.
            if (arena_->resident(world_rank(peer)).exiting.load(std::memory_order_relaxed) != 0)
                throw Failure(Fault::lost, lost(peer, ""), {peer});
            throw Failure(Fault::lost,
                          format("%s closed the group; its last call was %s", culprit.c_str(),
                                 deed(peer).c_str()),
                          {peer});
        case Leave::timeout:
            throw Failure(
                Fault::lost,
                format("%s gave up at its deadline, waiting for %s; its last call was %s",
                       culprit.c_str(), blamed == rank_ ? "this rank" : who(blamed).c_str(),
                       deed(peer).c_str()),
                {peer});
        case Leave::interrupted:
            throw Failure(Fault::lost,
                          format("%s was interrupted in its call; that was %s", culprit.c_str(),
                                 deed(peer).c_str()),
                          {peer});
        case Leave::lost:
            throw Failure(Fault::lost, lost(blamed, culprit), {blamed});
        case Leave::shrinking:
            throw Failure(Fault::lost, format("%s left the group to shrink it", culprit.c_str()),
                          {peer});
        case Leave::memory:
            throw Failure(
                Fault::memory,
                format("%s found no shared memory for its call; the slots of a rank take "
                       "up to %.1f MiB",
                       who(blamed).c_str(), 2 * static_cast<double>(slot_bytes_) / (1 << 20)),
                {blamed});
    }
    __builtin_unreachable();
}

std::string Group::at_deadline() const {
    return format("reached its timeout of %g s", limits_->seconds);
}

void Group::expire(const std::string& how) {
    constexpr std::size_t most = 8;  // whose story is told; the others are only named
    std::vector<int> missing, present;
    std::string late, here;
    for (int peer = 0; peer < size_; ++peer) {
        const bool came = peer == rank_ || reached(peer);
        auto& list = came ? present : missing;
        list.push_back(peer);
        if (list.size() > most) continue;
        if (came) {
            here += format("%s%s%s", here.empty() ? "" : ", ", who(peer).c_str(),
                           place(peer, true).c_str());
            continue;
        }
        const bool stopped =
            look_at(arena_->resident(world_rank(peer)).pid.load(std::memory_order_relaxed))
                .stopped();
        late += format("; %s is alive but %s, its last call was %s", who(peer).c_str(),
                       stopped ? "stopped" : "has not come", deed(peer).c_str());
    }
    if (missing.size() > most) late += format("; and %zu more", missing.size() - most);
    if (present.size() > most) here += format(" and %zu more", present.size() - most);
    throw Failure(Fault::timeout,
                  format("%s%s %s waiting for %s%s; arrived: %s", last_call(rank_).c_str(),
                         place(rank_, false).c_str(), how.c_str(), name_ranks(missing).c_str(),
                         late.c_str(), here.c_str()),
                  missing);
}

void Group::agree(const Request& request) {
    const auto parity = step_ & 1;
    const std::uint64_t mine = members_[rank_].fingerprint[parity].load(std::memory_order_relaxed);
    uneven_ = false;
    share_ = largest_ = request.count;
    bool same = request.sends.empty();
    for (int i = 1; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;
        // Relaxed: ordered by the acquire of the peer's turn, which stands in the same line.
        same = same && members_[peer].fingerprint[parity].load(std::memory_order_relaxed) == mine;
    }
    if (!same) compare_all();
}

/// Some fingerprint differs: either ranks disagree, or their counts differ by rank and must fit.
/// All ranks look at the same cards and rows, so all come to the same verdict.
void Group::compare_all() {
    const auto n = static_cast<std::size_t>(size_);
    const Call first(members_[0].card[step_ & 1]);
    std::vector<std::uint64_t> receives(n * n, 0);
    matrix_.assign(n * n, 0);
    for (int rank = 0; rank < size_; ++rank) {
        const Call call(members_[rank].card[step_ & 1]);
        if (!call.same_kind(first) || !call.has_counts()) raise_mismatch();
        const std::uint64_t* published = rows(rank);
        for (int peer = 0; peer < size_; ++peer) {
            std::uint64_t sends = call.count;
            std::uint64_t gets = call.count;
            if (call.uneven) {
                sends = published[peer];
                gets = published[size_ + peer];
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
    uneven_ = true;
    largest_ = *std::max_element(matrix_.begin(), matrix_.end());
}

void Group::raise_mismatch() {
    struct Side {
        std::string call;
        std::vector<int> ranks;
        std::vector<std::string> places;
    };
    std::vector<Side> sides;
    for (int rank = 0; rank < size_; ++rank) {
        const Call call(members_[rank].card[step_ & 1]);
        std::string text = call.text();
        if (call.uneven) {
            const std::uint64_t* published = rows(rank);
            for (const bool receiving : {false, true}) {
                text += receiving ? ", receiving [" : ", sending [";
                for (int peer = 0; peer < size_; ++peer)
                    text += format(
                        "%s%llu", peer == 0 ? "" : ", ",
                        static_cast<unsigned long long>(published[receiving * size_ + peer]));
                text += "]";
            }
        }
        auto side = std::find_if(sides.begin(), sides.end(),
                                 [&](const Side& other) { return other.call == text; });
        if (side == sides.end()) side = sides.insert(side, {text, {}, {}});
        side->ranks.push_back(rank);
        const std::string at = place(rank, false);
        if (!at.empty() &&
            std::find(side->places.begin(), side->places.end(), at) == side->places.end())
            side->places.push_back(at);
    }
    std::string text = format("ranks disagree in call %u of the group", calls_);
    for (const Side& side : sides) {
        text +=
            format("; %s: %s, call %u", name_ranks(side.ranks).c_str(), side.call.c_str(), calls_);
        for (std::size_t i = 0; i < side.places.size(); ++i)
            text += (i == 0 ? "" : " and") + side.places[i];
    }
    throw Failure(Fault::mismatch, text);
}

void Group::probe(std::size_t bytes) {
    constexpr auto near = std::chrono::nanoseconds(140);
    if (size_ == 1 || bytes < 8192 || arena_->crowded() || (probes_++ & 31) != 0) return;
    auto best = Clock::duration::max();
    for (int i = 0; i < 6; ++i) {
        const auto began = Clock::now();
        barrier();
        if (i > 0) best = std::min(best, Clock::now() - began);
    }
    staging_ = best > near ? Store::streaming : Store::plain;
}

std::string Group::last_call(int rank) const {
    const Call even(members_[rank].card[0]);
    const Call odd(members_[rank].card[1]);
    const Call& last = even.number > odd.number ? even : odd;
    if (last.verb == Verb::nothing) return last.text();
    return format("%s (call %u)", last.text().c_str(), last.number);
}

/// What a rank does now or did last, in words.
std::string Group::deed(int rank) const {
    const std::string text = arena_->deed(world_rank(rank), number_);
    return text.empty() ? last_call(rank) : text;
}

/// Where a rank stands in the call that we are in: " at train.py:88"; with `waited`, since when.
std::string Group::place(int rank, bool waited) const {
    const Log& log = arena_->log(world_rank(rank));
    const auto entry = log.find(number_, calls_);
    if (!entry) return {};
    const std::string text = log.at(*entry);
    if (!waited) return text;
    return format("%s for %.1f s", text.c_str(), static_cast<double>(now() - entry->began) * 1e-9);
}

/// How a rank was lost and what it did last; `witness` has told us, if it is not empty.
std::string Group::lost(int rank, const std::string& witness) const {
    const std::string how = arena_->fate(world_rank(rank));
    return format("%s %s%s; its last call was %s", who(rank).c_str(), how.c_str(),
                  witness.empty() ? "" : (", as " + witness + " has seen").c_str(),
                  deed(rank).c_str());
}

std::string Group::who(int rank) const {
    const int world = world_rank(rank);
    const int pid = arena_->resident(world).pid.load(std::memory_order_relaxed);
    if (size_ == arena_->size() && world == rank) return format("rank %d (pid %d)", rank, pid);
    return format("rank %d (world rank %d, pid %d)", rank, world, pid);
}

}  // namespace unisono
