// native/mailbox.cpp: fill, match and empty message cells.
#include "mailbox.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "kernels.hpp"
#include "mailbox_messages.hpp"

namespace unisono {

namespace {

/// How much of an offered message is read at once.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Arena> arena, int world_rank)
    : arena_(std::move(arena)),
      me_(world_rank),
      outgoing_(static_cast<std::size_t>(arena_->size())),
      committed_(static_cast<std::size_t>(arena_->size())),
      incoming_(static_cast<std::size_t>(arena_->size())) {}

Mailbox::~Mailbox() { close(0); }

void Mailbox::post(const std::shared_ptr<Transfer>& transfer, double seconds) {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Failure(FailureKind::closed, "the world is closed");
    record_start(*transfer);
    transfer->seconds = seconds;
    transfer->deadline = deadline_after(seconds);
    if (transfer->sending) {
        const auto peer = static_cast<std::size_t>(transfer->world_peer());
        if (!committed_[peer]) {
            arena_->commit_ring(me_, transfer->world_peer());
            committed_[peer] = true;
        }
        outgoing_[peer].push_back(transfer);
        push(transfer->world_peer());
    } else {
        match_unexpected(transfer);
        progress();
    }
}

/// Records a transfer in our log, but not the ones of split(), which the user did not call.
void Mailbox::record_start(Transfer& transfer) noexcept {
    if (!transfer.recorded) return;
    CallArguments arguments;
    arguments.verb = transfer.sending ? Verb::send : Verb::recv;
    arguments.dtype_code = transfer.dtype_code;
    arguments.root = transfer.peer;
    arguments.count = transfer.bytes / transfer.item_bytes;
    arguments.call_site = transfer.call_site;
    transfer.log_sequence = arena_->log(me_).begin(arguments, transfer.context, transfer.page, 0);
}

void Mailbox::wait(const std::shared_ptr<Transfer>& transfer, const Limits& limits) {
    try {
        wait_until(
            arena_->rank_info(me_).doorbell, arena_->spin_policy(), limits,
            [&] {
                if (transfer->completion.done()) return true;
                const std::lock_guard lock(mutex_);
                progress();
                return transfer->completion.done();
            },
            [&] {
                const auto failure = trouble(*transfer);
                if (failure == nullptr) return;
                const std::lock_guard lock(mutex_);
                progress();  // what arrived before the peer ended still counts
                if (!transfer->completion.done()) throw Failure(*failure);
            },
            [&] { throw Failure(*expired(*transfer)); });
    } catch (const Failure& failure) {
        give_up(transfer, failure.kind);
        throw;
    }
    if (const Failure* failure = transfer->completion.failure()) {
        finish_in_background();
        throw Failure(*failure);
    }
}

// ---- progress; the lock is held ----------------------------------------------------------------

bool Mailbox::progress() {
    bool moved = false;
    for (int rank = 0; rank < arena_->size(); ++rank) {
        moved = push(rank) || moved;
        moved = pull(rank) || moved;
    }
    return moved;
}

/// Fills free cells of the ring to `peer` from its queue of sends. An offered message is one cell;
/// the next message begins when it has been read.
bool Mailbox::push(int peer) {
    auto& queue = outgoing_[static_cast<std::size_t>(peer)];
    bool moved = false;
    Channel& channel = arena_->channel(me_, peer);
    const std::size_t room = arena_->cell_bytes() - sizeof(CellHeader);
    while (!queue.empty()) {
        const auto transfer = queue.front();
        while (!transfer->offered && (!transfer->begun || transfer->moved < transfer->bytes)) {
            const std::uint64_t written = channel.written.load(std::memory_order_relaxed);
            // acquire: pairs with the release in pull(): the receiver has emptied the cell.
            if (written - channel.read.load(std::memory_order_acquire) >= Arena::ring_cells)
                return moved;
            std::byte* cell =
                arena_->ring(me_, peer) + written % Arena::ring_cells * arena_->cell_bytes();
            transfer->offered = !transfer->begun && offers_memory(*transfer, peer);
            *reinterpret_cast<CellHeader*>(cell) = {transfer->tag,        transfer->bytes,
                                                    transfer->context,    transfer->item_bytes,
                                                    transfer->dtype_code, transfer->offered};
            if (transfer->offered) {
                new (cell + sizeof(CellHeader))
                    MessageOffer{reinterpret_cast<std::uintptr_t>(transfer->data), 0};
                transfer->cell = written;
            } else {
                const std::size_t here = std::min(room, transfer->bytes - transfer->moved);
                kernels().copy(cell + sizeof(CellHeader), transfer->data + transfer->moved, here,
                               StoreMode::plain);
                transfer->moved += here;
            }
            transfer->begun = true;
            channel.written.store(written + 1, std::memory_order_release);  // pairs with pull()
            ring(arena_->rank_info(peer).doorbell);
            moved = true;
        }
        // acquire: pairs with the release in pull(): the receiver does not read our memory any
        // more.
        if (transfer->offered && channel.read.load(std::memory_order_acquire) <= transfer->cell)
            return moved;
        queue.pop_front();
        finish(transfer, nullptr);
    }
    return moved;
}

/// Whether the receiver shall read our memory: not if the ring has room for the whole message, so
/// that a short send never waits for its receive.
bool Mailbox::offers_memory(const Transfer& transfer, int peer) const noexcept {
    if (transfer.bytes <= Arena::ring_cells * (arena_->cell_bytes() - sizeof(CellHeader)))
        return false;
    const ReadsPeers reader = arena_->reads_peers(peer);
    return reader >= ReadsPeers::slowly &&
           arena_->single_copy_range(Verb::send, 2, reader == ReadsPeers::quickly)
               .contains(transfer.bytes);
}

/// Tells the receiver of an offered message that it is somewhere else now, or (null) nowhere.
void Mailbox::withdraw(const Transfer& transfer, const std::byte* instead) noexcept {
    const int peer = transfer.world_peer();
    auto& offer = *reinterpret_cast<MessageOffer*>(
        arena_->ring(me_, peer) + transfer.cell % Arena::ring_cells * arena_->cell_bytes() +
        sizeof(CellHeader));
    offer.address.store(reinterpret_cast<std::uintptr_t>(instead), std::memory_order_relaxed);
    offer.version.fetch_add(1, std::memory_order_release);  // pairs with read_offer()
}

/// Empties cells of the ring from `source` into the receives that they belong to.
bool Mailbox::pull(int source) {
    IncomingMessage& incoming = incoming_[static_cast<std::size_t>(source)];
    Channel& channel = arena_->channel(source, me_);
    const std::size_t room = arena_->cell_bytes() - sizeof(CellHeader);
    bool moved = false;
    for (;;) {
        const std::uint64_t read = channel.read.load(std::memory_order_relaxed);
        // acquire: pairs with the release in push(): the cell is filled. More filled
        // cells than there are means damage; see trouble().
        const std::uint64_t filled = channel.written.load(std::memory_order_acquire) - read;
        if (filled == 0 || filled > Arena::ring_cells) return moved;
        const std::byte* cell =
            arena_->ring(source, me_) + read % Arena::ring_cells * arena_->cell_bytes();
        if (!incoming.active) deliver_first_cell(source, cell);
        if (!incoming.active) return moved;  // there is no receive for it yet
        const std::size_t here = std::min(room, incoming.left);
        const std::byte* payload = cell + sizeof(CellHeader);
        if (incoming.offered) {
            if (!read_offer(source, payload)) return moved;
            incoming.left = 0;
        } else if (incoming.transfer != nullptr) {
            kernels().copy(incoming.transfer->data + incoming.transfer->moved, payload, here,
                           StoreMode::plain);
            incoming.transfer->moved += here;
        } else if (incoming.unexpected != nullptr) {
            incoming.lengthen(
                [&](auto& data) { data.insert(data.end(), payload, payload + here); });
        }
        if (!incoming.offered) incoming.left -= here;
        channel.read.store(read + 1, std::memory_order_release);  // pairs with push()
        ring(arena_->rank_info(source).doorbell);
        moved = true;
        if (incoming.left != 0) continue;
        const auto transfer = std::move(incoming.transfer);
        incoming = {};
        if (transfer != nullptr) finish(transfer, nullptr);
    }
}

/// Reads an offered message whole, in pieces; what nobody wants is not read. False if the sender
/// has ended or withdrawn it: then trouble() tells.
bool Mailbox::read_offer(int source, const std::byte* payload) {
    const MessageOffer& offer = *reinterpret_cast<const MessageOffer*>(payload);
    IncomingMessage& incoming = incoming_[static_cast<std::size_t>(source)];
    for (;;) {
        // acquire: pairs with the release in withdraw(): the address belongs to this version. What
        // was read before, under another one, is read again.
        const std::uint32_t version = offer.version.load(std::memory_order_acquire);
        if (version != incoming.version) {
            incoming.version = version;
            if (incoming.transfer != nullptr) {
                incoming.left += std::exchange(incoming.transfer->moved, 0);
            } else if (incoming.unexpected != nullptr) {
                incoming.left += incoming.unexpected->data.size();
                incoming.unexpected->data.clear();
            }
        }
        if (incoming.transfer == nullptr && incoming.unexpected == nullptr) return true;
        const std::uint64_t address = offer.address.load(std::memory_order_relaxed);
        if (address == 0) return false;
        if (incoming.left == 0) return arena_->alive(source);
        const std::size_t here = std::min(piece_bytes, incoming.left);
        std::byte* target;
        std::size_t done;
        if (incoming.transfer != nullptr) {
            done = std::exchange(incoming.transfer->moved, incoming.transfer->moved + here);
            target = incoming.transfer->data + done;
        } else {
            done = incoming.unexpected->data.size();
            incoming.lengthen([&](auto& data) { data.resize(done + here); });
            if (incoming.unexpected == nullptr) continue;
            target = incoming.unexpected->data.data() + done;
        }
        incoming.left -= here;
        const int error = read_memory(arena_->pid(source), address + done, target, here);
        if (error == 0) continue;
        if (error == ESRCH || !arena_->alive(source)) return false;
        if (offer.version.load(std::memory_order_acquire) != incoming.version) continue;
        const auto transfer = std::move(incoming.transfer);
        if (incoming.unexpected != nullptr) incoming.unexpected->error = error;
        incoming.transfer = nullptr;
        incoming.unexpected = nullptr;  // the rest is not read
        if (transfer != nullptr) finish(transfer, unreadable(transfer->source, error));
    }
}

/// Decides where the message goes that starts with this cell.
void Mailbox::deliver_first_cell(int source, const std::byte* cell) {
    const CellHeader header = *reinterpret_cast<const CellHeader*>(cell);
    std::atomic_signal_fence(std::memory_order_acquire);  // do not read the cell again after this
    IncomingMessage& incoming = incoming_[static_cast<std::size_t>(source)];
    const auto transfer = match(source, header.context, header.tag);
    if (transfer == nullptr) {
        const bool accepted =
            std::any_of(receives_.begin(), receives_.end(),
                        [&](const auto& other) { return other->accepts(source); });
        if (!accepted) return;
        incoming.unexpected =
            std::make_shared<UnexpectedMessage>(UnexpectedMessage{source, header});
        unexpected_.push_back(incoming.unexpected);
    } else if (auto failure =
                   misfit(*transfer, source, header.dtype_code, header.item_bytes, header.bytes)) {
        finish(transfer, std::move(failure));  // and the message is discarded
    } else {
        incoming.transfer = transfer;
    }
    incoming.active = true;
    incoming.offered = header.offered != 0;
    incoming.left = header.bytes;
}

/// Removes the first receive that was posted for such a message from the list.
std::shared_ptr<Transfer> Mailbox::match(int source, std::uint32_t context, std::int64_t tag) {
    const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const auto& transfer) {
        return transfer->context == context && transfer->tag == tag && transfer->accepts(source);
    });
    if (found == receives_.end()) return nullptr;
    auto transfer = *found;
    receives_.erase(found);
    return transfer;
}

/// Gives a new receive its message if that arrived unexpectedly; otherwise the receive waits.
void Mailbox::match_unexpected(const std::shared_ptr<Transfer>& transfer) {
    const auto found =
        std::find_if(unexpected_.begin(), unexpected_.end(), [&](const auto& unexpected) {
            return unexpected->header.context == transfer->context &&
                   unexpected->header.tag == transfer->tag && transfer->accepts(unexpected->source);
        });
    if (found == unexpected_.end()) {
        receives_.push_back(transfer);
        return;
    }
    const auto unexpected = *found;
    unexpected_.erase(found);
    IncomingMessage& incoming = incoming_[static_cast<std::size_t>(unexpected->source)];
    const bool arriving = incoming.unexpected == unexpected;
    if (arriving) incoming.unexpected = nullptr;  // discarded, unless it matches
    const CellHeader& header = unexpected->header;
    if (auto failure = misfit(*transfer, unexpected->source, header.dtype_code, header.item_bytes,
                              header.bytes))
        return finish(transfer, std::move(failure));
    if (unexpected->error != 0)
        return finish(transfer, unreadable(transfer->source, unexpected->error));
    transfer->moved = unexpected->data.size();
    if (transfer->moved != 0) std::memcpy(transfer->data, unexpected->data.data(), transfer->moved);
    if (arriving)
        incoming.transfer = transfer;
    else
        finish(transfer, nullptr);
}

void Mailbox::finish(const std::shared_ptr<Transfer>& transfer, std::unique_ptr<Failure> failure) {
    arena_->log(me_).end(transfer->log_sequence,
                         failure == nullptr ? CallState::done : failed(failure->kind));
    transfer->completion.finish(std::move(failure));
    ring(arena_->rank_info(me_).doorbell);  // another thread of this rank may wait for it
}

/// Removes a transfer from every list. A send that has begun must continue, or the receiver would
/// wait for the rest forever: it continues from a copy, because its caller may free the memory.
void Mailbox::cancel(const std::shared_ptr<Transfer>& transfer) {
    if (transfer->completion.done()) return;
    receives_.remove(transfer);
    for (IncomingMessage& incoming : incoming_)
        if (incoming.transfer == transfer) incoming.transfer = nullptr;
    if (!transfer->sending) return;
    auto& queue = outgoing_[static_cast<std::size_t>(transfer->world_peer())];
    if (transfer->offered) {
        if (!transfer->own.empty()) return;
        transfer->own.assign(transfer->data, transfer->data + transfer->bytes);
        withdraw(*transfer, transfer->own.data());
    } else if (transfer->begun) {
        transfer->own.assign(transfer->data + transfer->moved, transfer->data + transfer->bytes);
        transfer->bytes -= transfer->moved;
        transfer->data = transfer->own.data();
        transfer->moved = 0;
    } else {
        std::erase(queue, transfer);
    }
}

}  // namespace unisono
