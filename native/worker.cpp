// native/worker.cpp: the queue of a group and its thread.
#include "worker.hpp"

#include <utility>

namespace unisono {

namespace {

constexpr auto idle_time = std::chrono::seconds(1);  // how long the thread waits for work

/// The state of the call whose exception is being handled, for its record.
CallState outcome() noexcept {
    try {
        throw;
    } catch (const Failure& failure) {
        return failed(failure.kind);
    } catch (...) {
        return failed(FailureKind::system);
    }
}

}  // namespace

void Completion::finish(std::unique_ptr<Failure> failure) noexcept {
    failure_ = std::move(failure);
    post(done_, 1);  // pairs with the acquire in done()
}

bool Completion::wait(const Limits& limits) {
    if (done()) return true;
    const auto deadline = deadline_after(limits.seconds);
    const Sleeper sleeper(done_);
    while (!done()) {
        const auto now = Clock::now();
        if (now >= deadline) return false;
        if (limits.interrupted != nullptr && limits.interrupted())
            throw Failure(FailureKind::interrupted, "interrupted");
        sleep_on(done_, 0, std::min<Clock::duration>(slice, deadline - now));
    }
    return true;
}

Worker::Worker(std::unique_ptr<Group> group)
    : group_(std::move(group)), log_(group_->arena().log(group_->world_rank(group_->rank()))) {}

Worker::~Worker() { close(0); }

std::uint64_t Worker::record_start(const CallArguments& arguments) noexcept {
    // Calls of a broken group fail immediately; their records would displace the one that broke it.
    if (!group_->usable()) return 0;
    return log_.begin(arguments, group_->number(), group_->page_number(), ++calls_);
}

void Worker::run(const CallArguments& arguments, const Limits& limits) {
    std::unique_lock lock(mutex_);
    if (closed_) throw Failure(FailureKind::closed, "the group is closed; make a new one");
    if (!busy_ && queue_.empty()) {
        busy_ = true;
        const std::uint64_t log_sequence = record_start(arguments);
        lock.unlock();
        try {
            group_->run(arguments, limits);
        } catch (...) {
            log_.end(log_sequence, outcome());
            lock.lock();
            busy_ = false;
            changed_.notify_all();
            throw;
        }
        log_.end(log_sequence, CallState::done);
        lock.lock();
        busy_ = false;
        // close() may wait for this; usually nobody does.
        changed_.notify_all();
        return;
    }
    lock.unlock();
    const auto completion = start(arguments, limits.seconds);
    const Limits forever{1e18, nullptr};  // the call itself has the deadline
    try {
        completion->wait({forever.seconds, limits.interrupted});
    } catch (const Failure&) {
        group_->stop();  // we may not use the caller's memory after we return
        completion->wait(forever);
        throw;
    }
    if (const Failure* failure = completion->failure()) throw Failure(*failure);
}

std::shared_ptr<Completion> Worker::start(CallArguments arguments, double seconds) {
    auto completion = std::make_shared<Completion>();
    const std::lock_guard lock(mutex_);
    if (closed_) throw Failure(FailureKind::closed, "the group is closed; make a new one");
    const std::uint64_t log_sequence = record_start(arguments);
    queue_.push_back({std::move(arguments), seconds, completion, log_sequence});
    if (!serving_) {
        if (thread_.joinable())
            thread_.join();  // it has decided to end, and does not need the lock
        serving_ = true;
        thread_ = std::thread([this] { serve(); });
    }
    changed_.notify_all();
    return completion;
}

void Worker::serve() {
    block_unix_signals();
    std::unique_lock lock(mutex_);
    for (;;) {
        const bool work = changed_.wait_for(lock, idle_time, [&] {
            return !busy_ && (closed_ || !queue_.empty());  // a running call needs the lock to end
        });
        if (queue_.empty() && (closed_ || !work) && !busy_) break;
        if (busy_ || queue_.empty()) continue;
        Task task = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        std::unique_ptr<Failure> failure;
        try {
            group_->run(task.arguments, {task.seconds, nullptr});
        } catch (const Failure& caught) {
            failure = std::make_unique<Failure>(caught);
        }
        log_.end(task.log_sequence, failure == nullptr ? CallState::done : failed(failure->kind));
        lock.lock();
        busy_ = false;
        task.completion->finish(std::move(failure));
        changed_.notify_all();
    }
    serving_ = false;
}

void Worker::abort_calls() noexcept {
    std::unique_lock lock(mutex_);
    if (!closed_) {
        closed_ = true;
        group_->stop();
        for (Task& task : queue_) {
            log_.end(task.log_sequence, failed(FailureKind::closed));
            task.completion->finish(std::make_unique<Failure>(
                FailureKind::closed, "the group was closed before this call had begun"));
        }
        queue_.clear();
        changed_.notify_all();
    }
    changed_.wait(lock, [&] { return !busy_; });
    std::thread thread = std::move(thread_);  // if several threads close, one joins it
    lock.unlock();
    if (!thread.joinable()) return;
    if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
    else
        thread.join();
}

void Worker::close(double drain_seconds) noexcept {
    {
        std::unique_lock lock(mutex_);
        if (!closed_)
            changed_.wait_until(lock, deadline_after(drain_seconds),
                                [&] { return !busy_ && queue_.empty(); });
    }
    abort_calls();
    const std::lock_guard lock(mutex_);  // several threads may close at the same time
    group_->close();
}

}  // namespace unisono
