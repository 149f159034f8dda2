// native/arena.hpp: the memory that the ranks of one host share, and who lives in it.
//
// One memfd for each job; it never has a name, so nothing can be left behind. Its parts:
//
//   JobHeader            size of the world, the next free offset, the next group number
//   Resident[size]       one for each rank: pid, session, cores, doorbell for messages
//   Channel[size*size]   message rings from each rank to each rank: counters only
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
#include <vector>

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
    std::uint32_t layout;  ///< changes with any struct in shared memory
    std::uint32_t size;
    std::atomic<std::uint64_t> next_offset;
    std::atomic<std::uint32_t> next_group;
};

/// One rank of the job, written by itself.
struct alignas(128) Resident {
    Signal doorbell;                     ///< rung when a message or room for one has come
    std::atomic<std::int32_t> pid{0};    ///< 0 until the rank has attached
    std::atomic<std::uint32_t> left{0};  ///< 1 once the rank has closed its world
    std::int32_t session = 0;
    std::uint64_t cores[max_cores / 64] = {};
};

/// One ring of message cells from one rank to another. Each counter has a writer of its own.
struct Channel {
    alignas(128) std::atomic<std::uint64_t> written{0};  ///< cells filled, by the sender
    alignas(128) std::atomic<std::uint64_t> read{0};     ///< cells emptied, by the receiver
};

/// A stretch of the memfd in this process's address space.
class Mapping {
public:
    Mapping(int fd, std::size_t offset, std::size_t bytes);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const noexcept { return data_; }

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
    void enter(int rank);

    /// Says that this rank has left the job for good.
    void leave(int rank) noexcept;

    /// Opens a handle on every other rank's process and chooses how to wait. All have entered.
    void meet(int rank);

    int size() const noexcept { return size_; }
    const Patience& patience() const noexcept { return patience_; }
    /// Whether some rank shares its cores with more ranks than it has cores; the same on all ranks.
    bool crowded() const noexcept { return crowded_; }

    JobHeader& header() const noexcept { return *header_; }
    Resident& resident(int rank) const noexcept { return residents_[rank]; }
    Channel& channel(int from, int to) const noexcept { return channels_[from * size_ + to]; }
    std::byte* ring(int from, int to) const noexcept {
        return base_->data() + ring_offset(from, to);
    }

    /// Asks the kernel for the pages of a ring; the sender does, before it first writes.
    void commit_ring(int from, int to);

    /// Room for a new group: fetches an offset that nobody else will get.
    std::size_t allocate(std::size_t bytes);

    /// Asks the kernel for pages; throws Failure(memory) with figures if there are none.
    void commit(std::size_t offset, std::size_t bytes);

    /// Gives pages back.
    void release(std::size_t offset, std::size_t bytes) noexcept;

    /// Maps a stretch, or returns the mapping that this process has already.
    std::shared_ptr<Mapping> map(std::size_t offset, std::size_t bytes);

    /// Drops the entry of a mapping that nobody holds any more.
    void forget(std::size_t offset);

    /// Whether the process of a rank still runs. A stopped process does.
    bool alive(int rank) noexcept;

    std::size_t world_offset() const noexcept { return world_offset_; }

    /// Cells of a ring, and the bytes of each; smaller where there are many ranks.
    static constexpr std::size_t ring_cells = 4;
    std::size_t cell_bytes() const noexcept { return cell_bytes_; }

private:
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
    Resident* residents_ = nullptr;
    Channel* channels_ = nullptr;
    Patience patience_;
    bool crowded_ = false;
    std::vector<int> handles_;  ///< a pidfd for each rank, -1 for ourselves
    std::mutex mutex_;          ///< guards handles_ and mappings_
    std::map<std::size_t, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace unisono
