// native/mailbox.hpp: point-to-point messages.
//
// There is one ring of cells from each rank to each rank. A message is one cell or several; the
// first one has its context (the number of the group), tag, type and length. The receiver matches
// it with the first receive that was posted for it. A message without a receive stays in the ring,
// unless a receive waits for a later one: then it is stored as an unexpected message.
//
// A message that is longer than the ring is one cell that says where it is, if the receiver can
// read the memory of the sender: one copy. The send is complete when the cell has been read.
//
// A thread that waits makes progress for all transfers of its rank. While asynchronous transfers
// are in progress and no thread waits, a background thread does.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker.hpp"

namespace unisono {

/// One send or one receive. Peers are ranks of its group.
struct Transfer {
    bool sending = false;
    int peer = -1;  ///< -1: from any rank
    std::shared_ptr<const GroupMembers> group_members;
    std::uint32_t context = 0;
    std::int64_t tag = 0;
    bool splits = false;  ///< prepares a new group, perhaps of those that have lost another rank
    std::uint8_t dtype_code = 0;
    std::uint32_t item_bytes = 1;
    std::byte* data = nullptr;
    std::size_t bytes = 0;

    std::size_t moved = 0;
    bool begun = false;
    bool offered = false;    ///< the receiver reads our memory
    std::uint64_t cell = 0;  ///< then: the number of the cell that says where
    int source = -1;         ///< the sender, after the message has been matched
    double seconds = 0;
    Clock::time_point deadline;
    bool recorded = false;  ///< whether it appears in the log
    std::uint32_t page = 0;
    CallSite call_site;
    std::uint64_t log_sequence = 0;  ///< of its record in our log; 0: none
    std::vector<std::byte> own;      ///< a copy of the rest of a send whose caller has given up
    Completion completion;

    int world_peer() const {
        return peer < 0 ? -1 : group_members->world_ranks[static_cast<std::size_t>(peer)];
    }

    /// Whether this receive accepts messages from this world rank.
    bool accepts(int source) const {
        const auto& ranks = group_members->world_ranks;
        return peer < 0 ? std::find(ranks.begin(), ranks.end(), source) != ranks.end()
                        : world_peer() == source;
    }
};

/// All sends and receives of one rank. Thread-safe.
class Mailbox {
public:
    Mailbox(std::shared_ptr<Arena> arena, int world_rank);
    ~Mailbox();

    /// Queues a transfer and makes progress without waiting.
    void post(const std::shared_ptr<Transfer>& transfer, double seconds);

    /// Makes progress until this transfer is complete; if it throws Failure, it has cancelled it.
    void wait(const std::shared_ptr<Transfer>& transfer, const Limits& limits);

    /// Queues a transfer, and leaves it to the background thread. If there can be none, it throws
    /// Failure and has cancelled the transfer.
    void start(const std::shared_ptr<Transfer>& transfer, double seconds);

    /// Starts the background thread, or wakes it up. Throws Failure if there can be none.
    void serve_in_background();

    /// Ends all transfers of a group that cannot be used any more.
    void end_group(std::uint32_t context);

    /// Releases the rings to and from a rank that has ended, if they are empty.
    void forget(int world_rank);

    /// Waits up to `drain_seconds` for sends to complete, cancels the rest, and leaves the job.
    void close(double drain_seconds) noexcept;

private:
    struct UnexpectedMessage;
    struct IncomingMessage;

    bool progress();
    bool push(int peer);
    bool offers_memory(const Transfer& transfer, int peer) const noexcept;
    void withdraw(const Transfer& transfer, const std::byte* instead) noexcept;
    bool pull(int source);
    bool read_offer(int source, const std::byte* cell);
    void deliver_first_cell(int source, const std::byte* cell);
    void match_unexpected(const std::shared_ptr<Transfer>& transfer);
    std::shared_ptr<Transfer> match(int source, std::uint32_t context, std::int64_t tag);
    void finish(const std::shared_ptr<Transfer>& transfer, std::unique_ptr<Failure> failure);
    std::unique_ptr<Failure> misfit(Transfer& transfer, int source, std::uint8_t dtype_code,
                                    std::uint32_t item_bytes, std::size_t bytes);
    static std::unique_ptr<Failure> unreadable(int source, int error);
    std::unique_ptr<Failure> trouble(const Transfer& transfer) const;
    std::unique_ptr<Failure> expired(const Transfer& transfer) const;
    std::string last_call_note(const Transfer& transfer) const;
    void record_start(Transfer& transfer) noexcept;
    void cancel(const std::shared_ptr<Transfer>& transfer);
    void give_up(const std::shared_ptr<Transfer>& transfer, FailureKind why);
    void finish_in_background() noexcept;
    bool pending() const;
    std::vector<std::shared_ptr<Transfer>> underway() const;
    void supervise();
    void serve();

    std::shared_ptr<Arena> arena_;
    int me_;
    std::mutex mutex_;                                             ///< guards everything below
    std::vector<std::deque<std::shared_ptr<Transfer>>> outgoing_;  ///< by peer, in order
    std::vector<bool> committed_;                                  ///< rings that have pages
    std::list<std::shared_ptr<Transfer>> receives_;                ///< posted and not matched
    std::vector<IncomingMessage> incoming_;  ///< by source: the message that arrives now
    std::list<std::shared_ptr<UnexpectedMessage>> unexpected_;  ///< in order of arrival
    bool serving_ = false;
    bool closed_ = false;
    std::condition_variable wake_;  ///< for the background thread: there is work
    std::thread thread_;
};

}  // namespace unisono
