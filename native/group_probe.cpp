// native/group_probe.cpp: a group measures, once in a while, how its ranks had best use their
// slots.
#include <algorithm>
#include <cstring>

#include "group.hpp"

namespace unisono {

void Group::set_rotates(bool rotates) {
    if (rotates == rotates_) return;
    if (rotates) commit_slot(slot_bytes_);
    rotates_ = rotates;
    next_place_ = advance_ = 0;
}

void Group::probe(std::size_t bytes) {
    // How a small call stores does not matter, and ranks that share cores cannot measure it.
    constexpr std::size_t shortest = std::size_t{8} << 10;
    if (size_ == 1 || bytes < shortest || arena_->oversubscribed()) return;
    if (bytes < until_probe_) {
        until_probe_ -= bytes;
        return;
    }
    until_probe_ = std::size_t{size_ == 2 ? 128u : 64u} << 20;
    set_rotates(false);
    commit_slot(probed_bytes);
    // Two ranks may rotate if both have all pages already: it is not worth more memory.
    std::byte* memory = scratch(2 * probed_bytes);
    std::memset(memory, 0, probed_bytes);
    memory[0] = std::byte{size_ == 2 && committed_ == slot_bytes_};
    // Each round is one step, and slots are used in turn: so one slot has only plain stores, and
    // the other one only streaming stores. The first rounds bring their lines where they will be.
    // Bytes: 12 times 32 KiB, staged and read.
    auto plain = Clock::duration::max();
    auto streaming = Clock::duration::max();
    for (int i = 0; i < 12; ++i) {
        const auto time = time_round(i % 2 == 0 ? StoreMode::plain : StoreMode::streaming);
        auto& best = i % 2 == 0 ? plain : streaming;
        if (i >= 4) best = std::min(best, time);
    }
    // Rotation takes ten times as long to time: where it does not pay, it is left out more and
    // more.
    if (memory[0] != std::byte{0} && memory[probed_bytes] != std::byte{0} && rest_-- == 0) {
        plain = probe_rotating(plain);
        pause_ = rotates_ ? 0 : std::min(2 * pause_ + 1, 31);
        rest_ = pause_;
    }
    // These few bytes have the whole bandwidth of the memory; long messages need it for themselves.
    staging_ = 7 * streaming < 4 * plain ? StoreMode::streaming : StoreMode::plain;
}

/// Goes through the slots for more than two turns. The first one brings their lines into the shared
/// cache; the last rounds are timed. Both ranks then decide alike, by what both have measured.
/// Returns the time of a round as they will go on. Barriers: 129. Bytes: 4 MiB, staged and read.
Clock::duration Group::probe_rotating(Clock::duration fixed) {
    set_rotates(true);
    advance_ = probed_bytes;
    auto rotating = Clock::duration::max();
    for (int i = 0; i < 128; ++i) {
        const auto time = time_round(StoreMode::plain);
        if (i >= 120) rotating = std::min(rotating, time);
    }
    // Long messages gain less than these: they also need the shared cache for themselves.
    const std::int64_t mine = (4 * fixed - 5 * rotating).count();
    std::int64_t theirs = 0;
    begin_step();
    std::memcpy(slot(rank_), &mine, sizeof mine);
    barrier();
    std::memcpy(&theirs, slot(1 - rank_), sizeof theirs);
    set_rotates(mine + theirs > 0);
    return rotates_ ? rotating : fixed;
}

/// One step of a probe: stages a piece and reads that of the next rank. Returns the time it took.
Clock::duration Group::time_round(StoreMode store) {
    std::byte* memory = scratch(2 * probed_bytes);
    begin_step();
    const auto began = Clock::now();
    kernels().copy(slot(rank_), memory, probed_bytes, store);
    barrier();
    kernels().copy(memory + probed_bytes, slot((rank_ + 1) % size_), probed_bytes,
                   StoreMode::plain);
    return Clock::now() - began;
}

}  // namespace unisono
