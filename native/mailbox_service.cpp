// native/mailbox_service.cpp: the background thread, transfers that end without having moved, and
// the end of the mailbox.
#include <algorithm>
#include <atomic>
#include <utility>

#include "mailbox_messages.hpp"

namespace unisono {

namespace {

constexpr auto idle_time =
    std::chrono::seconds(1);  // how long the background thread waits for work

}  // namespace

bool Mailbox::pending() const {
    return !receives_.empty() ||
           std::any_of(outgoing_.begin(), outgoing_.end(),
                       [](const auto& queue) { return !queue.empty(); }) ||
           std::any_of(incoming_.begin(), incoming_.end(),
                       [](const IncomingMessage& incoming) { return incoming.active; });
}

/// All transfers that have not ended.
std::vector<std::shared_ptr<Transfer>> Mailbox::underway() const {
    std::vector<std::shared_ptr<Transfer>> transfers(receives_.begin(), receives_.end());
    for (const auto& queue : outgoing_)
        transfers.insert(transfers.end(), queue.begin(), queue.end());
    for (const IncomingMessage& incoming : incoming_)
        if (incoming.transfer != nullptr) transfers.push_back(incoming.transfer);
    return transfers;
}

/// Ends transfers whose peer is gone or whose deadline has passed.
void Mailbox::supervise() {
    const auto now = Clock::now();
    for (const auto& transfer : underway()) {
        auto failure = trouble(*transfer);
        if (failure != nullptr)
            progress();  // what arrived before the peer ended still counts
        else if (now >= transfer->deadline)
            failure = expired(*transfer);
        if (failure == nullptr || transfer->completion.done()) continue;
        const bool orphan = !transfer->own.empty();
        cancel(transfer);
        if (orphan) {
            if (transfer->offered) withdraw(*transfer, nullptr);
            std::erase(outgoing_[static_cast<std::size_t>(transfer->world_peer())], transfer);
        }
        finish(transfer, std::move(failure));
    }
}

void Mailbox::end_group(std::uint32_t context) {
    const std::lock_guard lock(mutex_);
    for (const auto& transfer : underway()) {
        if (transfer->context != context || transfer->completion.done()) continue;
        cancel(transfer);
        finish(transfer, std::make_unique<Failure>(FailureKind::closed,
                                                   "the group was shrunk before the "
                                                   "message had moved"));
    }
    for (IncomingMessage& incoming : incoming_)
        if (incoming.unexpected != nullptr && incoming.unexpected->header.context == context)
            incoming.unexpected = nullptr;  // the rest of it is discarded as it arrives
    unexpected_.remove_if(
        [&](const auto& unexpected) { return unexpected->header.context == context; });
}

void Mailbox::forget(int world_rank) {
    const std::lock_guard lock(mutex_);
    const auto rank = static_cast<std::size_t>(world_rank);
    if (outgoing_[rank].empty() && committed_[rank]) {
        committed_[rank] = false;
        arena_->release_ring(me_, world_rank);
    }
    // What it has sent and nobody has received stays, because it may belong to another group.
    const Channel& channel = arena_->channel(world_rank, me_);
    // acquire: pairs with the release in push(): nothing more arrives, because the
    // sender has ended.
    const std::uint64_t written = channel.written.load(std::memory_order_acquire);
    if (written != 0 && written == channel.read.load(std::memory_order_relaxed))
        arena_->release_ring(world_rank, me_);
}

void Mailbox::start(const std::shared_ptr<Transfer>& transfer, double seconds) {
    post(transfer, seconds);
    if (transfer->completion.done()) return;
    try {
        serve_in_background();
    } catch (const Failure& failure) {
        give_up(transfer, failure.kind);
        throw;
    }
}

/// Ends a transfer that the caller will not wait for any more.
void Mailbox::give_up(const std::shared_ptr<Transfer>& transfer, FailureKind why) {
    arena_->log(me_).end(transfer->log_sequence, failed(why));
    {
        const std::lock_guard lock(mutex_);
        cancel(transfer);
    }
    finish_in_background();
}

/// Lets the rest of a message pass the ring; without a thread, the next messages push it.
void Mailbox::finish_in_background() noexcept {
    try {
        serve_in_background();
    } catch (const Failure&) {}
}

void Mailbox::serve_in_background() {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (serving_) {
        wake_.notify_all();
        ring(arena_->rank_info(me_).doorbell);
        return;
    }
    if (thread_.joinable()) thread_.join();  // it has decided to end, and does not need the lock
    thread_ = start_thread([this] { serve(); });
    serving_ = true;
}

void Mailbox::serve() {
    std::unique_lock lock(mutex_);
    WaitWord& doorbell = arena_->rank_info(me_).doorbell;
    while (!closed_) {
        if (progress()) continue;
        if (!pending()) {
            if (wake_.wait_for(lock, idle_time) == std::cv_status::timeout && !pending()) break;
            continue;
        }
        const Sleeper sleeper(doorbell);
        const std::uint32_t seen =
            doorbell.value.load(std::memory_order_seq_cst);  // pairs with ring()
        if (progress()) continue;
        supervise();
        lock.unlock();
        sleep_on(doorbell, seen, slice);
        lock.lock();
    }
    serving_ = false;
}

void Mailbox::close(double drain_seconds) noexcept {
    std::unique_lock lock(mutex_);
    if (closed_) return;
    const auto deadline = deadline_after(drain_seconds);
    const auto sending = [&] {
        return std::any_of(outgoing_.begin(), outgoing_.end(),
                           [](const auto& queue) { return !queue.empty(); });
    };
    while (sending() && Clock::now() < deadline) {
        if (progress()) continue;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.lock();
    }
    closed_ = true;
    const auto end = [&](const std::shared_ptr<Transfer>& transfer) {
        if (!transfer->completion.done())
            finish(transfer, std::make_unique<Failure>(FailureKind::closed,
                                                       "the world was closed before the "
                                                       "message had moved"));
    };
    for (auto& queue : outgoing_) {
        if (!queue.empty() && queue.front()->offered) withdraw(*queue.front(), nullptr);
        std::for_each(queue.begin(), queue.end(), end), queue.clear();
    }
    std::for_each(receives_.begin(), receives_.end(), end);
    receives_.clear();
    for (IncomingMessage& incoming : incoming_)
        if (incoming.transfer != nullptr) end(incoming.transfer), incoming.transfer = nullptr;
    wake_.notify_all();
    ring(arena_->rank_info(me_).doorbell);
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    arena_->leave(me_);
}

}  // namespace unisono
