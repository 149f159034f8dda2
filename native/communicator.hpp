// native/communicator.hpp: what a program uses: its job in shared memory, and its groups.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "heap.hpp"
#include "inspector.hpp"
#include "mailbox.hpp"

namespace unisono {

/// Remembers in which process an object was made. A forked child has a copy of everything, but is
/// no rank: it must neither write as its parent nor wait for threads that only the parent has.
class ForkGuard {
public:
    ForkGuard() noexcept;
    bool in_forked_child() const noexcept;

    /// Throws Failure(closed) in a forked child.
    void check() const;

private:
    std::uint32_t generation_;
};

/// A job in shared memory as one rank sees it: the memory, and the point-to-point messages.
class SharedJob {
public:
    /// Creates the memory of a job of `size` ranks, with the world group; returns the file
    /// descriptor.
    static int create(int size);

    /// Takes ownership of the file descriptor, and registers as rank `rank`.
    SharedJob(int fd, int rank);
    ~SharedJob();
    SharedJob(const SharedJob&) = delete;
    SharedJob& operator=(const SharedJob&) = delete;

    /// Opens handles on the other ranks, which have all registered.
    void connect_peers();

    /// Publishes that this process is about to exit.
    void announce_exit() noexcept;

    /// Waits up to `drain_seconds` for messages to complete, then leaves the job for good.
    void close(double drain_seconds) noexcept;

    /// An inspector of this job; publishes the exit status of ranks that have ended first.
    std::unique_ptr<JobInspector> inspector() const;

    const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }

    /// The memory of this rank's arrays. Throws Failure(closed) in a forked child.
    const std::shared_ptr<Heap>& heap() const {
        fork_guard_.check();
        return heap_;
    }
    Mailbox& mailbox() const noexcept { return *mailbox_; }

private:
    ForkGuard fork_guard_;
    int rank_;
    std::shared_ptr<Arena> arena_;
    std::shared_ptr<Heap> heap_;
    std::unique_ptr<Mailbox> mailbox_;
};

/// A group as one rank sees it: collectives, messages, subgroups. Thread-safe.
class Communicator {
public:
    Communicator(std::shared_ptr<SharedJob> job, std::size_t offset, int rank, int size);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    /// Runs a collective to completion.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Starts a collective.
    std::shared_ptr<Completion> start(CallArguments arguments, double seconds);

    /// Waits for a collective; runs it here if no thread does. Throws Failure only for Ctrl-C.
    void finish(const std::shared_ptr<Completion>& completion, const Limits& limits);

    /// Lets a collective begin for somebody who is about to wait elsewhere; see Worker::begin().
    void begin(const std::shared_ptr<Completion>& completion);

    /// A send to or receive from rank `peer` of this group, for the caller to fill in and post.
    std::shared_ptr<Transfer> transfer(bool sending, int peer, std::int64_t tag) const;

    /// Posts a transfer and waits until it is complete.
    void run(const std::shared_ptr<Transfer>& transfer, const Limits& limits);

    /// Posts a transfer.
    void start(const std::shared_ptr<Transfer>& transfer, double seconds);

    /// Makes a new group of some ranks of this one; called by all of them with the same new `key`.
    /// The first of them prepares the memory and sends the others its offset.
    std::unique_ptr<Communicator> split(const std::vector<int>& ranks, std::int64_t key,
                                        const Limits& limits);

    /// Makes a new group of all members that are alive, except those in `exclude`; called by all of
    /// them. Calls of this group end, and it is closed.
    std::unique_ptr<Communicator> shrink(const std::vector<int>& exclude, const Limits& limits);

    /// How long a call may wait if it does not say.
    double seconds() const noexcept { return seconds_.load(std::memory_order_relaxed); }
    void set_seconds(double seconds) noexcept {
        seconds_.store(seconds, std::memory_order_relaxed);  // nothing depends on its order
    }

    /// The world ranks of the members, in order.
    const std::vector<int>& world_ranks() const noexcept {
        return worker_->group().group_members()->world_ranks;
    }

    /// Waits up to `drain_seconds` for queued calls to complete, then leaves the group.
    void close(double drain_seconds) noexcept;

private:
    ForkGuard fork_guard_;
    std::shared_ptr<SharedJob> job_;
    std::unique_ptr<Worker> worker_;
    std::atomic<double> seconds_{0};
};

}  // namespace unisono
