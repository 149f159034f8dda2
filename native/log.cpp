// native/log.cpp: write and read records.
#include "log.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>

#include "wait.hpp"

namespace unisono {

namespace {

constexpr std::uint64_t state_bits = std::uint64_t{0xff} << 32;

constexpr int max_attempts = 10'000;  // to take a record; usually a few are enough

/// Takes a record for writing; with `only_own` false if another call has reused it. Another thread
/// may hold it while it makes a few stores. If it is held for longer, the memory is damaged, and we
/// take it anyway.
bool take(std::atomic<std::uint64_t>& stamp, std::uint64_t sequence, bool only_own) noexcept {
    std::uint64_t seen = stamp.load(std::memory_order_relaxed);
    for (int attempt = 0;; ++attempt) {
        if (only_own && seen >> 1 != sequence) return false;
        if ((seen & 1) != 0 && attempt < max_attempts) {
            pause();
            seen = stamp.load(std::memory_order_relaxed);
            continue;
        }
        // acquire: pairs with release(): our stores come after those of the last
        // holder.
        if (stamp.compare_exchange_weak(seen, sequence << 1 | 1, std::memory_order_acquire,
                                        std::memory_order_relaxed))
            break;
    }
    // Pairs with the acquire fence in read(): a reader that sees our words sees the odd stamp.
    std::atomic_thread_fence(std::memory_order_release);
    return true;
}

void release(std::atomic<std::uint64_t>& stamp, std::uint64_t sequence) noexcept {
    stamp.store(sequence << 1, std::memory_order_release);  // pairs with the acquire in read()
}

}  // namespace

const char* name(CallState state) noexcept {
    static constexpr std::array names{"running",     "done",   "mismatch", "lost",  "timeout",
                                      "interrupted", "memory", "closed",   "system"};
    const auto code = static_cast<std::size_t>(state);
    return code < names.size() ? names[code] : "unknown";
}

std::uint64_t now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(time.tv_nsec);
}

std::string call_site_text(const std::uint64_t* words) {
    char text[call_site_bytes];
    std::memcpy(text, words, call_site_bytes);
    return std::string(text, strnlen(text, call_site_bytes));
}

Record::Record(const std::array<std::uint64_t, words>& packed) noexcept {
    sequence = packed[0] >> 1;
    began = packed[1];
    ended = packed[2];
    call.count = packed[3];
    call.verb = static_cast<Verb>(packed[4] & 0xff);
    call.dtype = static_cast<std::uint8_t>(packed[4] >> 8);
    call.op = static_cast<ReduceOp>(packed[4] >> 16 & 0xff);
    call.uneven = (packed[4] >> 24 & 1) != 0;
    state = static_cast<CallState>(packed[4] >> 32 & 0xff);
    call_site = static_cast<std::uint16_t>(packed[4] >> 40);
    group = static_cast<std::uint32_t>(packed[5] >> 32);
    call.number = static_cast<std::uint32_t>(packed[5]);
    call.root = static_cast<std::int32_t>(packed[6] >> 32);
    page = static_cast<std::uint32_t>(packed[6]);
    call.factor = std::bit_cast<double>(packed[7]);
}

std::uint64_t Log::begin(const CallArguments& arguments, std::uint32_t group, std::uint32_t page,
                         std::uint32_t number) noexcept {
    if (memory_ == nullptr) return 0;
    if (arguments.call_site.id != 0) publish(arguments.call_site);
    // Relaxed: readers rely on the stamps; this only tells them where to start.
    const std::uint64_t sequence = memory_->next.fetch_add(1, std::memory_order_relaxed) + 1;
    auto& words = memory_->records[sequence % log_records].words;
    take(words[0], sequence, false);
    const std::uint64_t kind = static_cast<std::uint64_t>(arguments.verb) |
                               static_cast<std::uint64_t>(arguments.dtype_code) << 8 |
                               static_cast<std::uint64_t>(arguments.op) << 16 |
                               static_cast<std::uint64_t>(!arguments.sends.empty()) << 24 |
                               static_cast<std::uint64_t>(arguments.call_site.id) << 40;
    // Relaxed: the stamp orders them.
    words[1].store(now(), std::memory_order_relaxed);
    words[2].store(0, std::memory_order_relaxed);
    words[3].store(arguments.count, std::memory_order_relaxed);
    words[4].store(kind, std::memory_order_relaxed);
    words[5].store(std::uint64_t{group} << 32 | number, std::memory_order_relaxed);
    words[6].store(std::uint64_t{static_cast<std::uint32_t>(arguments.root)} << 32 | page,
                   std::memory_order_relaxed);
    words[7].store(std::bit_cast<std::uint64_t>(arguments.factor), std::memory_order_relaxed);
    release(words[0], sequence);
    return sequence;
}

void Log::end(std::uint64_t sequence, CallState state) noexcept {
    if (memory_ == nullptr || sequence == 0) return;
    auto& words = memory_->records[sequence % log_records].words;
    if (!take(words[0], sequence, true)) return;
    const std::uint64_t kind = words[4].load(std::memory_order_relaxed) & ~state_bits;
    words[2].store(now(), std::memory_order_relaxed);
    words[4].store(kind | static_cast<std::uint64_t>(state) << 32, std::memory_order_relaxed);
    release(words[0], sequence);
}

void Log::publish(const CallSite& call_site) noexcept {
    auto& known = published_[call_site.id / 64];
    const std::uint64_t bit = std::uint64_t{1} << call_site.id % 64;
    // Relaxed: the stamp orders it for other processes, and all threads write the same text.
    if ((known.load(std::memory_order_relaxed) & bit) != 0) return;
    std::array<std::uint64_t, call_site_bytes / 8> words{};
    std::memcpy(words.data(), call_site.text,
                std::min(std::strlen(call_site.text), call_site_bytes - 1));
    for (std::size_t i = 0; i < words.size(); ++i)
        memory_->call_sites[call_site.id][i].store(words[i], std::memory_order_relaxed);
    known.fetch_or(bit, std::memory_order_relaxed);
}

std::optional<Record> Log::read(std::uint64_t sequence) const noexcept {
    const auto& words = memory_->records[sequence % log_records].words;
    for (int attempt = 0; attempt < 100; ++attempt) {
        std::array<std::uint64_t, Record::words> copy;
        copy[0] = words[0].load(std::memory_order_acquire);  // pairs with release()
        if (copy[0] >> 1 != sequence) return std::nullopt;
        if ((copy[0] & 1) != 0) {
            pause();
            continue;
        }
        for (std::size_t i = 1; i < copy.size(); ++i)
            copy[i] = words[i].load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the fence in take()
        if (words[0].load(std::memory_order_relaxed) == copy[0]) return Record(copy);
    }
    return std::nullopt;  // its writer was stopped or killed while writing
}

std::optional<Record> Log::find(std::uint32_t group, std::uint32_t number) const noexcept {
    if (memory_ == nullptr) return std::nullopt;
    const std::uint64_t newest = memory_->next.load(std::memory_order_relaxed);
    for (std::uint64_t age = 0; age < std::min<std::uint64_t>(newest, log_records); ++age) {
        const auto record = read(newest - age);
        if (record && record->group == group && record->call.number == number) return record;
    }
    return std::nullopt;
}

std::optional<Record> Log::last(std::uint32_t group) const noexcept {
    if (memory_ == nullptr) return std::nullopt;
    std::optional<Record> newest, running;
    const std::uint64_t begun = memory_->next.load(std::memory_order_relaxed);
    for (std::uint64_t age = 0; age < std::min<std::uint64_t>(begun, log_records); ++age) {
        const auto record = read(begun - age);
        if (!record) continue;
        if (!newest) newest = record;
        if (record->group == group && record->state == CallState::running) running = record;
    }
    return running ? running : newest;
}

std::string Log::at(const Record& record) const {
    if (memory_ == nullptr || record.call_site == 0 || record.call_site >= log_call_sites)
        return {};
    std::array<std::uint64_t, call_site_bytes / 8> words;
    for (std::size_t i = 0; i < words.size(); ++i)
        words[i] = memory_->call_sites[record.call_site][i].load(std::memory_order_relaxed);
    const std::string text = call_site_text(words.data());
    return text.empty() ? text : " at " + text;
}

}  // namespace unisono
