// native/mailbox.hpp: messages between two ranks of a job.
//
// From each rank to each rank runs one ring of cells. A message is one cell or several; the first
// says whose it is (context: the number of the group; tag), what it holds and how long it is. The
// receiver matches it with the first receive that was posted for it; a message that nobody waits
// for stays in the ring, unless a receive waits for one behind it: then it is put aside.
//
// Whoever waits moves everything that can move, for itself and for others; while asynchronous
// messages are under way and nobody waits, a thread does.
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

/// One message on its way, seen from the sender or the receiver. Peers are ranks of its group.
struct Transfer {
    bool sending = false;
    int peer = -1;  ///< -1: from any rank
    std::shared_ptr<const GroupMembers> group_members;
    std::uint32_t context = 0;
    std::int64_t tag = 0;
    std::uint8_t dtype_code = 0;
    std::uint32_t item_bytes = 1;
    std::byte* data = nullptr;
    std::size_t bytes = 0;

    std::size_t moved = 0;
    bool begun = false;
    int source = -1;  ///< who sent it, once it has come
    double seconds = 0;
    Clock::time_point deadline;
    bool recorded = false;  ///< whether it appears in the log
    std::uint32_t page = 0;
    CallSite call_site;
    std::uint64_t log_sequence = 0;  ///< of its record in our log; 0: none
    std::vector<std::byte> own;      ///< the rest of a send whose caller has given up
    Completion completion;

    int world_peer() const {
        return peer < 0 ? -1 : group_members->world_ranks[static_cast<std::size_t>(peer)];
    }

    /// Whether a message from this rank of the world may be what we wait for.
    bool awaits(int source) const {
        const auto& ranks = group_members->world_ranks;
        return peer < 0 ? std::find(ranks.begin(), ranks.end(), source) != ranks.end()
                        : world_peer() == source;
    }
};

class Mailbox {
public:
    Mailbox(std::shared_ptr<Arena> arena, int world_rank);
    ~Mailbox();

    /// Puts a transfer in the queue and moves what can move at once.
    void post(const std::shared_ptr<Transfer>& transfer, double seconds);

    /// Moves transfers until this one has come to its end; throws Failure, and then has cancelled
    /// it.
    void wait(const std::shared_ptr<Transfer>& transfer, const Limits& limits);

    /// Sees to it that transfers move although nobody waits.
    void serve_in_background();

    /// Ends all transfers of a group, which is of no more use.
    void end_group(std::uint32_t context);

    /// Gives back what a rank that has ended leaves in our rings.
    void forget(int world_rank);

    /// Lets sends end for up to `drain_seconds`, gives up the rest, and leaves the job.
    void close(double drain_seconds) noexcept;

private:
    struct UnexpectedMessage;
    struct IncomingMessage;

    bool progress();
    bool push(int peer);
    bool pull(int source);
    void deliver_first_cell(int source, const std::byte* cell);
    void match_unexpected(const std::shared_ptr<Transfer>& transfer);
    std::shared_ptr<Transfer> match(int source, std::uint32_t context, std::int64_t tag);
    void finish(const std::shared_ptr<Transfer>& transfer, std::unique_ptr<Failure> failure);
    std::unique_ptr<Failure> misfit(Transfer& transfer, int source, std::uint8_t dtype_code,
                                    std::uint32_t item_bytes, std::size_t bytes);
    std::unique_ptr<Failure> trouble(const Transfer& transfer) const;
    std::unique_ptr<Failure> expired(const Transfer& transfer) const;
    std::string last_call_note(const Transfer& transfer) const;
    void note(Transfer& transfer) noexcept;
    void cancel(const std::shared_ptr<Transfer>& transfer);
    bool pending() const;
    void supervise();
    void serve();

    std::shared_ptr<Arena> arena_;
    int me_;
    std::mutex mutex_;                                             ///< guards everything below
    std::vector<std::deque<std::shared_ptr<Transfer>>> outgoing_;  ///< by peer, in order
    std::vector<bool> committed_;                                  ///< rings that have pages
    std::list<std::shared_ptr<Transfer>> receives_;                ///< posted and not matched
    std::vector<IncomingMessage> incoming_;  ///< by source: the message in the ring
    std::list<std::shared_ptr<UnexpectedMessage>> unexpected_;  ///< put aside, in order of arrival
    bool serving_ = false;
    bool closed_ = false;
    std::condition_variable wake_;  ///< the thread has something to do again
    std::thread thread_;
};

}  // namespace unisono
