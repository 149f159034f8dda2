// native/heap.hpp: memory for the arrays of a rank, in the file of the job, so that its peers can
// read them where they are.
//
// A heap takes segments of the file, for good, and divides them into blocks of whole pages. Only
// blocks in use have pages, and a few that were used last: the kernel clears every page that it
// gives, so memory that comes and goes would cost more than the calls it is for. What is freed
// beyond that goes back to the kernel at once, for all processes that have it mapped.
//
// Blocks outlive the rank's world: a heap that is closed gives nothing away any more, and ends with
// its last block. In a forked child the arrays of its parent can be read, and what the child writes
// to them is its own; they are no shared memory there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "arena.hpp"

namespace unisono {

/// The arrays' memory of one rank. Thread-safe.
class Heap : public std::enable_shared_from_this<Heap> {
public:
    explicit Heap(std::shared_ptr<Arena> arena);

    /// Memory of at least `bytes`, on a page of its own. Throws Failure(memory), or Failure(closed)
    /// if the heap is closed or was made before a fork.
    void* allocate(std::size_t bytes, bool zeroed);

    /// Gives unused memory back. Blocks in use stay until they are freed; there are no new ones.
    void close() noexcept;

    /// Frees a block of any heap; false if the address is in none.
    static bool free(void* address) noexcept;

    /// Bytes of the block at `address`; 0 if it is in no heap.
    static std::size_t block_bytes(const void* address) noexcept;

    static constexpr std::uint64_t nowhere = ~std::uint64_t{0};

    /// Where in the file of this job some memory is; `nowhere` if it is in no heap of it.
    static std::uint64_t find(const Arena& arena, const void* address, std::size_t bytes) noexcept {
        const auto first = reinterpret_cast<std::uintptr_t>(address);
        return near(first) ? find_segment(arena, first, bytes) : nowhere;
    }

    /// Bytes of blocks in use, and of freed ones that still have pages.
    std::size_t used_bytes() const noexcept;
    std::size_t kept_bytes() const noexcept;

private:
    struct Segment;
    struct Registry;

    /// Whether an address lies between the first segment and the last.
    static bool near(std::uintptr_t address) noexcept {
        // Relaxed: who has an address of a heap got it after these were set.
        return address >= lowest_.load(std::memory_order_relaxed) &&
               address < highest_.load(std::memory_order_relaxed);
    }
    static Registry& registry();
    static std::uint64_t find_segment(const Arena& arena, std::uintptr_t first,
                                      std::size_t bytes) noexcept;
    bool is_inherited() const noexcept;
    void* take(std::size_t bytes, bool zeroed);
    std::uintptr_t take_kept(std::size_t bytes);
    std::uintptr_t take_range(std::size_t bytes);
    void add_segment(std::size_t bytes);
    void give_back(std::uintptr_t address, std::size_t bytes) noexcept;
    bool drop_kept() noexcept;

    inline static std::atomic<std::uintptr_t> lowest_{~std::uintptr_t{0}};  ///< of all segments
    inline static std::atomic<std::uintptr_t> highest_{0};

    // Guarded by the mutex of the registry, as everything here.
    std::shared_ptr<Arena> arena_;
    std::multimap<std::size_t, std::uintptr_t> kept_;  ///< freed blocks that have pages, by bytes
    std::size_t kept_bytes_ = 0;
    std::size_t used_bytes_ = 0;
    bool closed_ = false;
    std::uint32_t forks_;  ///< how many there had been when the heap was made
};

}  // namespace unisono
