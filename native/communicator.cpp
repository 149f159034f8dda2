// native/communicator.cpp: forks, splits, shrinks; everything else goes to worker and mailbox.
#include "communicator.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>

#include "kernels.hpp"

namespace unisono {

namespace {

/// How many forks lie between this process and the one that loaded us. Relaxed: the fork itself
/// orders it, and a child starts with one thread.
std::atomic<std::uint32_t> forks{0};

/// The context of our own messages in split(); no group has this number.
constexpr std::uint32_t split_context = ~std::uint32_t{0};

/// What the first rank of a new group sends to the others: the offset, or why there is none.
struct NewGroupNotice {
    std::uint64_t offset = 0;
    char reason[504] = {};
};

}  // namespace

ForkGuard::ForkGuard() noexcept : generation_(forks.load(std::memory_order_relaxed)) {
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(registered);
}

bool ForkGuard::in_forked_child() const noexcept {
    return generation_ != forks.load(std::memory_order_relaxed);
}

void ForkGuard::check() const {
    if (in_forked_child())
        throw Failure(FailureKind::closed,
                      "this process was forked after init and is not a rank of the job; start "
                      "ranks with `unisono run` or unisono.spawn instead");
}

int SharedJob::create(int size) {
    kernels();  // throws for a wrong UNISONO_ISA, before anything is made
    const int fd = Arena::create(size);
    try {
        const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (copy < 0)
            throw Failure(
                FailureKind::system,
                format("the file descriptor could not be duplicated: %s", std::strerror(errno)));
        Arena arena(copy);
        std::vector<int> ranks(static_cast<std::size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        Group::prepare(arena, ranks, true);
    } catch (...) {
        ::close(fd);
        throw;
    }
    return fd;
}

SharedJob::SharedJob(int fd, int rank)
    : rank_(rank), arena_(std::make_shared<Arena>(fd)), heap_(std::make_shared<Heap>(arena_)) {
    kernels();  // throws for a wrong UNISONO_ISA, before the others see us
    arena_->register_rank(rank);
}

SharedJob::~SharedJob() {
    heap_->close();
    if (fork_guard_.in_forked_child()) static_cast<void>(mailbox_.release());
}

void SharedJob::connect_peers() {
    arena_->connect_peers(rank_);
    mailbox_ = std::make_unique<Mailbox>(arena_, rank_);
}

std::unique_ptr<JobInspector> SharedJob::inspector() const {
    for (int rank = 0; rank < arena_->size(); ++rank)
        if (!arena_->alive(rank)) arena_->exit_reason(rank);
    return std::make_unique<JobInspector>(arena_->fd());
}

void SharedJob::announce_exit() noexcept {
    if (!fork_guard_.in_forked_child()) arena_->announce_exit(rank_);
}

void SharedJob::close(double drain_seconds) noexcept {
    if (mailbox_ != nullptr && !fork_guard_.in_forked_child()) mailbox_->close(drain_seconds);
    heap_->close();
}

Communicator::Communicator(std::shared_ptr<SharedJob> job, std::size_t offset, int rank, int size)
    : job_(std::move(job)),
      worker_(
          std::make_unique<Worker>(std::make_unique<Group>(job_->arena(), offset, rank, size))) {}

Communicator::~Communicator() {
    if (fork_guard_.in_forked_child()) static_cast<void>(worker_.release());
}

void Communicator::run(const CallArguments& arguments, const Limits& limits) {
    fork_guard_.check();
    worker_->run(arguments, limits);
}

std::shared_ptr<Completion> Communicator::start(CallArguments arguments, double seconds) {
    fork_guard_.check();
    return worker_->start(std::move(arguments), seconds);
}

void Communicator::finish(const std::shared_ptr<Completion>& completion, const Limits& limits) {
    fork_guard_.check();
    worker_->finish(completion, limits);
}

void Communicator::begin(const std::shared_ptr<Completion>& completion) {
    if (!fork_guard_.in_forked_child()) worker_->begin(completion);
}

std::shared_ptr<Transfer> Communicator::transfer(bool sending, int peer, std::int64_t tag) const {
    auto made = std::make_shared<Transfer>();
    made->sending = sending;
    made->peer = peer;
    made->group_members = worker_->group().group_members();
    made->context = worker_->group().number();
    made->tag = tag;
    made->page = worker_->group().page_number();
    return made;
}

void Communicator::run(const std::shared_ptr<Transfer>& transfer, const Limits& limits) {
    fork_guard_.check();
    job_->mailbox().post(transfer, limits.seconds);
    job_->mailbox().wait(transfer, limits);
}

void Communicator::start(const std::shared_ptr<Transfer>& transfer, double seconds) {
    fork_guard_.check();
    job_->mailbox().start(transfer, seconds);
}

std::unique_ptr<Communicator> Communicator::split(const std::vector<int>& ranks, std::int64_t key,
                                                  const Limits& limits) {
    NewGroupNotice notice;
    const auto exchange = [&](bool sending, int peer) {
        const auto made = transfer(sending, peer, key);
        made->context = split_context;
        made->splits = true;
        made->data = reinterpret_cast<std::byte*>(&notice);
        made->bytes = sizeof notice;
        run(made, limits);
    };
    const auto own = std::find(ranks.begin(), ranks.end(), worker_->group().rank());
    const int new_rank = static_cast<int>(own - ranks.begin());
    if (new_rank == 0) {
        std::vector<int> world_ranks;
        for (const int rank : ranks) world_ranks.push_back(worker_->group().world_rank(rank));
        std::optional<Failure> failure;
        try {
            notice.offset = Group::prepare(*job_->arena(), world_ranks, false);
        } catch (const Failure& caught) {
            failure = caught;
            caught.text.copy(notice.reason, sizeof notice.reason - 1);
        }
        for (std::size_t i = 1; i < ranks.size(); ++i) exchange(true, ranks[i]);
        if (failure) throw Failure(*failure);
    } else {
        exchange(false, ranks.front());
        notice.reason[sizeof notice.reason - 1] = 0;
        if (notice.offset == 0)
            throw Failure(FailureKind::memory,
                          format("rank %d found no memory for the new group: %s", ranks.front(),
                                 notice.reason),
                          {ranks.front()});
    }
    return std::make_unique<Communicator>(job_, notice.offset, new_rank,
                                          static_cast<int>(ranks.size()));
}

std::unique_ptr<Communicator> Communicator::shrink(const std::vector<int>& exclude,
                                                   const Limits& limits) {
    fork_guard_.check();
    worker_->check_not_inside();
    Group& group = worker_->group();
    worker_->abort_calls();
    job_->mailbox().end_group(group.number());
    const std::size_t offset = group.shrink(exclude, limits);
    const std::vector<int> ranks = Group::members_at(*job_->arena(), offset);
    const auto own = std::find(ranks.begin(), ranks.end(), group.world_rank(group.rank()));
    std::unique_ptr<Communicator> made;
    if (own != ranks.end())
        made = std::make_unique<Communicator>(job_, offset, static_cast<int>(own - ranks.begin()),
                                              static_cast<int>(ranks.size()));
    for (const int rank : world_ranks())
        if (!job_->arena()->alive(rank)) job_->mailbox().forget(rank);
    worker_->close(0);
    if (made == nullptr)
        throw Failure(FailureKind::closed,
                      "the other ranks have shrunk the group without this rank");
    return made;
}

void Communicator::close(double drain_seconds) noexcept {
    if (!fork_guard_.in_forked_child()) worker_->close(drain_seconds);
}

}  // namespace unisono
