// native/worker.hpp: brings the calls of one group into one order, and runs some in the background.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "group.hpp"

namespace unisono {

/// The outcome of a call that somebody may wait for, once or often, from any thread.
class Completion {
public:
    /// Notes the outcome; null: it went well.
    void finish(std::unique_ptr<Failure> failure) noexcept;

    bool done() const noexcept { return signal_.value.load(std::memory_order_acquire) != 0; }

    /// Waits up to `limits.seconds`; false if they passed first. Throws only for Ctrl-C.
    bool wait(const Limits& limits);

    /// What went wrong; null if nothing did. Only after the end.
    const Failure* failure() const noexcept { return failure_.get(); }

private:
    WaitWord signal_;  ///< 1 once `failure_` is final
    std::unique_ptr<Failure> failure_;
};

/// One rank's calls in one group. A blocking call with nothing queued runs in the caller's thread;
/// others run one after the other in a thread that exists only while it has something to do.
class Worker {
public:
    explicit Worker(std::unique_ptr<Group> group);
    ~Worker();

    Group& group() noexcept { return *group_; }

    /// Runs a call to its end; throws Failure.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Queues a call.
    std::shared_ptr<Completion> start(CallArguments arguments, double seconds);

    /// Ends all calls, now and for good, but does not leave the group yet.
    void abort_calls() noexcept;

    /// Lets queued calls end for up to `drain_seconds`, then gives them up, and leaves the group.
    void close(double drain_seconds) noexcept;

private:
    struct Task {
        CallArguments arguments;
        double seconds;
        std::shared_ptr<Completion> completion;
        std::uint64_t log_sequence;
    };

    void serve();
    std::uint64_t note(const CallArguments& arguments) noexcept;

    std::unique_ptr<Group> group_;
    Log& log_;
    std::mutex mutex_;  ///< guards everything below
    std::condition_variable changed_;
    std::deque<Task> queue_;
    std::uint32_t calls_ = 0;  ///< run or queued: the group numbers them alike when it runs them
    bool busy_ = false;        ///< a call is running, in whichever thread
    bool serving_ = false;     ///< the thread has not decided to end
    bool closed_ = false;
    std::thread thread_;
};

}  // namespace unisono
