// native/mailbox_messages.hpp: what is in a cell, and what a rank knows of messages that arrive.
#pragma once

#include <atomic>
#include <cerrno>
#include <exception>

#include "mailbox.hpp"

namespace unisono {

/// The start of every cell; only that of a message's first cell is used. All cells of a message but
/// the last are full.
struct alignas(64) CellHeader {
    std::int64_t tag;
    std::uint64_t bytes;
    std::uint32_t context;
    std::uint32_t item_bytes;
    std::uint8_t dtype_code;
    std::uint8_t offered;  ///< not 0: a MessageOffer follows, not the bytes of the message
};

/// Where the message is in the memory of the sender. The sender moves or withdraws it when its
/// caller gives up: then what was read before may be wrong, and is read again.
struct MessageOffer {
    std::atomic<std::uint64_t> address;  ///< 0: withdrawn
    std::atomic<std::uint32_t> version;  ///< changes with the address
};

/// A message without a receive, complete or still arriving. It grows as it arrives, because its
/// length comes from another rank and may be wrong.
struct Mailbox::UnexpectedMessage {
    int source;
    CellHeader header;
    std::vector<std::byte> data = {};
    int error = 0;  ///< why the memory of the sender could not be read; ENOMEM: no room for it here
};

/// The message at the head of a ring: where its bytes go.
struct Mailbox::IncomingMessage {
    std::size_t left = 0;  ///< bytes that have not arrived; with `active`, 0 for an empty message
    bool active = false;
    bool offered = false;
    std::uint32_t version = 0;                      ///< of the offer that is being read
    std::shared_ptr<Transfer> transfer;             ///< to a receive,
    std::shared_ptr<UnexpectedMessage> unexpected;  ///< or into memory of ours; neither: discarded

    /// Lets `grow` make the memory of an unexpected message longer. If there is none, the message
    /// is discarded, and its receive will be told: an exception would end the background thread.
    template <class Grow>
    void lengthen(Grow grow) noexcept {
        try {
            grow(unexpected->data);
        } catch (const std::exception&) {
            unexpected->data = {};
            unexpected->error = ENOMEM;
            unexpected = nullptr;
        }
    }
};

}  // namespace unisono
