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
struct Letter {
    bool sending = false;
    int peer = -1;  ///< -1: from any rank
    std::shared_ptr<const Directory> directory;
    std::uint32_t context = 0;
    std::int64_t tag = 0;
    std::uint8_t dtype_code = 0;
    std::uint32_t item = 1;
    std::byte* data = nullptr;
    std::size_t bytes = 0;

    std::size_t moved = 0;
    bool begun = false;
    int source = -1;  ///< who sent it, once it has come
    double seconds = 0;
    Clock::time_point deadline;
    bool recorded = false;  ///< whether it appears in the log
    std::uint32_t page = 0;
    Place place;
    std::uint64_t record = 0;    ///< in our log; 0: none
    std::vector<std::byte> own;  ///< the rest of a send whose caller has given up
    Completion completion;

    int world_peer() const {
        return peer < 0 ? -1 : directory->world_ranks[static_cast<std::size_t>(peer)];
    }

    /// Whether a message from this rank of the world may be what we wait for.
    bool awaits(int source) const {
        const auto& ranks = directory->world_ranks;
        return peer < 0 ? std::find(ranks.begin(), ranks.end(), source) != ranks.end()
                        : world_peer() == source;
    }
};

class Mailbox {
public:
    Mailbox(std::shared_ptr<Arena> arena, int world_rank);
    ~Mailbox();

    /// Puts a letter in the queue and moves what can move at once.
    void post(const std::shared_ptr<Letter>& letter, double seconds);

    /// Moves letters until this one has come to its end; throws Failure, and then has cancelled it.
    void wait(const std::shared_ptr<Letter>& letter, const Limits& limits);

    /// Sees to it that letters move although nobody waits.
    void serve_in_background();

    /// Ends all letters of a group, which is of no more use.
    void end_group(std::uint32_t context);

    /// Gives back what a rank that has ended leaves in our rings.
    void forget(int world_rank);

    /// Lets sends end for up to `drain_seconds`, gives up the rest, and leaves the job.
    void close(double drain_seconds) noexcept;

private:
    struct Stored;
    struct Inbound;

    bool progress();
    bool push(int peer);
    bool pull(int source);
    void deliver_first_cell(int source, const std::byte* cell);
    void take_stored(const std::shared_ptr<Letter>& letter);
    std::shared_ptr<Letter> match(int source, std::uint32_t context, std::int64_t tag);
    void finish(const std::shared_ptr<Letter>& letter, std::unique_ptr<Failure> failure);
    std::unique_ptr<Failure> misfit(Letter& letter, int source, std::uint8_t dtype_code,
                                    std::uint32_t item, std::size_t bytes);
    std::unique_ptr<Failure> trouble(const Letter& letter) const;
    std::unique_ptr<Failure> expired(const Letter& letter) const;
    std::string story(const Letter& letter) const;
    void note(Letter& letter) noexcept;
    void cancel(const std::shared_ptr<Letter>& letter);
    bool pending() const;
    void supervise();
    void serve();

    std::shared_ptr<Arena> arena_;
    int me_;
    std::mutex mutex_;                                           ///< guards everything below
    std::vector<std::deque<std::shared_ptr<Letter>>> outgoing_;  ///< by peer, in order
    std::vector<bool> committed_;                                ///< rings that have pages
    std::list<std::shared_ptr<Letter>> receives_;                ///< posted and not matched
    std::vector<Inbound> inbound_;               ///< by source: the message in the ring
    std::list<std::shared_ptr<Stored>> stored_;  ///< put aside, in order of arrival
    bool serving_ = false;
    bool closed_ = false;
    std::condition_variable wake_;  ///< the thread has something to do again
    std::thread thread_;
};

}  // namespace unisono
