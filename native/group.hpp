// native/group.hpp: one group of ranks in the arena: its members, its slots, and its steps.
//
// Every collective is a sequence of steps. In a step a rank writes into its own slot, passes a
// barrier and then reads the slots of others. Each rank has two slots, used alternately (`parity`),
// so one barrier per step is enough: a rank that writes a slot for step s + 2 has passed the
// barrier of step s + 1, and its peers reached that one only after they had finished reading step
// s.
//
// The first barrier of a call carries a fingerprint of the call. Every rank compares all of them
// before it uses any data. All ranks see the same fingerprints, so all come to the same result:
// the call fails everywhere or nowhere, and after a mismatch the group is still in step.
//
// That is why verbs with a root wait for all ranks, too. A sender could return once its slot is
// full, and a receiver once the root has arrived: but then it would learn only in its next call
// that another rank has made a different call, or has died, while that rank has learned it in this
// one; from then on they would not be in step, and a program that ends would never learn it.
//
// Where the kernel allows it, long parts take one copy: in a step a rank publishes the address of
// its own memory instead of filling its slot, and after the barrier its peers read there. The call
// ends with one more barrier: nobody returns to its caller, who may then free that memory or change
// it, before all have read. If a rank leaves the call earlier, for any reason, its peers may read
// anything; but it has not arrived at that last barrier, so the call fails on all of them.
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
    std::atomic<std::uint64_t> memory[2];  ///< by parity; what peers may read, see publish_memory()
    std::atomic<std::uint32_t> departed{
        0};                          ///< 1 after it has left for good; others set it for dead ranks
    alignas(64) PackedCall call[2];  ///< by parity; read if fingerprints differ
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

    /// Begins a step: switches to the slots of the other parity.
    void begin_step() noexcept { ++step_; }

    /// Makes sure that our two slots have pages for `bytes`, which is at most `slot_bytes`.
    void commit_slot(std::size_t bytes);

    std::byte* slot(int rank) const noexcept {
        return slots_ + (static_cast<std::size_t>(step_ & 1) * size_ + rank) * slot_bytes_;
    }
    std::size_t slot_bytes() const noexcept { return slot_bytes_; }

    /// Publishes where peers may read our own memory in this step; 0: nowhere.
    void publish_memory(std::uint64_t address) noexcept {
        // Relaxed: the store of the turn in barrier() orders it.
        members_[rank_].memory[step_ & 1].store(address, std::memory_order_relaxed);
    }

    /// What a peer has published in this step; the barrier has been passed.
    std::uint64_t memory(int peer) const noexcept {
        return members_[peer].memory[step_ & 1].load(std::memory_order_relaxed);
    }

    /// Whether all members can read each other's memory. All find the answer in their first call,
    /// and use it from the second one on.
    bool reads_peers() const noexcept { return reads_peers_; }

    /// The sizes of parts for which one copy pays; none before all members know that they can read.
    SingleCopyRange single_copy_range(Verb verb) const noexcept {
        return single_copy_[static_cast<std::size_t>(verb) % SingleCopyTable::verbs];
    }

    /// Copies memory of a peer, `offset` bytes behind what it has published in this step. Throws
    /// Failure(lost) if the peer has died or has left the call.
    void read_peer(int peer, std::size_t offset, std::byte* target, std::size_t bytes);

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

    /// How to store into our slot: plain if the peers share a near cache, streaming if they do not,
    /// because plain stores would have to fetch each line back from the peer that has read it.
    StoreMode staging() const noexcept { return staging_; }

    /// Chooses between the two by timing barriers, in every 32nd call that is not small. All ranks
    /// call it at the same point of a call that was checked.
    void probe(std::size_t bytes);

private:
    /// Throws Failure(system) unless all of these are ranks of the job.
    static void check_ranks(const Arena& arena, const std::vector<int>& world_ranks);

    std::uint64_t* rows(int rank) const noexcept {
        return rows_ + (static_cast<std::size_t>(step_ & 1) * size_ + rank) * 2 * size_;
    }
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
    std::uint32_t probes_ = 0;
    StoreMode staging_ = StoreMode::plain;
    bool uneven_ = false;  ///< counts of the checked call differ by rank; see matrix_
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
