// native/log.hpp: the flight recorder: the last calls of each rank, which every rank can read.
//
// Every rank keeps its last calls in its own region of the job's memory. Only the rank itself
// writes there, from any of its threads; others read at any time: for error texts, for a trace
// file, or from outside the job. A record is one cache line whose first word is a stamp: twice the
// call's sequence number, plus one while the record is being written. A reader that finds the same
// even stamp before and after the other words has read one call, and not parts of two.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "call.hpp"

namespace unisono {

inline constexpr std::size_t log_records = 1024;
inline constexpr std::size_t log_call_sites = 256;
inline constexpr std::size_t call_site_bytes = 120;

/// The state of a call: running, done, or failed (as 2 + FailureKind).
enum class CallState : std::uint8_t { running, done, failed };

inline CallState failed(FailureKind kind) noexcept {
    return static_cast<CallState>(static_cast<int>(CallState::failed) + static_cast<int>(kind));
}

/// "running", "done", or the kind of failure.
const char* name(CallState state) noexcept;

/// One record, unpacked.
struct Record {
    static constexpr std::size_t words = 8;

    Record() = default;
    explicit Record(const std::array<std::uint64_t, words>& packed) noexcept;

    CallDescriptor call;  ///< `root` is the peer of a message; messages have no number
    std::uint64_t sequence = 0;
    std::uint32_t group = 0;
    std::uint32_t page = 0;  ///< the group's offset in the job's memory, in pages
    std::uint16_t call_site = 0;
    std::uint64_t began = 0;  ///< nanoseconds of CLOCK_MONOTONIC
    std::uint64_t ended = 0;
    CallState state = CallState::running;
};

struct alignas(64) PackedRecord {
    std::atomic<std::uint64_t> words[Record::words];
};

/// A rank's region. A call site is written once, before the first record that refers to it.
struct alignas(128) LogMemory {
    std::atomic<std::uint64_t> next;  ///< number of records so far
    PackedRecord records[log_records];
    std::atomic<std::uint64_t> call_sites[log_call_sites][call_site_bytes / 8];
};

/// The text of a call site from its words, which another process may have filled with anything.
std::string call_site_text(const std::uint64_t* words);

/// Nanoseconds of CLOCK_MONOTONIC, the same on all ranks of a host.
std::uint64_t now() noexcept;

/// A process's view of one rank's region. Thread-safe.
class Log {
public:
    void attach(LogMemory* memory) noexcept { memory_ = memory; }

    /// Records the start of a call and returns its sequence number.
    std::uint64_t begin(const CallArguments& arguments, std::uint32_t group, std::uint32_t page,
                        std::uint32_t number) noexcept;

    /// Records the end of a call, unless a later call has reused its record.
    void end(std::uint64_t sequence, CallState state) noexcept;

    /// The rank's call with this number in a group.
    std::optional<Record> find(std::uint32_t group, std::uint32_t number) const noexcept;

    /// The current or last call of the rank: the oldest one that runs in this group, else the
    /// newest one.
    std::optional<Record> last(std::uint32_t group) const noexcept;

    /// " at train.py:88", or nothing if the call site is not known.
    std::string at(const Record& record) const;

private:
    std::optional<Record> read(std::uint64_t sequence) const noexcept;
    void publish(const CallSite& call_site) noexcept;

    LogMemory* memory_ = nullptr;
    std::atomic<std::uint64_t> published_[log_call_sites / 64] = {};
};

}  // namespace unisono
