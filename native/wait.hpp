// native/wait.hpp: wait for a word of shared memory: spin, then yield, then sleep in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "types.hpp"

namespace unisono {

using Clock = std::chrono::steady_clock;

/// A word that others wait for. Structs that contain one are aligned to two cache lines, because
/// the hardware prefetcher loads lines in pairs.
struct WaitWord {
    std::atomic<std::uint32_t> value{0};
    std::atomic<std::uint32_t> sleepers{0};
};

/// How long to try before sleeping. With a core for each rank, spin: the peer will arrive soon;
/// then yield for a while, because to wake up takes long, and peers that wait for it would fall
/// asleep as well; the host of a virtual machine gives a core that sleeps to others, for
/// milliseconds. With fewer cores, spinning keeps the peer from running, so yield a few times only.
struct SpinPolicy {
    int spins = 0;
    int yields = 0;
    std::chrono::microseconds patience{0};  ///< yield for at least as long
};

/// When to stop waiting: the deadline, and Ctrl-C.
struct Limits {
    double seconds = 1800;
    bool (*interrupted)() = nullptr;  ///< called before every slice of sleep; true: stop waiting
};

/// The time in `seconds` from now; at most thirty years, which is never.
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

/// The longest sleep before peers are checked again: long enough to cost nothing, short enough to
/// notice a death soon.
inline constexpr std::chrono::milliseconds slice{20};

/// Sleeps until `word.value` is not `seen` any more, `longest` has passed, or a Unix signal
/// arrives. The caller has announced itself in `sleepers`.
void sleep_on(WaitWord& word, std::uint32_t seen, std::chrono::nanoseconds longest) noexcept;

/// Wakes all threads that sleep on the word.
void wake_all(WaitWord& word) noexcept;

/// Sets the word and wakes sleepers, if there are any. What was written before is visible to a
/// thread that sees the value. seq_cst: pairs with `Sleeper`, which announces itself and then reads
/// the value again; either it sees the new value, or we see the announcement.
inline void post(WaitWord& word, std::uint32_t value) noexcept {
    word.value.store(value, std::memory_order_seq_cst);
    if (word.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(word);
}

/// The same, if the word is still `before`; returns whether it was. seq_cst: pairs with `Sleeper`,
/// as in post(), and with other compare-exchanges of the value.
inline bool post_from(WaitWord& word, std::uint32_t before, std::uint32_t value) noexcept {
    if (!word.value.compare_exchange_strong(before, value, std::memory_order_seq_cst)) return false;
    if (word.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(word);
    return true;
}

/// Adds one to a word; several peers may do so at the same time.
inline void ring(WaitWord& word) noexcept {
    word.value.fetch_add(1, std::memory_order_seq_cst);  // pairs with Sleeper, as in post()
    if (word.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(word);
}

/// Announces a sleeper during its lifetime.
class Sleeper {
public:
    explicit Sleeper(WaitWord& word) noexcept : word_(word) {
        word_.sleepers.fetch_add(1, std::memory_order_seq_cst);  // pairs with post() and ring()
    }
    // Relaxed: who still sees this sleeper makes one system call too many.
    ~Sleeper() { word_.sleepers.fetch_sub(1, std::memory_order_relaxed); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

private:
    WaitWord& word_;
};

/// Waits until `ready()`. On the slow path `check()` is called before every slice of sleep and
/// may throw: it looks for dead peers. Ctrl-C and the deadline are handled here; at the deadline
/// `expired()` is called, and throws unless `ready()` has become true.
template <class Ready, class Check, class Expired>
void wait_until(WaitWord& word, const SpinPolicy& spin_policy, const Limits& limits, Ready ready,
                Check check, Expired expired);

/// Starts a thread. Ctrl-C and other Unix signals go to other threads, which can handle them.
/// Throws Failure(system) if the system has no room for one more.
std::thread start_thread(std::function<void()> body);

/// The policy for ranks that share cores (`oversubscribed`) or do not. If the kernel schedules
/// sessions as groups (autogroup), sched_yield only yields to processes of the same session.
SpinPolicy choose_spin_policy(bool oversubscribed, bool one_session) noexcept;

// ---- details -----------------------------------------------------------------------------------

void yield_core() noexcept;

template <class Ready, class Check, class Expired>
void wait_until(WaitWord& word, const SpinPolicy& spin_policy, const Limits& limits, Ready ready,
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
    if (spin_policy.patience.count() != 0) {
        const auto end = Clock::now() + spin_policy.patience;
        do {
            if (ready()) return;
            yield_core();
        } while (Clock::now() < end);
    }
    const auto deadline = deadline_after(limits.seconds);
    const Sleeper sleeper(word);
    for (;;) {
        const std::uint32_t seen = word.value.load(std::memory_order_seq_cst);
        if (ready()) return;
        check();
        if (ready()) return;  // a peer may have arrived and then died
        const auto now = Clock::now();
        if (now >= deadline) {
            expired();
            continue;
        }
        if (limits.interrupted != nullptr && limits.interrupted())
            throw Failure(FailureKind::interrupted, "interrupted");
        sleep_on(word, seen, std::min<Clock::duration>(slice, deadline - now));
    }
}

}  // namespace unisono
