// native/worker.hpp: runs the calls of one group one after the other, some in the background.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

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

private:
    WaitWord done_;  ///< 1 after `failure_` is set
    std::unique_ptr<Failure> failure_;
};

/// One rank's calls in one group. A blocking call with nothing queued runs in the caller's thread;
/// others run one after the other in a thread that exists only while it has something to do.
class Worker {
public:
    explicit Worker(std::unique_ptr<Group> group);
    ~Worker();

    Group& group() noexcept { return *group_; }

    /// Runs a call to completion; throws Failure.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Queues a call.
    std::shared_ptr<Completion> start(CallArguments arguments, double seconds);

    /// Ends all calls and accepts no more, but does not leave the group yet.
    void abort_calls() noexcept;

    /// Waits up to `drain_seconds` for queued calls to complete, cancels the rest, and leaves the
    /// group.
    void close(double drain_seconds) noexcept;

private:
    struct Task {
        CallArguments arguments;
        double seconds;
        std::shared_ptr<Completion> completion;
        std::uint64_t log_sequence;
    };

    void serve();
    std::uint64_t record_start(const CallArguments& arguments) noexcept;

    std::unique_ptr<Group> group_;
    Log& log_;
    std::mutex mutex_;  ///< guards everything below
    std::condition_variable changed_;
    std::deque<Task> queue_;
    std::uint32_t calls_ = 0;  ///< run or queued; the group counts in the same order
    bool busy_ = false;        ///< a call is running, in any thread
    bool serving_ = false;     ///< the thread has not decided to end
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace unisono
