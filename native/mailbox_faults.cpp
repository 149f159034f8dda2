// native/mailbox_faults.cpp: what can go wrong with a message, and what is said about it.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mailbox.hpp"
#include "process.hpp"

namespace unisono {

namespace {

/// Whether a ring contains no more messages than it has cells; both counters may change meanwhile.
bool is_consistent(const Channel& channel) noexcept {
    // acquire: keeps the loads in order; if `read` has not changed, `written` belongs to it.
    const std::uint64_t read = channel.read.load(std::memory_order_acquire);
    const std::uint64_t written = channel.written.load(std::memory_order_acquire);
    return written - read <= Arena::ring_cells ||
           channel.read.load(std::memory_order_relaxed) != read;
}

}  // namespace

/// Null if the message has the type and length of the receive. Sets its source in any case.
std::unique_ptr<Failure> Mailbox::misfit(Transfer& transfer, int source, std::uint8_t dtype_code,
                                         std::uint32_t item_bytes, std::size_t bytes) {
    const auto& ranks = transfer.group_members->world_ranks;
    transfer.source =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), source) - ranks.begin());
    if (transfer.dtype_code == dtype_code && transfer.bytes == bytes) return nullptr;
    return std::make_unique<Failure>(
        FailureKind::mismatch,
        format("rank %d sent %s x %zu, but this rank receives %s x %zu", transfer.source,
               name(static_cast<DType>(dtype_code)), bytes / std::max(item_bytes, 1u),
               name(static_cast<DType>(transfer.dtype_code)), transfer.bytes / transfer.item_bytes),
        std::vector<int>{transfer.source});
}

/// The memory of the sender of a message, a rank of its group, could not be read, or (ENOMEM) there
/// was none here.
std::unique_ptr<Failure> Mailbox::unreadable(int source, int error) {
    if (error == ENOMEM)
        return std::make_unique<Failure>(
            FailureKind::memory,
            format("rank %d sent this message before it was received, and this rank had no memory "
                   "to keep it; start the receive before the other rank sends, or receive in the "
                   "order in which it sends",
                   source),
            std::vector<int>{source});
    return std::make_unique<Failure>(
        FailureKind::system,
        format("the memory of rank %d could not be read: %s; it has been freed before the message "
               "was received, or the process has lost the permission since it started: "
               "UNISONO_SINGLE_COPY=0 does without it",
               source, std::strerror(error)),
        std::vector<int>{source});
}

/// Null while the transfer can still succeed.
std::unique_ptr<Failure> Mailbox::trouble(const Transfer& transfer) const {
    const auto& ranks = transfer.group_members->world_ranks;
    const auto gone = [&](int rank) {
        const int world = ranks[static_cast<std::size_t>(rank)];
        // acquire: pairs with the release in Arena::leave(): what it sent before is in the ring.
        return world != me_ && !arena_->about_to_end(world) &&
               (arena_->rank_info(world).left.load(std::memory_order_acquire) != 0 ||
                (transfer.splits ? transfer.group_members->left_for_good(rank)
                                 : transfer.group_members->left(rank)) ||
                !arena_->alive(world));
    };
    const char* verb = transfer.sending ? "send to" : "receive from";
    if (transfer.peer >= 0) {
        const int from = transfer.sending ? me_ : transfer.world_peer();
        const int to = transfer.sending ? transfer.world_peer() : me_;
        if (!is_consistent(arena_->channel(from, to)))
            return std::make_unique<Failure>(damaged(format(
                "the ring from rank %d to rank %d contains more than it has room for", from, to)));
        if (!gone(transfer.peer)) return nullptr;
        const int world = transfer.world_peer();
        // relaxed: pairs with Arena::announce_exit(), which came before the leaving that we
        // have seen.
        const bool left = arena_->alive(world) &&
                          arena_->rank_info(world).exiting.load(std::memory_order_relaxed) == 0;
        const std::string how = left ? "has left the group" : arena_->exit_reason(world);
        return std::make_unique<Failure>(
            FailureKind::lost,
            format("cannot %s rank %d (pid %d): it %s%s", verb, transfer.peer,
                   arena_->rank_info(world).pid.load(std::memory_order_relaxed), how.c_str(),
                   last_call_note(transfer).c_str()),
            std::vector<int>{transfer.peer});
    }
    std::vector<int> lost;
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank)
        if (gone(rank)) lost.push_back(rank);
    if (lost.empty() || lost.size() + 1 < ranks.size()) return nullptr;
    return std::make_unique<Failure>(FailureKind::lost,
                                     "cannot receive: all other ranks have ended or left", lost);
}

std::unique_ptr<Failure> Mailbox::expired(const Transfer& transfer) const {
    if (transfer.peer < 0)
        return std::make_unique<Failure>(
            FailureKind::timeout,
            format("no message came in %g s from any rank", transfer.seconds));
    const char* pattern = transfer.sending ? "rank %d has not received what was sent to it in %g s"
                                           : "no message came from rank %d in %g s";
    const ProcessState process = read_process_state(
        arena_->rank_info(transfer.world_peer()).pid.load(std::memory_order_relaxed));
    return std::make_unique<Failure>(FailureKind::timeout,
                                     format(pattern, transfer.peer, transfer.seconds) +
                                         (process.stopped() ? "; it is alive but stopped" : "") +
                                         last_call_note(transfer),
                                     std::vector<int>{transfer.peer});
}

/// The last call of the peer of a transfer, as the end of an error text.
std::string Mailbox::last_call_note(const Transfer& transfer) const {
    const std::string last_call_text =
        arena_->last_call_text(transfer.world_peer(), transfer.context);
    return last_call_text.empty() ? "; it has made no call yet"
                                  : "; its last call was " + last_call_text;
}

}  // namespace unisono
