// native/arena.hpp: the memory that the ranks of one host share, and the processes that use it.
//
// One file for each job; it never has a name, so nothing can be left behind. Its parts:
//
//   JobHeader            size of the world, the next free offset, the next group number
//   RankInfo[size]       one for each rank: pid, session, cores, doorbell for messages
//   Channel[size*size]   message rings from each rank to each rank: counters only
//   LogMemory[size]      what each rank called last (log.hpp)
//   ring cells           the bytes of the rings
//   groups               the world first, then subgroups as they are made (group.hpp)
//
// Pages exist only where `commit` has asked the kernel for them, so a host that is short of memory
// answers with an error and not with SIGBUS. Each rank commits what it writes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "log.hpp"
#include "memory_file.hpp"
#include "process.hpp"
#include "single_copy.hpp"
#include "wait.hpp"

namespace unisono {

inline constexpr int max_ranks = 512;
inline constexpr int max_cores = 1024;
inline constexpr std::size_t page = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

struct alignas(128) JobHeader {
    std::uint64_t magic;
    std::uint32_t layout_version;  ///< changes with any struct in shared memory
    std::uint32_t size;
    std::atomic<std::uint64_t> next_offset;
    std::atomic<std::uint32_t> next_group;
    std::atomic<std::uint64_t> trace_claimed;  ///< when a rank last began to write the trace file
    std::atomic<std::uint64_t> trace_written;  ///< when a rank last finished writing it
    SingleCopyTable single_copy;
};

/// Whether a rank can read the memory of all other ranks, and whether the kernel copies it nearly
/// as fast as the rank itself could.
enum class ReadsPeers : std::uint32_t { unknown, no, slowly, quickly };

/// What one rank tells the others about itself. Only that rank writes it, except for `ended`.
struct alignas(128) RankInfo {
    WaitWord doorbell;                   ///< rung when a message, or space for one, is available
    std::atomic<std::int32_t> pid{0};    ///< 0 until the rank has registered
    std::atomic<std::uint32_t> left{0};  ///< 1 once the rank has closed its world
    std::int32_t session = 0;
    std::uint64_t started = 0;  ///< start time of the process, in the kernel's clock ticks
    std::atomic<std::uint64_t> exiting{0};  ///< when the process began to exit; 0: it has not
    std::atomic<std::uint64_t> ended{
        0};                           ///< 2^32 + exit status, set by the first rank that learns it
    std::uint64_t probe_address = 0;  ///< a word of private memory, for others to try to read
    std::uint64_t probe_value = 0;    ///< what is there
    std::atomic<std::uint32_t> reads_peers{0};  ///< see ReadsPeers; final before its first call
    std::uint64_t cores[max_cores / 64] = {};
};

/// One ring of message cells from one rank to another. Each counter has one writer.
struct Channel {
    alignas(128) std::atomic<std::uint64_t> written{0};  ///< cells filled, by the sender
    alignas(128) std::atomic<std::uint64_t> read{0};     ///< cells emptied, by the receiver
};

/// The offsets of the arena's parts; they depend only on the number of ranks.
struct ArenaLayout {
    explicit ArenaLayout(int size);

    std::size_t rank_infos, channels, logs, log, rings, cell, world;
};

inline constexpr std::uint64_t arena_magic = 0x6f6e6f73696e75;  // "unisono"
inline constexpr std::uint32_t arena_layout_version = 5;

/// The job's memory as one process sees it. Thread-safe. Ranks that are threads may share one.
class Arena {
public:
    /// Creates the memory of a job of `size` ranks and returns its file descriptor.
    static int create(int size);

    /// Takes ownership of the file descriptor.
    explicit Arena(int fd);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Publishes this process as rank `rank`.
    void register_rank(int rank);

    /// Publishes that this rank has left the job, for good.
    void leave(int rank) noexcept;

    /// Opens a handle on every other rank's process, chooses how to wait, and finds out whether
    /// this rank can read the memory of all others. All ranks have registered.
    void connect_peers(int rank);

    int size() const noexcept { return size_; }
    const SpinPolicy& spin_policy() const noexcept { return spin_policy_; }
    /// Whether some rank shares its cores with more ranks than it has cores. All ranks get the same
    /// answer.
    bool oversubscribed() const noexcept { return oversubscribed_; }
    /// Whether there are two cores for each rank, so that a thread beside it may wait awake.
    bool spare_cores() const noexcept { return spare_cores_; }

    /// Whether a rank can read the memory of all others; final once it has begun a call.
    ReadsPeers reads_peers(int rank) const noexcept {
        // acquire: pairs with probe_peers().
        return static_cast<ReadsPeers>(rank_info(rank).reads_peers.load(std::memory_order_acquire));
    }

    /// The process of a rank, as it was when we connected.
    pid_t pid(int rank) const noexcept { return pids_[static_cast<std::size_t>(rank)]; }

    /// The sizes of parts for which one copy pays; the same on all ranks. `quickly`: for all of
    /// them.
    SingleCopyRange single_copy_range(Verb verb, int ranks, bool quickly) const noexcept {
        return header_->single_copy.range(verb, ranks, quickly, oversubscribed_);
    }

    JobHeader& header() const noexcept { return *header_; }
    RankInfo& rank_info(int rank) const noexcept { return rank_infos_[rank]; }
    Channel& channel(int from, int to) const noexcept { return channels_[from * size_ + to]; }
    std::byte* ring(int from, int to) const noexcept {
        return base_->data() + ring_offset(from, to);
    }

    /// Asks the kernel for the pages of a ring; its sender does that before its first write.
    void commit_ring(int from, int to);

    /// Returns the pages of a ring that nobody uses any more to the kernel.
    void release_ring(int from, int to) noexcept;

    /// Reserves an offset for a new group, and makes the file long enough for it.
    std::size_t allocate(std::size_t bytes);

    /// Asks the kernel for pages; throws Failure(memory), with sizes, if there are none.
    void commit(std::size_t offset, std::size_t bytes);

    /// Returns pages to the kernel.
    void release(std::size_t offset, std::size_t bytes) noexcept;

    /// Throws Failure(system) unless a group of so many bytes can be at `offset`, which comes from
    /// another rank.
    void check_group_offset(std::size_t offset, std::size_t bytes) const;

    /// Maps a group, or returns the mapping that this process already has.
    std::shared_ptr<Mapping> map(std::size_t offset, std::size_t bytes);

    /// Forgets a mapping that nobody uses any more.
    void forget(std::size_t offset);

    /// Memory of the file, for reading: what another rank has published. The whole file is mapped
    /// once, and again when it has grown; that takes no memory, and what its owner frees is gone
    /// here, too. Throws Failure(system) if nothing can be there.
    const std::byte* look_at(std::uint64_t offset, std::size_t bytes) {
        // acquire: pairs with extend_view(), which sets the view first.
        if (offset + bytes > viewed_.load(std::memory_order_acquire)) extend_view(offset, bytes);
        return view_.load(std::memory_order_relaxed) + offset;
    }

    /// Whether the process of a rank exists. A stopped process does.
    bool alive(int rank) noexcept;

    /// Publishes that this rank's process is about to exit. Others then wait a moment for its exit
    /// status, so that they can report it.
    void announce_exit(int rank) noexcept;

    /// Whether a rank has announced its exit so recently that its exit status is worth waiting for.
    bool about_to_end(int rank) noexcept;

    /// How a rank was lost, as far as it is known: "was killed by SIGKILL", "is exiting".
    std::string exit_reason(int rank);

    /// The last calls of a rank. Empty until the rank has registered.
    Log& log(int rank) noexcept { return logs_[static_cast<std::size_t>(rank)]; }

    /// The current or last call of a rank, as a text for errors of `group`: "all_reduce float32 x 8
    /// sum (call 3) at train.py:88, which ended 0.2 s ago". Empty if it has made no call yet.
    std::string last_call_text(int rank, std::uint32_t group);

    /// Claims to write the job's trace file; true for at most one rank in each second.
    bool claim_trace_write() noexcept;

    /// Publishes that the claimed trace file is written.
    void finish_trace_write() noexcept {
        // Relaxed, as in claim_trace_write().
        header_->trace_written.store(now(), std::memory_order_relaxed);
    }

    /// Whether the rank that claimed the trace file last has written it.
    bool trace_is_written() const noexcept {
        return header_->trace_written.load(std::memory_order_relaxed) >=
               header_->trace_claimed.load(std::memory_order_relaxed);
    }

    int fd() const noexcept { return fd_; }

    std::size_t world_offset() const noexcept { return world_offset_; }

    /// Cells of a ring, and the bytes of each cell: fewer if there are many ranks.
    static constexpr std::size_t ring_cells = 4;
    std::size_t cell_bytes() const noexcept { return cell_bytes_; }

private:
    struct AdoptFd {};

    /// Only owns the descriptor: if the public constructor fails after this one, the destructor
    /// still closes it.
    Arena(int fd, AdoptFd) noexcept : fd_(fd) {}

    /// Offsets in the file stay below, also because a Record has 32 bits for a page number.
    static constexpr std::uint64_t max_offset = std::uint64_t{1} << 44;

    void open_handles(int rank);
    void probe_peers(int rank);
    void extend_view(std::uint64_t offset, std::size_t bytes);

    std::size_t ring_offset(int from, int to) const noexcept {
        return rings_offset_ +
               static_cast<std::size_t>(from * size_ + to) * ring_cells * cell_bytes_;
    }

    int fd_;
    int size_ = 0;
    std::size_t cell_bytes_ = 0;
    std::size_t rings_offset_ = 0;
    std::size_t world_offset_ = 0;
    std::shared_ptr<Mapping> base_;
    JobHeader* header_ = nullptr;
    RankInfo* rank_infos_ = nullptr;
    Channel* channels_ = nullptr;
    std::unique_ptr<Log[]> logs_;
    SpinPolicy spin_policy_;
    bool oversubscribed_ = false;
    bool spare_cores_ = true;
    std::vector<ProcessHandle> handles_;  ///< by rank
    std::vector<pid_t> pids_;  ///< by rank: a copy, so that no other process is ever read
    std::vector<std::uint64_t> probe_words_;  ///< by rank, for peers to read
    std::mutex mutex_;                        ///< guards handles_, mappings_ and views_
    std::map<std::size_t, std::weak_ptr<Mapping>> mappings_;
    std::vector<std::unique_ptr<Mapping>> views_;  ///< of the whole file; a call may use an old one
    std::atomic<const std::byte*> view_{nullptr};  ///< the last of them
    std::atomic<std::uint64_t> viewed_{0};         ///< bytes of the file that it surely shows
};

}  // namespace unisono
