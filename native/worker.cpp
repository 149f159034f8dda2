// native/worker.cpp: the queue of a group and its thread.
#include "worker.hpp"

#include <utility>

namespace unisono {

namespace {

constexpr auto idle_time = std::chrono::seconds(1);  // how long the thread waits for work

/// A short call that somebody waits for is run by who waits, and waking the thread as well would
/// cost more than the call. So where that was so last time, the thread looks by itself, every
/// `nap`, and for `naps` times after the last such call. It takes what it has seen there before:
/// who has just queued a call is about to wait for it.
constexpr auto nap = std::chrono::microseconds(100);
constexpr int naps = 10;
constexpr std::uint64_t short_bytes = std::uint64_t{64} << 10;

/// Up to here two changes of threads cost more than it gains to go on beside the call; so does
/// `patience`, and ranks that do the same work are not farther apart.
constexpr std::uint64_t begin_bytes = std::uint64_t{512} << 10;
constexpr auto patience = std::chrono::microseconds(50);

/// How long the thread looks for the next call before it sleeps, where each rank has a second core:
/// to wake it up takes longer than most calls.
constexpr auto alert_time = std::chrono::milliseconds(2);

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

[[noreturn]] void refuse_inside() {
    throw Failure(
        FailureKind::closed,
        "this thread is waiting in another call of the group, which a signal handler or a "
        "finalizer has interrupted and which cannot go on before that returns; let it "
        "note what is to be done, and call when the other call has returned");
}

/// Whether this is Ctrl-C.
bool interrupted(const std::unique_ptr<Failure>& failure) noexcept {
    return failure != nullptr && failure->kind == FailureKind::interrupted;
}

}  // namespace

void Completion::finish(std::unique_ptr<Failure> failure) noexcept {
    failure_ = std::move(failure);
    post(done_, 1);  // pairs with the acquire in done()
}

bool Completion::on_done(void (*callback)(void*) noexcept, void* context) noexcept {
    Callback before = state_.load(std::memory_order_acquire);  // pairs with notify()
    if (before != Callback::none) return false;
    callback_ = callback;
    context_ = context;
    // release: the callback is written; pairs with the exchange in notify().
    return state_.compare_exchange_strong(before, Callback::set, std::memory_order_acq_rel);
}

void Completion::notify() noexcept {
    // acquire: pairs with on_done().
    if (state_.exchange(Callback::late, std::memory_order_acq_rel) == Callback::set)
        callback_(context_);
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

Worker::~Worker() {
    run_blocking([](void* self) noexcept { static_cast<Worker*>(self)->close(0); }, this);
}

std::uint64_t Worker::record_start(const CallArguments& arguments) noexcept {
    // Calls of a broken group fail immediately; their records would displace the one that broke it.
    if (!group_->usable()) return 0;
    return log_.begin(arguments, group_->number(), group_->page_number(), ++calls_);
}

// These three need the lock.

void Worker::occupy() noexcept {
    busy_ = true;
    runner_ = std::this_thread::get_id();
}

void Worker::vacate() noexcept {
    busy_ = false;
    if (!std::exchange(leaving_, false)) return;
    group_->close();
    wake_thread();
}

bool Worker::is_inside() const noexcept { return busy_ && runner_ == std::this_thread::get_id(); }

void Worker::check_not_inside() {
    const std::lock_guard lock(mutex_);
    if (is_inside()) refuse_inside();
}

void Worker::run(const CallArguments& arguments, const Limits& limits) {
    std::unique_lock lock(mutex_);
    if (is_inside()) refuse_inside();
    if (closed_) throw Failure(FailureKind::closed, "the group is closed; make a new one");
    if (!busy_ && queue_.empty()) {
        occupy();
        const std::uint64_t log_sequence = record_start(arguments);
        lock.unlock();
        try {
            group_->run(arguments, limits);
        } catch (...) {
            log_.end(log_sequence, outcome());
            lock.lock();
            vacate();
            wake_thread();
            throw;
        }
        log_.end(log_sequence, CallState::done);
        lock.lock();
        vacate();
        // A queue or close() may wait for this; usually nobody does.
        if (closing_ != 0 || !queue_.empty()) wake_thread();
        return;
    }
    lock.unlock();
    const auto completion = start(arguments, limits.seconds);
    const Limits forever{1e18, nullptr};  // the call itself has the deadline
    try {
        finish(completion, {forever.seconds, limits.interrupted});
    } catch (const Failure&) {
        group_->stop();  // we may not use the caller's memory after we return
        completion->wait(forever);
        throw;
    }
    if (const Failure* failure = completion->failure()) throw Failure(*failure);
}

void Worker::finish(const std::shared_ptr<Completion>& completion, const Limits& limits) {
    std::vector<std::shared_ptr<Completion>> ended;  // their callbacks have not run
    std::unique_ptr<Failure> failure;
    {
        std::unique_lock lock(mutex_);
        if (is_inside() && !completion->done()) refuse_inside();
        while (!busy_ && !completion->done() && !queue_.empty() && !interrupted(failure)) {
            failure = run_next(lock, limits, ended);
            ++taken_;
        }
        lazy_ = !ended.empty();
        if (!busy_ && (closing_ != 0 || (asleep_ && !napping_ && !queue_.empty()))) wake_thread();
    }
    for (const auto& each : ended) each->notify();
    if (interrupted(failure)) throw Failure(*failure);
    const SpinPolicy& policy = group_->arena().spin_policy();
    for (int i = 0; i < policy.spins && !completion->done(); ++i) pause();
    completion->wait(limits);
}

void Worker::begin(const std::shared_ptr<Completion>& completion) {
    std::vector<std::shared_ptr<Completion>> ended;  // their callbacks have not run
    {
        std::unique_lock lock(mutex_);
        if (completion->done()) return;
        if (!busy_ && queue_.size() == 1 && queue_.front().completion == completion &&
            queue_.front().bytes() <= begin_bytes) {
            occupy();  // nobody else runs it
            lock.unlock();
            const bool come = group_->peers_come(patience);
            lock.lock();
            vacate();
            if (come && !closed_) {
                run_next(lock, {0, nullptr}, ended);  // not for Ctrl-C: C++ may be the caller
                ++taken_;
                lazy_ = true;
            }
        }
        if (closing_ != 0 || !queue_.empty()) wake_thread();
    }
    for (const auto& each : ended) each->notify();
}

void Worker::wake_thread() noexcept {
    wanted_ = true;
    changed_.notify_all();
}

/// Runs the first call of the queue. The caller has the lock, which is released meanwhile, and no
/// call is running. Returns what went wrong, for a caller who has to know of Ctrl-C.
std::unique_ptr<Failure> Worker::run_next(std::unique_lock<std::mutex>& lock, const Limits& limits,
                                          std::vector<std::shared_ptr<Completion>>& ended) {
    Task task = std::move(queue_.front());
    queue_.pop_front();
    occupy();
    lock.unlock();
    std::unique_ptr<Failure> failure;
    try {
        group_->run(task.arguments, {task.seconds, limits.interrupted});
    } catch (const Failure& caught) {
        failure = std::make_unique<Failure>(caught);
    }
    log_.end(task.log_sequence, failure == nullptr ? CallState::done : failed(failure->kind));
    std::unique_ptr<Failure> told;
    if (interrupted(failure))
        told = std::make_unique<Failure>(FailureKind::closed,
                                         "Ctrl-C ended this call, and with it the group");
    else if (failure != nullptr)
        told = std::make_unique<Failure>(*failure);
    lock.lock();
    vacate();
    task.completion->finish(std::move(told));
    ended.push_back(std::move(task.completion));
    return failure;
}

std::shared_ptr<Completion> Worker::start(CallArguments arguments, double seconds) {
    auto completion = std::make_shared<Completion>();
    const std::lock_guard lock(mutex_);
    if (closed_) throw Failure(FailureKind::closed, "the group is closed; make a new one");
    if (!serving_) {  // first: a call without a thread must not be in the queue
        if (thread_.joinable())
            thread_.join();  // it has decided to end, and does not need the lock
        thread_ = start_thread([this] { serve(); });
        serving_ = true;
    }
    const std::uint64_t log_sequence = record_start(arguments);
    queue_.push_back({std::move(arguments), seconds, completion, log_sequence,
                      queued_.fetch_add(1, std::memory_order_relaxed) + 1});
    const bool can_nap = napping_ && lazy_ && queue_.back().bytes() <= short_bytes;
    if (asleep_ && !can_nap) wake_thread();
    return completion;
}

/// Waits until a call of the queue can run, or the group is closed; false if that takes too long.
/// The thread has the lock, which is released meanwhile.
bool Worker::wait_for_work(std::unique_lock<std::mutex>& lock) {
    const auto ready = [&] {
        return !busy_ && (closed_ || !queue_.empty());  // a running call needs the lock to end
    };
    const auto first = [&] { return queue_.empty() ? 0 : queue_.front().place; };
    std::uint64_t seen = taken_;
    int left = naps;
    if (!ready() && group_->arena().spare_cores()) {
        // relaxed: the lock orders what is in the queue.
        const std::uint64_t before = queued_.load(std::memory_order_relaxed);
        lock.unlock();
        const auto end = Clock::now() + alert_time;
        while (queued_.load(std::memory_order_relaxed) == before && Clock::now() < end)
            yield_core();
        lock.lock();
    }
    asleep_ = true;
    for (;;) {
        napping_ = lazy_ && left > 0;
        wanted_ = false;
        if (napping_) {
            const std::uint64_t before = first();
            changed_.wait_for(lock, nap, [&] { return wanted_ && ready(); });
            if (ready() && (wanted_ || closed_ || first() == before)) break;
        } else {
            const bool found =
                changed_.wait_for(lock, idle_time, [&] { return ready() || seen != taken_; });
            if (ready() || !found) break;
        }
        left = seen == taken_ ? left - 1 : naps;
        seen = taken_;
    }
    asleep_ = napping_ = false;
    return ready();
}

/// Callbacks of calls that have ended run when the queue is empty: they may have to wait for the
/// GIL, and peers wait for the next call. One of them may close the group, or release the last
/// reference to the communicator and so destroy this object: then `abandoned` is set.
void Worker::serve() {
    const std::shared_ptr<bool> abandoned = abandoned_;
    std::vector<std::shared_ptr<Completion>> ended;  // their callbacks have not run
    std::unique_lock lock(mutex_);
    for (;;) {
        if (queue_.empty() && !ended.empty()) {
            lock.unlock();
            for (const auto& completion : ended) completion->notify();
            ended.clear();
            if (*abandoned) return;
            lock.lock();
        }
        if (!wait_for_work(lock) && !busy_) break;
        if (busy_) continue;
        if (queue_.empty()) break;  // the group is closed
        run_next(lock, {0, nullptr}, ended);
        lazy_ = false;
        if (closing_ != 0) changed_.notify_all();
    }
    serving_ = false;
}

void Worker::abort_calls() noexcept {
    std::unique_lock lock(mutex_);
    std::deque<Task> aborted;
    if (!closed_) {
        closed_ = true;
        group_->stop();
        for (Task& task : queue_) {
            log_.end(task.log_sequence, failed(FailureKind::closed));
            task.completion->finish(std::make_unique<Failure>(
                FailureKind::closed, "the group was closed before this call had begun"));
        }
        aborted.swap(queue_);
        changed_.notify_all();
    }
    ++closing_;
    changed_.wait(lock, [&] { return !busy_ || is_inside(); });
    --closing_;
    std::thread thread;
    if (!busy_) thread = std::move(thread_);  // if several threads close, one joins it
    lock.unlock();
    for (const Task& task : aborted) task.completion->notify();
    if (!thread.joinable()) return;
    if (thread.get_id() == std::this_thread::get_id()) {
        *abandoned_ = true;
        thread.detach();
    } else {
        thread.join();
    }
}

void Worker::close(double drain_seconds) noexcept {
    {
        std::unique_lock lock(mutex_);
        ++closing_;
        if (!closed_ && !is_inside())
            changed_.wait_until(lock, deadline_after(drain_seconds),
                                [&] { return !busy_ && queue_.empty(); });
        --closing_;
    }
    abort_calls();
    const std::lock_guard lock(mutex_);  // several threads may close at the same time
    if (busy_)
        leaving_ = true;  // a signal handler closes the group
    else
        group_->close();
}

}  // namespace unisono
