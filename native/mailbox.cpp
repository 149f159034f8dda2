// native/mailbox.cpp: filling, matching and emptying message cells.
#include "mailbox.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"
#include "process.hpp"

namespace unisono {

namespace {

/// Stands at the beginning of every cell, and counts in the first cell of a message only. All cells
/// of a message but the last are full.
struct alignas(64) CellHeader {
    std::int64_t tag;
    std::uint64_t bytes;
    std::uint32_t context;
    std::uint32_t item;
    std::uint8_t dtype_code;
};

constexpr auto idle_time = std::chrono::seconds(1);  // how long the thread stays without work

/// Whether a ring holds no more than it has cells, as far as that can be seen while it moves.
bool sound(const Channel& channel) noexcept {
    // acquire: the loads stay in this order; while `read` is the same, `written` belongs to it.
    const std::uint64_t read = channel.read.load(std::memory_order_acquire);
    const std::uint64_t written = channel.written.load(std::memory_order_acquire);
    return written - read <= Arena::ring_cells ||
           channel.read.load(std::memory_order_relaxed) != read;
}

}  // namespace

/// A message that was put aside, whole or still arriving. It grows as it comes: its length is only
/// the word of another rank.
struct Mailbox::Stored {
    int source;
    CellHeader header;
    std::vector<std::byte> data = {};
};

/// The message whose cells stand at the head of a ring: where its bytes go.
struct Mailbox::Inbound {
    std::size_t left = 0;  ///< bytes still to come; with `active`, may be 0 for an empty message
    bool active = false;
    std::shared_ptr<Letter> letter;  ///< a receive,
    std::shared_ptr<Stored> stored;  ///< or a place aside; neither: thrown away
};

Mailbox::Mailbox(std::shared_ptr<Arena> arena, int world_rank)
    : arena_(std::move(arena)),
      me_(world_rank),
      outgoing_(static_cast<std::size_t>(arena_->size())),
      committed_(static_cast<std::size_t>(arena_->size())),
      inbound_(static_cast<std::size_t>(arena_->size())) {}

Mailbox::~Mailbox() { close(0); }

void Mailbox::post(const std::shared_ptr<Letter>& letter, double seconds) {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Failure(Fault::closed, "the world is closed");
    note(*letter);
    letter->seconds = seconds;
    letter->deadline = deadline_after(seconds);
    if (letter->sending) {
        const auto peer = static_cast<std::size_t>(letter->world_peer());
        if (!committed_[peer]) {
            arena_->commit_ring(me_, letter->world_peer());
            committed_[peer] = true;
        }
        outgoing_[peer].push_back(letter);
        push(letter->world_peer());
    } else {
        take_stored(letter);
        progress();
    }
}

void Mailbox::wait(const std::shared_ptr<Letter>& letter, const Limits& limits) {
    try {
        wait_until(
            arena_->resident(me_).doorbell, arena_->patience(), limits,
            [&] {
                if (letter->completion.done()) return true;
                const std::lock_guard lock(mutex_);
                progress();
                return letter->completion.done();
            },
            [&] {
                const auto failure = trouble(*letter);
                if (failure == nullptr) return;
                const std::lock_guard lock(mutex_);
                progress();  // what had come before the peer ended still counts
                if (!letter->completion.done()) throw Failure(*failure);
            },
            [&] { throw Failure(*expired(*letter)); });
    } catch (const Failure& failure) {
        arena_->log(me_).end(letter->record, failed(failure.fault));
        {
            const std::lock_guard lock(mutex_);
            cancel(letter);
        }
        serve_in_background();  // what is left of a message must go through the ring all the same
        throw;
    }
    if (const Failure* failure = letter->completion.failure()) {
        serve_in_background();
        throw Failure(*failure);
    }
}

// ---- moving; the lock is held ------------------------------------------------------------------

bool Mailbox::progress() {
    bool moved = false;
    for (int rank = 0; rank < arena_->size(); ++rank) {
        moved = push(rank) || moved;
        moved = pull(rank) || moved;
    }
    return moved;
}

/// Fills free cells of the ring to `peer` with the letters that wait for it.
bool Mailbox::push(int peer) {
    auto& queue = outgoing_[static_cast<std::size_t>(peer)];
    bool moved = false;
    Channel& channel = arena_->channel(me_, peer);
    const std::size_t room = arena_->cell_bytes() - sizeof(CellHeader);
    while (!queue.empty()) {
        const auto letter = queue.front();
        while (!letter->begun || letter->moved < letter->bytes) {
            const std::uint64_t written = channel.written.load(std::memory_order_relaxed);
            // acquire: pairs with the release in pull(): the receiver has finished with the cell.
            if (written - channel.read.load(std::memory_order_acquire) >= Arena::ring_cells)
                return moved;
            std::byte* cell =
                arena_->ring(me_, peer) + written % Arena::ring_cells * arena_->cell_bytes();
            const std::size_t here = std::min(room, letter->bytes - letter->moved);
            *reinterpret_cast<CellHeader*>(cell) = {letter->tag, letter->bytes, letter->context,
                                                    letter->item, letter->dtype_code};
            kernels().copy(cell + sizeof(CellHeader), letter->data + letter->moved, here,
                           Store::plain);
            letter->moved += here;
            letter->begun = true;
            channel.written.store(written + 1, std::memory_order_release);  // pairs with pull()
            ring(arena_->resident(peer).doorbell);
            moved = true;
        }
        queue.pop_front();
        finish(letter, nullptr);
    }
    return moved;
}

/// Empties cells of the ring from `source` into whatever they belong to.
bool Mailbox::pull(int source) {
    Inbound& inbound = inbound_[static_cast<std::size_t>(source)];
    Channel& channel = arena_->channel(source, me_);
    const std::size_t room = arena_->cell_bytes() - sizeof(CellHeader);
    bool moved = false;
    for (;;) {
        const std::uint64_t read = channel.read.load(std::memory_order_relaxed);
        // acquire: pairs with the release in push(): the cell is filled. More than all cells are no
        // number of filled ones; see trouble().
        const std::uint64_t filled = channel.written.load(std::memory_order_acquire) - read;
        if (filled == 0 || filled > Arena::ring_cells) return moved;
        const std::byte* cell =
            arena_->ring(source, me_) + read % Arena::ring_cells * arena_->cell_bytes();
        if (!inbound.active) deliver_first_cell(source, cell);
        if (!inbound.active) return moved;  // nobody waits for it yet
        const std::size_t here = std::min(room, inbound.left);
        const std::byte* payload = cell + sizeof(CellHeader);
        if (inbound.letter != nullptr) {
            kernels().copy(inbound.letter->data + inbound.letter->moved, payload, here,
                           Store::plain);
            inbound.letter->moved += here;
        } else if (inbound.stored != nullptr) {
            inbound.stored->data.insert(inbound.stored->data.end(), payload, payload + here);
        }
        inbound.left -= here;
        channel.read.store(read + 1, std::memory_order_release);  // pairs with push()
        ring(arena_->resident(source).doorbell);
        moved = true;
        if (inbound.left != 0) continue;
        const auto letter = std::move(inbound.letter);
        inbound = {};
        if (letter != nullptr) finish(letter, nullptr);
    }
}

/// Decides where the message goes that begins with this cell.
void Mailbox::deliver_first_cell(int source, const std::byte* cell) {
    const CellHeader header = *reinterpret_cast<const CellHeader*>(cell);
    std::atomic_signal_fence(std::memory_order_acquire);  // from here on no second look at the cell
    Inbound& inbound = inbound_[static_cast<std::size_t>(source)];
    const auto letter = match(source, header.context, header.tag);
    if (letter == nullptr) {
        const bool awaited = std::any_of(receives_.begin(), receives_.end(),
                                         [&](const auto& other) { return other->awaits(source); });
        if (!awaited) return;
        inbound.stored = std::make_shared<Stored>(Stored{source, header});
        stored_.push_back(inbound.stored);
    } else if (auto failure =
                   misfit(*letter, source, header.dtype_code, header.item, header.bytes)) {
        finish(letter, std::move(failure));  // and the message is thrown away
    } else {
        inbound.letter = letter;
    }
    inbound.active = true;
    inbound.left = header.bytes;
}

/// Takes the first receive that was posted for such a message out of the list.
std::shared_ptr<Letter> Mailbox::match(int source, std::uint32_t context, std::int64_t tag) {
    const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& letter) {
        return letter->context == context && letter->tag == tag && letter->awaits(source);
    });
    if (found == receives_.end()) return nullptr;
    auto letter = *found;
    receives_.erase(found);
    return letter;
}

/// A new receive: perhaps its message was put aside; otherwise it waits.
void Mailbox::take_stored(const std::shared_ptr<Letter>& letter) {
    const auto found = std::find_if(stored_.begin(), stored_.end(), [&](const auto& stored) {
        return stored->header.context == letter->context && stored->header.tag == letter->tag &&
               letter->awaits(stored->source);
    });
    if (found == stored_.end()) {
        receives_.push_back(letter);
        return;
    }
    const auto stored = *found;
    stored_.erase(found);
    Inbound& inbound = inbound_[static_cast<std::size_t>(stored->source)];
    const bool arriving = inbound.stored == stored;
    if (arriving) inbound.stored = nullptr;  // thrown away, unless it fits
    const CellHeader& header = stored->header;
    if (auto failure =
            misfit(*letter, stored->source, header.dtype_code, header.item, header.bytes))
        return finish(letter, std::move(failure));
    letter->moved = stored->data.size();
    if (letter->moved != 0) std::memcpy(letter->data, stored->data.data(), letter->moved);
    if (arriving)
        inbound.letter = letter;
    else
        finish(letter, nullptr);
}

/// Null if the message is what the receive expects. Notes where it came from in any case.
std::unique_ptr<Failure> Mailbox::misfit(Letter& letter, int source, std::uint8_t dtype_code,
                                         std::uint32_t item, std::size_t bytes) {
    const auto& ranks = letter.directory->world_ranks;
    letter.source = static_cast<int>(std::find(ranks.begin(), ranks.end(), source) - ranks.begin());
    if (letter.dtype_code == dtype_code && letter.bytes == bytes) return nullptr;
    return std::make_unique<Failure>(
        Fault::mismatch,
        format("rank %d sent %s x %zu, but this rank receives %s x %zu", letter.source,
               name(static_cast<DType>(dtype_code)), bytes / std::max(item, 1u),
               name(static_cast<DType>(letter.dtype_code)), letter.bytes / letter.item),
        std::vector<int>{letter.source});
}

void Mailbox::finish(const std::shared_ptr<Letter>& letter, std::unique_ptr<Failure> failure) {
    arena_->log(me_).end(letter->record, failure == nullptr ? State::done : failed(failure->fault));
    letter->completion.finish(std::move(failure));
    ring(arena_->resident(me_).doorbell);  // another thread of this rank may wait for it
}

/// Takes a letter out of every list. A send that has begun must go on, or the ring would be spoilt:
/// it gets a copy of what is left, for its caller's memory is no longer ours.
void Mailbox::cancel(const std::shared_ptr<Letter>& letter) {
    if (letter->completion.done()) return;
    receives_.remove(letter);
    for (Inbound& inbound : inbound_)
        if (inbound.letter == letter) inbound.letter = nullptr;
    if (!letter->sending) return;
    auto& queue = outgoing_[static_cast<std::size_t>(letter->world_peer())];
    if (letter->begun) {
        letter->own.assign(letter->data + letter->moved, letter->data + letter->bytes);
        letter->bytes -= letter->moved;
        letter->data = letter->own.data();
        letter->moved = 0;
    } else {
        std::erase(queue, letter);
    }
}

// ---- when nothing moves ------------------------------------------------------------------------

/// Null while the letter may still come to a good end.
std::unique_ptr<Failure> Mailbox::trouble(const Letter& letter) const {
    const auto& ranks = letter.directory->world_ranks;
    const auto gone = [&](int rank) {
        const int world = ranks[static_cast<std::size_t>(rank)];
        // acquire: pairs with the release in Arena::leave(): what it sent before is in the ring.
        return world != me_ && !arena_->about_to_end(world) &&
               (arena_->resident(world).left.load(std::memory_order_acquire) != 0 ||
                letter.directory->left(rank) || !arena_->alive(world));
    };
    const char* verb = letter.sending ? "send to" : "receive from";
    if (letter.peer >= 0) {
        const int from = letter.sending ? me_ : letter.world_peer();
        const int to = letter.sending ? letter.world_peer() : me_;
        if (!sound(arena_->channel(from, to)))
            return std::make_unique<Failure>(damaged(format(
                "the ring from rank %d to rank %d is said to hold more than it can", from, to)));
        if (!gone(letter.peer)) return nullptr;
        const int world = letter.world_peer();
        // relaxed: pairs with Arena::exit(), which came before the leaving that we have seen.
        const bool left = arena_->alive(world) &&
                          arena_->resident(world).exiting.load(std::memory_order_relaxed) == 0;
        const std::string how = left ? "has left the group" : arena_->fate(world);
        return std::make_unique<Failure>(
            Fault::lost,
            format("cannot %s rank %d (pid %d): it %s%s", verb, letter.peer,
                   arena_->resident(world).pid.load(std::memory_order_relaxed), how.c_str(),
                   story(letter).c_str()),
            std::vector<int>{letter.peer});
    }
    std::vector<int> lost;
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank)
        if (gone(rank)) lost.push_back(rank);
    if (lost.empty() || lost.size() + 1 < ranks.size()) return nullptr;
    return std::make_unique<Failure>(Fault::lost,
                                     "cannot receive: all other ranks have ended or left", lost);
}

std::unique_ptr<Failure> Mailbox::expired(const Letter& letter) const {
    if (letter.peer < 0)
        return std::make_unique<Failure>(
            Fault::timeout, format("no message came in %g s from any rank", letter.seconds));
    const char* pattern = letter.sending ? "rank %d has not received what was sent to it in %g s"
                                         : "no message came from rank %d in %g s";
    const Process process =
        look_at(arena_->resident(letter.world_peer()).pid.load(std::memory_order_relaxed));
    return std::make_unique<Failure>(Fault::timeout,
                                     format(pattern, letter.peer, letter.seconds) +
                                         (process.stopped() ? "; it is alive but stopped" : "") +
                                         story(letter),
                                     std::vector<int>{letter.peer});
}

/// What the peer of a letter did last.
std::string Mailbox::story(const Letter& letter) const {
    const std::string deed = arena_->deed(letter.world_peer(), letter.context);
    return deed.empty() ? "; it has called nothing yet" : "; its last call was " + deed;
}

/// Notes a letter in our log. Those that make groups are our own business and bear no place.
void Mailbox::note(Letter& letter) noexcept {
    if (!letter.recorded) return;
    Request request;
    request.verb = letter.sending ? Verb::send : Verb::recv;
    request.dtype_code = letter.dtype_code;
    request.root = letter.peer;
    request.count = letter.bytes / letter.item;
    request.place = letter.place;
    letter.record = arena_->log(me_).begin(request, letter.context, letter.page, 0);
}

bool Mailbox::pending() const {
    return !receives_.empty() ||
           std::any_of(outgoing_.begin(), outgoing_.end(),
                       [](const auto& queue) { return !queue.empty(); }) ||
           std::any_of(inbound_.begin(), inbound_.end(),
                       [](const Inbound& inbound) { return inbound.active; });
}

/// Ends letters whose peer is gone or whose time is up.
void Mailbox::supervise() {
    std::vector<std::shared_ptr<Letter>> letters(receives_.begin(), receives_.end());
    for (const auto& queue : outgoing_) letters.insert(letters.end(), queue.begin(), queue.end());
    for (const Inbound& inbound : inbound_)
        if (inbound.letter != nullptr) letters.push_back(inbound.letter);
    const auto now = Clock::now();
    for (const auto& letter : letters) {
        auto failure = trouble(*letter);
        if (failure != nullptr)
            progress();  // what had come before the peer ended still counts
        else if (now >= letter->deadline)
            failure = expired(*letter);
        if (failure == nullptr || letter->completion.done()) continue;
        const bool orphan = !letter->own.empty();
        cancel(letter);
        if (orphan) std::erase(outgoing_[static_cast<std::size_t>(letter->world_peer())], letter);
        finish(letter, std::move(failure));
    }
}

void Mailbox::end_group(std::uint32_t context) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Letter>> letters(receives_.begin(), receives_.end());
    for (const auto& queue : outgoing_) letters.insert(letters.end(), queue.begin(), queue.end());
    for (const Inbound& inbound : inbound_)
        if (inbound.letter != nullptr) letters.push_back(inbound.letter);
    for (const auto& letter : letters) {
        if (letter->context != context || letter->completion.done()) continue;
        cancel(letter);
        finish(letter, std::make_unique<Failure>(Fault::closed,
                                                 "the group was shrunk before the "
                                                 "message had moved"));
    }
    for (Inbound& inbound : inbound_)
        if (inbound.stored != nullptr && inbound.stored->header.context == context)
            inbound.stored = nullptr;  // the rest of it is thrown away as it comes
    stored_.remove_if([&](const auto& stored) { return stored->header.context == context; });
}

void Mailbox::forget(int world_rank) {
    const std::lock_guard lock(mutex_);
    const auto rank = static_cast<std::size_t>(world_rank);
    if (outgoing_[rank].empty() && committed_[rank]) {
        committed_[rank] = false;
        arena_->release_ring(me_, world_rank);
    }
    // What it has sent and nobody has received stays: it may belong to another group.
    const Channel& channel = arena_->channel(world_rank, me_);
    // acquire: pairs with the release in push(): nothing more comes, for the sender has ended.
    const std::uint64_t written = channel.written.load(std::memory_order_acquire);
    if (written != 0 && written == channel.read.load(std::memory_order_relaxed))
        arena_->release_ring(world_rank, me_);
}

void Mailbox::serve_in_background() {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (serving_) {
        wake_.notify_all();
        ring(arena_->resident(me_).doorbell);
        return;
    }
    if (thread_.joinable()) thread_.join();  // it has decided to end, and holds no lock any more
    serving_ = true;
    thread_ = std::thread([this] { serve(); });
}

void Mailbox::serve() {
    leave_signals_to_others();
    std::unique_lock lock(mutex_);
    Signal& doorbell = arena_->resident(me_).doorbell;
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
    const auto end = [&](const std::shared_ptr<Letter>& letter) {
        if (!letter->completion.done())
            finish(letter, std::make_unique<Failure>(Fault::closed,
                                                     "the world was closed before the "
                                                     "message had moved"));
    };
    for (auto& queue : outgoing_) std::for_each(queue.begin(), queue.end(), end), queue.clear();
    std::for_each(receives_.begin(), receives_.end(), end);
    receives_.clear();
    for (Inbound& inbound : inbound_)
        if (inbound.letter != nullptr) end(inbound.letter), inbound.letter = nullptr;
    wake_.notify_all();
    ring(arena_->resident(me_).doorbell);
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    arena_->leave(me_);
}

}  // namespace unisono
