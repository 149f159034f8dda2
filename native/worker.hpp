// native/worker.hpp: runs the calls of one group one after the other, some in the background.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "group.hpp"

namespace unisono {

/// The outcome of a call; any thread may wait for it, any number of times.
class Completion {
public:
    /// Sets the outcome; null: success.
    void finish(std::unique_ptr<Failure> failure) noexcept;

    bool done() const noexcept { return done_.value.load(std::memory_order_acquire) != 0; }

    /// Waits up to `limits.seconds`; false if they passed first. Throws only for Ctrl-C.
    bool wait(const Limits& limits);

    /// What went wrong; null: success. Only after done().
    const Failure* failure() const noexcept { return failure_.get(); }

    /// Lets notify() run `callback(context)`; false if that has been called already, or there is a
    /// callback. Not for two threads at a time.
    bool on_done(void (*callback)(void*) noexcept, void* context) noexcept;

    /// Runs the callback, if there is one; the worker calls this once, after finish(), without its
    /// lock and when no other call is due.
    void notify() noexcept;

private:
    enum class Callback : std::uint8_t { none, set, late };

    WaitWord done_;  ///< 1 after `failure_` is set
    std::unique_ptr<Failure> failure_;
    void (*callback_)(void*) noexcept = nullptr;  ///< these two are written before `state_` is set
    void* context_ = nullptr;
    std::atomic<Callback> state_{Callback::none};
};

/// Runs `body(context)`, which may wait for a thread of ours that needs the GIL; bind.cpp replaces
/// this by a function that releases the GIL meanwhile.
inline void (*run_blocking)(void (*body)(void*) noexcept, void* context) noexcept =
    [](void (*body)(void*) noexcept, void* context) noexcept { body(context); };

/// One rank's calls in one group. A blocking call with nothing queued runs in the caller's thread;
/// others run one after the other in a thread that exists only while it has something to do. Who
/// waits for a queued call that has not begun runs it too, which saves two changes of threads.
///
/// A call that waits runs signal handlers (Limits::interrupted), and they may come back here. Then
/// their thread is in a call, which cannot go on before they return: so they cannot wait for other
/// calls of the group, and if they close it, the call that they have interrupted leaves it.
class Worker {
public:
    explicit Worker(std::unique_ptr<Group> group);
    ~Worker();

    Group& group() noexcept { return *group_; }

    /// Runs a call to completion; throws Failure.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Queues a call.
    std::shared_ptr<Completion> start(CallArguments arguments, double seconds);

    /// Waits until a call has ended; runs it here, and those before it, if no thread does. Throws
    /// only for Ctrl-C, which ends a call that runs here.
    void finish(const std::shared_ptr<Completion>& completion, const Limits& limits);

    /// Lets a queued call begin for somebody who is about to wait where we cannot run it. A short
    /// call that is the only one runs here if the peers come at once; all others run in the thread.
    void begin(const std::shared_ptr<Completion>& completion);

    /// Ends all calls and accepts no more, but does not leave the group yet.
    void abort_calls() noexcept;

    /// Throws Failure(closed) if this thread is in a call of the group, whose wait it interrupts.
    void check_not_inside();

    /// Waits up to `drain_seconds` for queued calls to complete, cancels the rest, and leaves the
    /// group.
    void close(double drain_seconds) noexcept;

private:
    struct Task {
        CallArguments arguments;
        double seconds;
        std::shared_ptr<Completion> completion;
        std::uint64_t log_sequence;
        std::uint64_t place;  ///< counts the calls that were queued

        std::uint64_t bytes() const noexcept {
            return arguments.on_gpu() ? arguments.told_bytes
                                      : arguments.count * arguments.item_bytes;
        }
    };

    void serve();
    void occupy() noexcept;
    void vacate() noexcept;
    bool is_inside() const noexcept;
    std::unique_ptr<Failure> run_next(std::unique_lock<std::mutex>& lock, const Limits& limits,
                                      std::vector<std::shared_ptr<Completion>>& ended);
    bool wait_for_work(std::unique_lock<std::mutex>& lock);
    void wake_thread() noexcept;
    std::uint64_t record_start(const CallArguments& arguments) noexcept;

    std::unique_ptr<Group> group_;
    Log& log_;
    std::shared_ptr<bool> abandoned_ = std::make_shared<bool>(false);  ///< see serve()
    std::mutex mutex_;                                                 ///< guards everything below
    std::condition_variable changed_;
    std::deque<Task> queue_;
    std::uint32_t calls_ = 0;  ///< run or queued; the group counts in the same order
    bool busy_ = false;        ///< a call is running, in any thread:
    std::thread::id runner_;   ///< in this one
    bool leaving_ = false;     ///< that call leaves the group when it has ended
    bool serving_ = false;     ///< the thread has not decided to end
    bool asleep_ = false;      ///< the thread waits in `changed_`
    bool napping_ = false;     ///< and will look at the queue in a moment
    bool wanted_ = false;      ///< and should look now
    bool lazy_ = false;        ///< the last call of the queue was run by who waited for it
    std::uint64_t taken_ = 0;  ///< calls of the queue that were run so
    std::atomic<std::uint64_t> queued_{0};  ///< the thread also looks without the lock
    int closing_ = 0;                       ///< threads that wait in close() or abort_calls()
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace unisono
