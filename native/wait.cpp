// native/wait.cpp: the futex calls, the waiting policy, and threads.
#include "wait.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <ctime>
#include <system_error>
#include <utility>

namespace unisono {

void sleep_on(WaitWord& word, std::uint32_t seen, std::chrono::nanoseconds longest) noexcept {
    const auto nanoseconds = longest.count() < 0 ? 0 : longest.count();
    const timespec duration{static_cast<time_t>(nanoseconds / 1'000'000'000),
                            static_cast<long>(nanoseconds % 1'000'000'000)};
    // Not FUTEX_PRIVATE: the word is shared between processes. A Unix signal ends the wait (EINTR).
    syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &duration, nullptr, 0);
}

void wake_all(WaitWord& word) noexcept {
    syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void yield_core() noexcept { sched_yield(); }

std::thread start_thread(std::function<void()> body) {
    try {
        return std::thread([body = std::move(body)] {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_BLOCK, &all, nullptr);
            body();
        });
    } catch (const std::system_error& error) {
        throw Failure(FailureKind::system,
                      format("a call that does not block needs a thread, and none can be started: "
                             "%s; let the call block, or raise the limit of processes or memory",
                             error.code().message().c_str()));
    }
}

SpinPolicy choose_spin_policy(bool oversubscribed, bool one_session) noexcept {
    if (!oversubscribed) return {4000, 50, std::chrono::milliseconds(20)};
    return {0, one_session ? 50 : 5, {}};
}

}  // namespace unisono
