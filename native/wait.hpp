// native/wait.hpp: waiting for a word of shared memory: spin, then yield, then sleep in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "types.hpp"

namespace unisono {

using Clock = std::chrono::steady_clock;

/// A word that others wait on. It stands alone on two cache lines' worth of its owner's memory,
/// because the neighbour prefetcher pulls lines in pairs.
struct WaitWord {
    std::atomic<std::uint32_t> value{0};
    std::atomic<std::uint32_t> sleepers{0};
};

/// How long to try before sleeping. With a core for each rank, spin: the peer is about to come.
/// With fewer cores spinning only keeps the peer from running, so hand the core over instead.
struct SpinPolicy {
    int spins = 0;
    int yields = 0;
};

/// What a caller brings to a wait: its deadline, and how to notice Ctrl-C.
struct Limits {
    double seconds = 1800;
    bool (*interrupted)() = nullptr;  ///< asked after signals and now and then; true: give up
};

/// When `seconds` from now are over; thirty years are as good as never.
inline Clock::time_point deadline_after(double seconds) noexcept {
    const std::chrono::duration<double> span(std::clamp(seconds, 0.0, 1e9));
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(span);
}

inline void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// One slice of sleep: long enough to cost nothing, short enough to notice a death soon.
inline constexpr std::chrono::milliseconds slice{20};

/// Sleeps until `signal.value` is not `seen` any more, a slice has passed, or a signal arrived.
/// The caller has announced itself in `sleepers`.
void sleep_on(WaitWord& signal, std::uint32_t seen, std::chrono::nanoseconds longest) noexcept;

/// Wakes everyone who sleeps on the signal.
void wake_all(WaitWord& signal) noexcept;

/// Sets the signal and wakes sleepers, if there are any. What was written before is visible to
/// whoever sees the value. seq_cst: pairs with `Sleeper`, which announces itself and then looks at
/// the value again; either it sees the new value, or we see the announcement.
inline void post(WaitWord& signal, std::uint32_t value) noexcept {
    signal.value.store(value, std::memory_order_seq_cst);
    if (signal.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(signal);
}

/// The same, unless the signal is not `before` any more; whether it was. seq_cst: pairs with
/// `Sleeper`, as in post(), and with whoever else exchanges the value.
inline bool post_from(WaitWord& signal, std::uint32_t before, std::uint32_t value) noexcept {
    if (!signal.value.compare_exchange_strong(before, value, std::memory_order_seq_cst))
        return false;
    if (signal.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(signal);
    return true;
}

/// Adds one to a signal that several peers ring.
inline void ring(WaitWord& signal) noexcept {
    signal.value.fetch_add(1, std::memory_order_seq_cst);  // pairs with Sleeper, as in post()
    if (signal.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(signal);
}

/// Announces a sleeper for as long as it lives.
class Sleeper {
public:
    explicit Sleeper(WaitWord& signal) noexcept : signal_(signal) {
        signal_.sleepers.fetch_add(1, std::memory_order_seq_cst);  // pairs with post() and ring()
    }
    ~Sleeper() { signal_.sleepers.fetch_sub(1, std::memory_order_relaxed); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

private:
    WaitWord& signal_;
};

/// Waits until `ready()`. On the slow path `check()` is called before every slice of sleep and
/// may throw: it looks for dead peers. Ctrl-C and the deadline are looked after here; at the
/// deadline `expired()` is called and throws, unless what was waited for has come after all.
template <class Ready, class Check, class Expired>
void wait_until(WaitWord& signal, const SpinPolicy& spin_policy, const Limits& limits, Ready ready,
                Check check, Expired expired);

/// Blocks all signals in this thread, so that Ctrl-C wakes the thread that can act on it.
void leave_signals_to_others() noexcept;

/// The spin_policy for ranks that do (`oversubscribed`) or do not share cores. sched_yield only
/// hands the core to a process of the same session where the kernel groups sessions (autogroup).
SpinPolicy choose_spin_policy(bool oversubscribed, bool one_session) noexcept;

// ---- details -----------------------------------------------------------------------------------

void yield_core() noexcept;

template <class Ready, class Check, class Expired>
void wait_until(WaitWord& signal, const SpinPolicy& spin_policy, const Limits& limits, Ready ready,
                Check check, Expired expired) {
    if (ready()) return;
    for (int i = 0; i < spin_policy.spins; ++i) {
        if (ready()) return;
        pause();
    }
    for (int i = 0; i < spin_policy.yields; ++i) {
        if (ready()) return;
        yield_core();
    }
    const auto deadline = deadline_after(limits.seconds);
    const Sleeper sleeper(signal);
    for (;;) {
        const std::uint32_t seen = signal.value.load(std::memory_order_seq_cst);
        if (ready()) return;
        check();
        if (ready()) return;  // a peer may have answered and then died
        const auto now = Clock::now();
        if (now >= deadline) {
            expired();
            continue;
        }
        if (limits.interrupted != nullptr && limits.interrupted())
            throw Failure(Fault::interrupted, "interrupted");
        sleep_on(signal, seen, std::min<Clock::duration>(slice, deadline - now));
    }
}

}  // namespace unisono
