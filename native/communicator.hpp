// native/communicator.hpp: what a program holds: its place in a job, and its place in a group.
#pragma once

#include <memory>
#include <vector>

#include "inspector.hpp"
#include "mailbox.hpp"

namespace unisono {

/// When something was made, counted in forks. A forked child has a copy of everything but belongs
/// to no job: it must neither speak for its parent nor wait for threads that only the parent has.
class ForkGuard {
public:
    ForkGuard() noexcept;
    bool in_forked_child() const noexcept;

    /// Throws Failure(closed) in a forked child.
    void check() const;

private:
    std::uint32_t generation_;
};

/// One rank's place in a job: its memory and its messages.
class SharedJob {
public:
    /// Makes the memory of a job of `size` ranks, its world group included; returns the descriptor.
    static int create(int size);

    /// Takes over the descriptor and a place.
    SharedJob(int fd, int rank);
    ~SharedJob();
    SharedJob(const SharedJob&) = delete;
    SharedJob& operator=(const SharedJob&) = delete;

    /// Gets to know the others, who have all taken their places.
    void connect_peers();

    /// Says that this process is about to end.
    void announce_exit() noexcept;

    /// Lets messages end for up to `drain_seconds`, then leaves for good.
    void close(double drain_seconds) noexcept;

    /// Looks at all ranks, after having found out how those ended that have.
    std::unique_ptr<JobInspector> inspector() const;

    const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
    Mailbox& mailbox() const noexcept { return *mailbox_; }

private:
    ForkGuard fork_guard_;
    int rank_;
    std::shared_ptr<Arena> arena_;
    std::unique_ptr<Mailbox> mailbox_;
};

/// One rank's place in a group: collectives, messages, subgroups. Thread-safe.
class Communicator {
public:
    Communicator(std::shared_ptr<SharedJob> job, std::size_t offset, int rank, int size);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    /// Runs a collective to its end.
    void run(const CallArguments& arguments, const Limits& limits);

    /// Starts a collective.
    std::shared_ptr<Completion> start(CallArguments arguments, double seconds);

    /// A transfer to or from rank `peer` of this group, to be filled in and posted.
    std::shared_ptr<Transfer> transfer(bool sending, int peer, std::int64_t tag) const;

    /// Posts a transfer and waits for its end.
    void run(const std::shared_ptr<Transfer>& transfer, const Limits& limits);

    /// Posts a transfer.
    void start(const std::shared_ptr<Transfer>& transfer, double seconds);

    /// Makes the group of these ranks of ours; called by all of them with the same new `key`. The
    /// first of them makes the memory and tells the others where it is.
    std::unique_ptr<Communicator> split(const std::vector<int>& ranks, std::int64_t key,
                                        const Limits& limits);

    /// Makes the group of all members that are alive, but for those of `exclude`; called by all of
    /// them. Calls of this group end, and it is closed.
    std::unique_ptr<Communicator> shrink(const std::vector<int>& exclude, const Limits& limits);

    /// The ranks of the world that are in the group, in order.
    const std::vector<int>& world_ranks() const noexcept {
        return worker_->group().group_members()->world_ranks;
    }

    /// Lets queued calls end for up to `drain_seconds`, then leaves the group.
    void close(double drain_seconds) noexcept;

private:
    ForkGuard fork_guard_;
    std::shared_ptr<SharedJob> job_;
    std::unique_ptr<Worker> worker_;
};

}  // namespace unisono
