// native/arena.hpp: the memory that the ranks of one host share, and who lives in it.
//
// One memfd for each job; it never has a name, so nothing can be left behind. Its parts:
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
    std::atomic<std::uint64_t> trace_claimed;  ///< when a rank last began to write the job's trace
    std::atomic<std::uint64_t> trace_written;  ///< when a rank had last written it
};

/// One rank of the job, written by itself.
struct alignas(128) RankInfo {
    WaitWord doorbell;                   ///< rung when a message or room for one has come
    std::atomic<std::int32_t> pid{0};    ///< 0 until the rank has attached
    std::atomic<std::uint32_t> left{0};  ///< 1 once the rank has closed its world
    std::int32_t session = 0;
    std::uint64_t started = 0;              ///< when the process was started, by the kernel's count
    std::atomic<std::uint64_t> exiting{0};  ///< when the process began to end; 0: it has not
    std::atomic<std::uint64_t> ended{0};    ///< 2^32 + its status, by the first who has learnt it
    std::uint64_t cores[max_cores / 64] = {};
};

/// One ring of message cells from one rank to another. Each counter has a writer of its own.
struct Channel {
    alignas(128) std::atomic<std::uint64_t> written{0};  ///< cells filled, by the sender
    alignas(128) std::atomic<std::uint64_t> read{0};     ///< cells emptied, by the receiver
};

/// Where the parts of the arena stand, from the number of ranks alone.
struct ArenaLayout {
    explicit ArenaLayout(int size);

    std::size_t rank_infos, channels, logs, log, rings, cell, world;
};

inline constexpr std::uint64_t arena_magic = 0x6f6e6f73696e75;  // "unisono"
inline constexpr std::uint32_t arena_layout_version = 3;

/// A stretch of the memfd in this process's address space.
class Mapping {
public:
    Mapping(int fd, std::size_t offset, std::size_t bytes);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }

private:
    std::byte* data_;
    std::size_t bytes_;
};

/// One process's hold on the job's memory. Thread-safe. Ranks that are threads may share one.
class Arena {
public:
    /// Makes the memory for a job of `size` ranks and returns its descriptor.
    static int create(int size);

    /// Takes over the descriptor.
    explicit Arena(int fd);
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Says who we are, for the others to see.
    void register_rank(int rank);

    /// Says that this rank has left the job for good.
    void leave(int rank) noexcept;

    /// Opens a handle on every other rank's process and chooses how to wait. All have entered.
    void connect_peers(int rank);

    int size() const noexcept { return size_; }
    const SpinPolicy& spin_policy() const noexcept { return spin_policy_; }
    /// Whether some rank shares its cores with more ranks than it has cores; the same on all ranks.
    bool oversubscribed() const noexcept { return oversubscribed_; }

    JobHeader& header() const noexcept { return *header_; }
    RankInfo& rank_info(int rank) const noexcept { return rank_infos_[rank]; }
    Channel& channel(int from, int to) const noexcept { return channels_[from * size_ + to]; }
    std::byte* ring(int from, int to) const noexcept {
        return base_->data() + ring_offset(from, to);
    }

    /// Asks the kernel for the pages of a ring; the sender does, before it first writes.
    void commit_ring(int from, int to);

    /// Gives the pages of a ring back, which nobody reads or writes any more.
    void release_ring(int from, int to) noexcept;

    /// Room for a new group: fetches an offset that nobody else will get, within the file.
    std::size_t allocate(std::size_t bytes);

    /// Asks the kernel for pages; throws Failure(memory) with figures if there are none.
    void commit(std::size_t offset, std::size_t bytes);

    /// Gives pages back.
    void release(std::size_t offset, std::size_t bytes) noexcept;

    /// Throws Failure(system) unless a group of so many bytes may be there: others say where.
    void check_group_offset(std::size_t offset, std::size_t bytes) const;

    /// Maps a group, or returns the mapping that this process has already.
    std::shared_ptr<Mapping> map(std::size_t offset, std::size_t bytes);

    /// Drops the record of a mapping that nobody holds any more.
    void forget(std::size_t offset);

    /// Whether the process of a rank still runs. A stopped process does.
    bool alive(int rank) noexcept;

    /// Says that this rank's process is about to end, which others would like to see for
    /// themselves: what comes after tells them how.
    void announce_exit(int rank) noexcept;

    /// Whether a rank has said so and will soon have ended: then it pays to wait for that.
    bool about_to_end(int rank) noexcept;

    /// How a rank was lost: "was killed by SIGKILL", "is ending", as far as it can be known.
    std::string exit_reason(int rank);

    /// What a rank called last: its log as this process sees it. Empty until it has entered.
    Log& log(int rank) noexcept { return logs_[static_cast<std::size_t>(rank)]; }

    /// "all_reduce float32 x 8 sum (call 3) at train.py:88, which ended 0.2 s ago": what a rank
    /// does or did last. `group` is whose business it is; empty if the rank has called nothing yet.
    std::string last_call_text(int rank, std::uint32_t group);

    /// Tries to be the one who writes the job's trace; only one may in each second.
    bool claim_trace_write() noexcept;

    /// Says that the trace has been written since it was last claimed.
    void finish_trace_write() noexcept {
        // Relaxed, as in claim_trace_write().
        header_->trace_written.store(now(), std::memory_order_relaxed);
    }

    /// Whether whoever claimed the trace last has written it.
    bool trace_is_written() const noexcept {
        return header_->trace_written.load(std::memory_order_relaxed) >=
               header_->trace_claimed.load(std::memory_order_relaxed);
    }

    int fd() const noexcept { return fd_; }

    std::size_t world_offset() const noexcept { return world_offset_; }

    /// Cells of a ring, and the bytes of each; smaller where there are many ranks.
    static constexpr std::size_t ring_cells = 4;
    std::size_t cell_bytes() const noexcept { return cell_bytes_; }

private:
    struct AdoptFd {};

    /// Only holds the descriptor: the other constructor may fail after this one, and the destructor
    /// closes it all the same.
    Arena(int fd, AdoptFd) noexcept : fd_(fd) {}

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
    std::vector<int> handles_;  ///< a pidfd for each rank, -1 for ourselves
    std::mutex mutex_;          ///< guards handles_ and mappings_
    std::map<std::size_t, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace unisono
