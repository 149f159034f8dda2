// native/group.hpp: one group of ranks in the arena: its members, its slots, and its steps.
//
// Every collective is a sequence of steps. In a step a rank writes into its own slot, passes a
// barrier and then reads the slots of others. Each rank has two slots, used alternately (`parity`),
// so one barrier per step is enough: a rank that writes a slot for step s + 2 has passed the
// barrier of step s + 1, and its peers reached that one only after they had finished reading step
// s.
//
// Where it pays, two ranks do not begin each step at the same place of their slots, but go through
// them (`rotates`). A line that was written two steps ago is still in the cache of the core that
// has read it, and has to be taken from there. One that was written a whole slot ago is in the
// cache that the cores share. No barrier depends on places: a step has its slot for itself, all of
// it.
//
// The first barrier of a call carries a fingerprint of the call. Every rank compares all of them
// before it uses any data. All ranks see the same fingerprints, so all come to the same result:
// the call fails everywhere or nowhere, and after a mismatch the group is still in step.
//
// That is why verbs with a root wait for all ranks, too. A sender could return once its slot is
// full, a receiver once the root has arrived, and both could compare calls when they make their
// next one. No wrong number would come of it. But a call would have succeeded on one rank that is
// an error on the others; a program that ends would never learn it; and a rank that gets the error
// of call k in call k + 1 would have to make that call with the others first, or they would not be
// in step. It would save a sender the way of one cache line, some 0.2 us, in calls of one step.
// Longer ones gain nothing: the root may fill a slot again, or a sender its own, only when all who
// read it have done so, which is what the barrier of the next step says.
//
// Where the kernel allows it, long parts take one copy: in a step a rank publishes the address of
// its own memory instead of filling its slot, and after the barrier its peers read there. The call
// ends with one more barrier: nobody returns to its caller, who may then free that memory or change
// it, before all have read. If a rank leaves the call earlier, for any reason, its peers may read
// anything; but it has not arrived at that last barrier, so the call fails on all of them. Memory
// of a heap (heap.hpp) is read in the same way, without the kernel: peers have it mapped, and only
// for reading, so that nobody can change what belongs to a rank that has left the call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.hpp"
#include "call.hpp"
#include "kernels.hpp"

namespace unisono {

/// One rank's state in a group, in cache lines of its own. Only that rank writes it, except for
/// `turn.sleepers`, `departed`, and what shut_out() does to `turn`.
struct alignas(128) Member {
    WaitWord turn;  ///< twice the number of barriers reached; odd: shut out of the next one
    std::atomic<std::uint32_t> gave_up{0};    ///< why this rank has left the group; see LeaveReason
    std::atomic<std::uint32_t> shrinking{0};  ///< see ShrinkMark
    std::atomic<std::uint64_t> fingerprint[2];  ///< by parity; in the same cache line as the turn
    std::atomic<std::uint64_t> memory[2];       ///< by parity; what peers may read, see Offer
    std::atomic<std::uint32_t> departed{
        0};  ///< 1 after it has left for good; others set it for dead ranks
    std::atomic<std::uint32_t> coming{0};  ///< the number of a call; a hint, see peers_come()
    alignas(64) PackedCall call[2];        ///< by parity; read if fingerprints differ
};

/// Whether a rank waits in shrink(), or did so until its deadline or Ctrl-C.
enum class ShrinkMark : std::uint32_t { none, waiting, gave_up };

/// Why a rank has left; in shared memory with 1 + the rank that it blames in the upper bits. All
/// reasons but `closed` and `shrinking` end a call, which then cannot succeed on any other rank.
enum class LeaveReason : std::uint32_t {
    none,
    closed,
    stopped,
    timeout,
    interrupted,
    lost,
    memory,
    shrinking
};

/// What a rank publishes about its own memory: 0 if peers cannot read it, else an address, or with
/// `in_file` an offset in the file of the job; whether its result is in the file, too; and whether
/// it has left its slot empty.
struct Offer {
    static constexpr std::uint64_t in_file = std::uint64_t{1} << 63;
    static constexpr std::uint64_t slot_is_empty = std::uint64_t{1} << 62;
    static constexpr std::uint64_t result_in_file = std::uint64_t{1} << 61;

    std::uint64_t word = 0;

    bool is_readable() const noexcept { return (word & ~slot_is_empty) != 0; }
    bool is_in_file() const noexcept { return (word & in_file) != 0; }
    bool has_result_in_file() const noexcept { return (word & result_in_file) != 0; }
    bool is_empty_slot() const noexcept { return (word & slot_is_empty) != 0; }
    std::uint64_t place() const noexcept {
        return word & ~(in_file | slot_is_empty | result_in_file);
    }
};

/// The members of a group; messages in progress keep it alive after the group.
struct GroupMembers {
    std::vector<int> world_ranks;
    std::shared_ptr<Mapping> mapping;
    const Member* members = nullptr;

    /// Whether a member has left the group, for any reason.
    bool left(int rank) const noexcept {
        // acquire: pairs with give_up(): what the rank sent before is in the ring.
        return members != nullptr && members[rank].gave_up.load(std::memory_order_acquire) != 0;
    }

    /// Whether a member has closed or shrunk the group. One that has only given up a call, because
    /// it has lost another, has left() too, but can still make a smaller group with the survivors.
    bool left_for_good(int rank) const noexcept {
        // acquire: pairs with mark_departed() and set_mark(): what it sent before is in the ring.
        return members != nullptr && (members[rank].departed.load(std::memory_order_acquire) != 0 ||
                                      members[rank].shrinking.load(std::memory_order_acquire) ==
                                          static_cast<std::uint32_t>(ShrinkMark::waiting));
    }
};

struct alignas(128) GroupHeader {
    std::uint32_t size;
    std::uint32_t number;
    std::uint64_t committed;            ///< bytes of every slot that had pages from the start
    std::atomic<std::uint32_t> closed;  ///< how many members have departed
    std::atomic<std::uint64_t>
        shrunk;          ///< offset of the group of the survivors; 0: there is none yet
    WaitWord published;  ///< 1 once `shrunk` is set
};

/// The offsets of a group's parts; they depend only on its number of ranks.
struct GroupLayout {
    explicit GroupLayout(int size);

    std::size_t world_ranks, members, rows, slots, slot, bytes;
};

/// A group as one rank sees it. Not thread-safe: Worker makes its calls one after the other.
class Group {
public:
    /// Prepares the memory of a new group and returns its offset. `whole`: commit all slots now.
    static std::size_t prepare(Arena& arena, const std::vector<int>& world_ranks, bool whole);

    /// The world ranks of the group at `offset`; all of them are ranks of the job.
    static std::vector<int> members_at(const Arena& arena, std::size_t offset);

    /// Joins the group of `size` ranks at `offset` as member `rank`.
    Group(std::shared_ptr<Arena> arena, std::size_t offset, int rank, int size);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    std::uint32_t number() const noexcept { return number_; }
    std::uint32_t page_number() const noexcept {
        return static_cast<std::uint32_t>(offset_ / page);
    }
    int world_rank(int rank) const noexcept {
        return group_members_->world_ranks[static_cast<std::size_t>(rank)];
    }
    const std::shared_ptr<const GroupMembers>& group_members() const noexcept {
        return group_members_;
    }
    Arena& arena() const noexcept { return *arena_; }

    /// Runs a collective to completion; throws Failure. After any failure but a mismatch the group
    /// is broken: the other members and later calls learn that.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Tells the other members that this rank is about to run its next call, and waits for
    /// `longest` until all of them have said so or run it; whether they have. A hint: they may
    /// still end, or be slow.
    bool peers_come(Clock::duration longest) noexcept;

    /// Whether calls can succeed: the group is neither closed nor broken.
    bool usable() const noexcept { return usable_.load(std::memory_order_relaxed); }

    /// Leaves the group; closing twice is allowed.
    void close() noexcept;

    /// Agrees with all members that are alive, except those in `exclude`, on a new group; returns
    /// its offset. This group cannot be used afterwards. May be called again after a failure.
    std::size_t shrink(const std::vector<int>& exclude, const Limits& limits);

    /// Ends a wait of another thread in this group soon.
    void stop() noexcept { stopping_.store(true, std::memory_order_relaxed); }

    // ---- for the collectives ----

    /// Begins a step that needs `bytes` of a slot: switches to the slots of the other parity, and
    /// after both to the next place in them. Long steps need all of a slot.
    void begin_step(std::size_t bytes = room) noexcept {
        if ((++step_ & 1) == 0) {
            next_place_ += advance_;
            if (next_place_ + room > slot_bytes_) next_place_ = 0;
        }
        place_ = bytes <= room ? next_place_ : 0;
    }

    /// Whether steps go through the slots. All ranks have the same answer in the same call. Then
    /// steps should store pieces of `rotating_piece`, and find `room` for two of them.
    bool rotates() const noexcept { return rotates_; }
    static constexpr std::size_t rotating_piece = std::size_t{128} << 10;
    static constexpr std::size_t room = 2 * rotating_piece;

    /// Makes steps go through the slots, or not. All ranks do that between the same two calls.
    /// Throws Failure(memory) if there are no pages for it.
    void set_rotates(bool rotates);

    /// Makes sure that our two slots have pages for `bytes`, which is at most `slot_bytes`.
    void commit_slot(std::size_t bytes);

    std::byte* slot(int rank) const noexcept {
        return slots_ + (static_cast<std::size_t>(step_ & 1) * size_ + rank) * slot_bytes_ + place_;
    }
    std::size_t slot_bytes() const noexcept { return slot_bytes_; }

    /// Publishes where peers may read our own memory in this step.
    void publish_memory(Offer offer) noexcept {
        // Relaxed: the store of the turn in barrier() orders it.
        members_[rank_].memory[step_ & 1].store(offer.word, std::memory_order_relaxed);
    }

    /// What a peer has published in this step; the barrier has been passed.
    Offer memory(int peer) const noexcept {
        return {members_[peer].memory[step_ & 1].load(std::memory_order_relaxed)};
    }

    /// Whether all members can read each other's memory. All find the answer in their first call,
    /// and use it from the second one on.
    bool reads_peers() const noexcept { return reads_peers_; }

    /// The sizes of parts for which one copy pays; none before all members know that they can read.
    SingleCopyRange single_copy_range(Verb verb) const noexcept {
        return single_copy_[static_cast<std::size_t>(verb) % SingleCopyTable::verbs];
    }

    /// Copies memory of a peer, `offset` bytes behind what it has offered. Throws Failure(lost) if
    /// the peer has died or has left the call.
    void read_peer(int peer, Offer offer, std::size_t offset, std::byte* target, std::size_t bytes,
                   StoreMode store);

    /// The same memory where we have it mapped; null if the peer has to be asked for a copy.
    const std::byte* peer_memory(Offer offer, std::size_t offset, std::size_t bytes) const {
        return offer.is_in_file() ? arena_->look_at(offer.place() + offset, bytes) : nullptr;
    }

    /// The last barrier of a call in which peers have read each other's memory.
    void closing_barrier();

    /// Private memory of `bytes` that the group keeps for its calls; a multiple of a page.
    std::byte* scratch(std::size_t bytes);

    /// Publishes the call; the next barrier carries it.
    void publish(const CallArguments& arguments);

    /// Publishes that we have arrived, and waits until all members have.
    void barrier();

    /// The consistency check, after the barrier that carried the call: throws Failure(mismatch)
    /// unless all ranks make the same call.
    void check_consistency(const CallArguments& arguments);

    /// Elements that rank `from` sends to rank `to` in the call that was checked.
    std::uint64_t sends(int from, int to) const noexcept {
        return uneven_ ? matrix_[static_cast<std::size_t>(from * size_ + to)] : share_;
    }

    /// Whether counts differ by rank in the call that was checked.
    bool uneven() const noexcept { return uneven_; }

    /// Whether a rank has passed one count for all ranks in the call that was checked.
    bool has_one_count(int rank) const noexcept {
        return !uneven_ || one_count_[static_cast<std::size_t>(rank)];
    }

    /// The largest number of elements that any rank sends to any rank.
    std::uint64_t largest_share() const noexcept { return largest_; }

    /// How to store into our slot. Plain stores have to fetch each line back from the peer that has
    /// read it; streaming stores do not, but the peer may then have to read from memory. Which is
    /// faster depends on the processor, and on which of its cores the ranks run.
    StoreMode staging() const noexcept { return staging_; }

    /// Chooses between the two by timing both, and whether to go through the slots, once in many
    /// MiB of messages that are not small. All ranks call it at the same point of a call that was
    /// checked.
    void probe(std::size_t bytes);

private:
    /// Throws Failure(system) unless all of these are ranks of the job.
    static void check_ranks(const Arena& arena, const std::vector<int>& world_ranks);

    std::uint64_t* rows(int rank) const noexcept {
        return rows_ + (static_cast<std::size_t>(step_ & 1) * size_ + rank) * 2 * size_;
    }
    static constexpr std::size_t probed_bytes = std::size_t{32} << 10;
    Clock::duration probe_rotating(Clock::duration fixed);
    Clock::duration time_round(StoreMode store);
    bool reached(int peer) const noexcept;
    void wait_for(int peer);
    void check_peers();
    bool shut_out() noexcept;
    void check_given_up(bool arrived);
    [[noreturn]] void raise_given_up();
    [[noreturn]] void raise_departed(int peer, std::uint32_t word);
    [[noreturn]] void raise_unreadable(int peer, int error);
    std::string timeout_text() const;
    [[noreturn]] void expire(const std::string& how);
    void compare_all(const CallArguments& arguments);
    [[noreturn]] void raise_mismatch();
    void give_up(LeaveReason why, int blamed) noexcept;
    void mark_departed(int rank) noexcept;
    bool gone(int rank) const noexcept;
    ShrinkMark mark(int rank) const noexcept;
    void set_mark(ShrinkMark mark) noexcept;
    void await_mark(int peer, Clock::time_point deadline, const Limits& limits);
    std::vector<int> survivors(const std::vector<bool>& excluded) const;
    std::size_t publish_new_group(const std::vector<int>& ranks);
    [[noreturn]] void expire_shrink(const std::vector<int>& missing, double seconds) const;
    std::string last_call(int rank) const;
    std::string last_call_clause(int rank) const;
    std::string at_call_site(int rank, bool waited) const;
    std::string describe_loss(int rank, const std::string& witness) const;
    std::string describe_rank(int rank) const;

    std::shared_ptr<Arena> arena_;
    std::size_t offset_;
    std::uint32_t number_;
    std::size_t bytes_;
    std::shared_ptr<Mapping> mapping_;
    GroupHeader* header_;
    Member* members_;
    std::uint64_t* rows_;
    std::byte* slots_;
    std::size_t slots_offset_;
    std::size_t slot_bytes_;
    std::size_t committed_ = 0;
    int rank_;
    int size_;
    std::shared_ptr<const GroupMembers> group_members_;
    std::uint32_t turn_ = 0;
    std::uint32_t step_ = 0;
    std::uint32_t calls_ = 0;
    std::size_t until_probe_ = 0;  ///< bytes of messages until staging_ is chosen again
    StoreMode staging_ = StoreMode::plain;
    bool rotates_ = false;
    int pause_ = 0;               ///< how many probes leave rotation out, because it did not pay
    int rest_ = 0;                ///< and how many of them are left
    std::size_t next_place_ = 0;  ///< in bytes; depends only on calls that all ranks agreed on
    std::size_t place_ = 0;       ///< where the slots of this step begin
    std::size_t advance_ = 0;     ///< from one place to the next, by the size of the last call
    bool uneven_ = false;         ///< counts of the checked call differ by rank; see matrix_
    std::uint64_t share_ = 0;
    std::uint64_t largest_ = 0;
    std::vector<std::uint64_t>
        matrix_;                   ///< a copy, because peers may already publish the next call
    std::vector<bool> one_count_;  ///< by rank, if counts differ by rank
    bool checked_reads_ = false;   ///< whether reads_peers_ is known
    bool reads_peers_ = false;
    SingleCopyRange single_copy_[SingleCopyTable::verbs];  ///< a copy for groups of this size
    Clock::time_point reads_began_{};  ///< first read_peer() of a call; zero: there was none
    std::unique_ptr<std::byte, void (*)(void*)> scratch_{nullptr, nullptr};
    std::size_t scratch_bytes_ = 0;
    const Limits* limits_ = nullptr;
    std::atomic<bool> stopping_{false};
    std::atomic<bool> usable_{true};  ///< false after closed_ or broken_ is set
    bool closed_ = false;
    std::unique_ptr<Failure> broken_;  ///< what ended this group
};

}  // namespace unisono
