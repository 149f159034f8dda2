// native/heap.cpp: segments, blocks, and what a fork does to them.
#include "heap.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

namespace unisono {

namespace {

constexpr std::size_t smallest_segment = std::size_t{64} << 20;
constexpr std::size_t most_kept = std::size_t{64} << 20;
constexpr std::size_t most = std::size_t{1} << 50;  // more than any host has

}  // namespace

/// A part of the file that one heap has, mapped at an address that stays.
struct Heap::Segment {
    std::shared_ptr<Heap> heap;
    std::shared_ptr<Arena> arena;
    std::unique_ptr<Mapping> mapping;
    std::size_t offset;
    std::map<std::uintptr_t, std::size_t> free;  ///< ranges without pages, by address
    std::map<std::uintptr_t, std::size_t> used;  ///< blocks, by address
    std::size_t taken = 0;                       ///< blocks that are neither free nor kept

    std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(mapping->data()); }
    std::uintptr_t end() const { return begin() + mapping->bytes(); }
    std::size_t offset_of(std::uintptr_t address) const { return offset + (address - begin()); }
};

/// All segments of this process. Never destroyed, because arrays may be freed at any time.
struct Heap::Registry {
    Registry() {
        pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                       [] { registry().inherit(); });
    }

    /// In a forked child: what it writes must not reach its parent's arrays, and so its parent's
    /// peers. Only system calls: other threads of the parent may have held any lock.
    void inherit() noexcept {
        for (auto& [begin, segment] : segments) {
            if (segment.heap->is_inherited()) continue;
            mmap(segment.mapping->data(), segment.mapping->bytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, segment.arena->fd(),
                 static_cast<off_t>(segment.offset));
        }
        ++forks;
        mutex.unlock();
    }

    /// The segment that has this address, or null.
    Segment* at(std::uintptr_t address) noexcept {
        auto after = segments.upper_bound(address);
        if (after == segments.begin()) return nullptr;
        Segment& segment = std::prev(after)->second;
        return address < segment.end() ? &segment : nullptr;
    }

    std::mutex mutex;
    std::map<std::uintptr_t, Segment> segments;
    std::uint32_t forks = 0;  ///< between this process and the one that loaded us
};

Heap::Registry& Heap::registry() {
    static auto* all = new Registry;
    return *all;
}

Heap::Heap(std::shared_ptr<Arena> arena) : arena_(std::move(arena)), forks_(registry().forks) {}

bool Heap::is_inherited() const noexcept { return forks_ != registry().forks; }

void* Heap::allocate(std::size_t bytes, bool zeroed) {
    const std::size_t whole = round_up(std::clamp<std::size_t>(bytes, 1, most), page);
    for (;;) {
        try {
            return take(whole, zeroed);
        } catch (const Failure& failure) {
            if (failure.kind != FailureKind::memory || !drop_kept()) throw;
        }
    }
}

void* Heap::take(std::size_t bytes, bool zeroed) {
    std::unique_lock lock(registry().mutex);
    if (is_inherited() || closed_)
        throw Failure(FailureKind::closed, is_inherited() ? "this process was forked after init"
                                                          : "the world of this rank is closed");
    if (const std::uintptr_t kept = take_kept(bytes); kept != 0) {
        lock.unlock();
        if (zeroed) std::memset(reinterpret_cast<void*>(kept), 0, bytes);
        return reinterpret_cast<void*>(kept);
    }
    std::uintptr_t address = take_range(bytes);
    if (address == 0) {
        check_available(bytes);  // first: a segment is never given back
        add_segment(bytes);
        address = take_range(bytes);
    }
    Segment& segment = *registry().at(address);  // stays, because the block counts as taken
    lock.unlock();
    // Outside of the lock: the kernel clears the pages, and other threads may want to free.
    try {
        segment.arena->commit(segment.offset_of(address), bytes);
    } catch (const Failure&) {
        give_back(address, bytes);
        throw;
    }
    // All at once is faster than page by page at the first use; older kernels cannot.
    madvise(reinterpret_cast<void*>(address), bytes, MADV_POPULATE_WRITE);
    lock.lock();
    segment.used.emplace(address, bytes);
    used_bytes_ += bytes;
    return reinterpret_cast<void*>(address);
}

/// A freed block that still has pages and is not much too large; 0 if there is none.
std::uintptr_t Heap::take_kept(std::size_t bytes) {
    const auto found = kept_.lower_bound(bytes);
    if (found == kept_.end() || found->first - bytes > bytes / 4) return 0;
    const auto [size, address] = *found;
    kept_.erase(found);
    kept_bytes_ -= size;
    used_bytes_ += size;
    Segment& segment = *registry().at(address);
    segment.used.emplace(address, size);
    ++segment.taken;
    return address;
}

/// The smallest free range that is long enough, without pages; 0 if there is none.
std::uintptr_t Heap::take_range(std::size_t bytes) {
    Segment* best = nullptr;
    std::map<std::uintptr_t, std::size_t>::iterator range;
    for (auto& [begin, segment] : registry().segments) {
        if (segment.heap.get() != this) continue;
        for (auto free = segment.free.begin(); free != segment.free.end(); ++free)
            if (free->second >= bytes && (best == nullptr || free->second < range->second)) {
                best = &segment;
                range = free;
            }
    }
    if (best == nullptr) return 0;
    const auto [address, length] = *range;
    best->free.erase(range);
    if (length > bytes) best->free.emplace(address + bytes, length - bytes);
    ++best->taken;
    return address;
}

/// Takes a new segment of the file. Powers of two, so that arrays that grow do not use up the file.
void Heap::add_segment(std::size_t bytes) {
    const std::size_t length = std::max(smallest_segment, std::bit_ceil(bytes));
    Segment made;
    made.offset = arena_->allocate(length);
    made.mapping = std::make_unique<Mapping>(arena_->fd(), made.offset, length);
    made.arena = arena_;
    made.heap = shared_from_this();
    made.free.emplace(made.begin(), length);
    // Relaxed: see near().
    lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), made.begin()),
                  std::memory_order_relaxed);
    highest_.store(std::max(highest_.load(std::memory_order_relaxed), made.end()),
                   std::memory_order_relaxed);
    const std::uintptr_t begin = made.begin();
    registry().segments.emplace(begin, std::move(made));
}

/// Returns the pages of a block that is neither used nor kept to the kernel, and its range to its
/// segment; of a closed heap, the last one ends the segment.
void Heap::give_back(std::uintptr_t address, std::size_t bytes) noexcept {
    Segment* segment;
    {
        const std::lock_guard lock(registry().mutex);
        segment = registry().at(address);
    }
    // The segment stays: the block counts as taken. Its next user gets zeros.
    segment->arena->release(segment->offset_of(address), bytes);
    std::map<std::uintptr_t, Segment>::node_type ended;  // unmapped after the lock
    const std::lock_guard lock(registry().mutex);
    auto after = segment->free.upper_bound(address);
    if (after != segment->free.end() && after->first == address + bytes) {
        bytes += after->second;
        after = segment->free.erase(after);
    }
    if (after != segment->free.begin() &&
        std::prev(after)->first + std::prev(after)->second == address)
        std::prev(after)->second += bytes;
    else
        segment->free.emplace(address, bytes);
    if (--segment->taken == 0 && closed_) ended = registry().segments.extract(segment->begin());
}

/// Gives back all freed blocks that still have pages; false if there were none.
bool Heap::drop_kept() noexcept {
    std::multimap<std::size_t, std::uintptr_t> dropped;
    {
        const std::lock_guard lock(registry().mutex);
        dropped.swap(kept_);
        kept_bytes_ = 0;
        for (const auto& [bytes, address] : dropped) ++registry().at(address)->taken;
    }
    for (const auto& [bytes, address] : dropped) give_back(address, bytes);
    return !dropped.empty();
}

bool Heap::free(void* pointer) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (!near(address)) return false;
    std::shared_ptr<Heap> heap;
    std::size_t bytes;
    {
        const std::lock_guard lock(registry().mutex);
        Segment* segment = registry().at(address);
        if (segment == nullptr) return false;
        heap = segment->heap;
        const auto block = segment->used.find(address);
        if (heap->is_inherited() || block == segment->used.end()) return true;  // the parent has it
        bytes = block->second;
        segment->used.erase(block);
        heap->used_bytes_ -= bytes;
        if (!heap->closed_ && heap->kept_bytes_ + bytes <= most_kept) {
            heap->kept_.emplace(bytes, address);
            heap->kept_bytes_ += bytes;
            --segment->taken;
            return true;
        }
    }
    heap->give_back(address, bytes);
    return true;
}

void Heap::close() noexcept {
    {
        const std::lock_guard lock(registry().mutex);
        if (is_inherited() || closed_) return;
        closed_ = true;
    }
    drop_kept();
    const std::shared_ptr<Heap> self = shared_from_this();
    const std::lock_guard lock(registry().mutex);
    std::erase_if(registry().segments, [&](const auto& entry) {
        return entry.second.heap == self && entry.second.taken == 0;
    });
    arena_.reset();
}

std::size_t Heap::block_bytes(const void* pointer) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (!near(address)) return 0;
    const std::lock_guard lock(registry().mutex);
    const Segment* segment = registry().at(address);
    if (segment == nullptr) return 0;
    const auto block = segment->used.find(address);
    return block == segment->used.end() ? 0 : block->second;
}

std::uint64_t Heap::find_segment(const Arena& arena, std::uintptr_t first,
                                 std::size_t bytes) noexcept {
    const std::lock_guard lock(registry().mutex);
    const Segment* segment = registry().at(first);
    if (segment == nullptr || segment->heap->is_inherited() || segment->arena.get() != &arena ||
        bytes > segment->end() - first)
        return nowhere;
    return segment->offset_of(first);
}

std::size_t Heap::used_bytes() const noexcept {
    const std::lock_guard lock(registry().mutex);
    return used_bytes_;
}

std::size_t Heap::kept_bytes() const noexcept {
    const std::lock_guard lock(registry().mutex);
    return kept_bytes_;
}

}  // namespace unisono
