// native/single_copy.cpp: process_vm_readv, who may use it, and where it pays.
#include "single_copy.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels.hpp"
#include "wait.hpp"

namespace unisono {

namespace {

/// In KiB, for each class. `from` 0: no part is long enough; `below` 0: none is too long.
struct Default {
    Verb verb;
    std::uint64_t from[SingleCopyTable::classes];
    std::uint64_t below[SingleCopyTable::classes];
};

// A call of the kernel takes 1 to 2 us and pins pages one by one, so short parts are staged. A slot
// is in a cache that its readers share, and what is stored from there can go past the cache: so
// where many ranks read the same long part, it is staged too. Ranks that reduce gain where the
// other sources are in memory and not in a cache: each is read once, and not stored again by its
// owner. In all_reduce the second half is read from a cache, so many ranks stage what is not longer
// than all caches. A slow kernel (a virtual machine, mitigations) is slower than two copies of
// which one stays in a cache, however long a part is. Where ranks share cores, a barrier is dear,
// and the direct way has one more than a part of one chunk; what all ranks read stays in the cache.
constexpr Default defaults[] = {
    {Verb::broadcast, {64, 0, 0, 0, 0, 0, 0}, {32768}},
    {Verb::scatter, {32, 32, 32, 32, 64, 0, 512}, {}},
    {Verb::gather, {64, 64, 64, 64, 64, 0, 1024}, {}},
    {Verb::all_gather, {32, 32, 64, 64, 64, 0, 0}, {0, 0, 4096, 2048, 2048}},
    {Verb::all_to_all, {32, 32, 32, 16, 32, 0, 256}, {}},
    {Verb::reduce_scatter, {128, 64, 32, 16, 32, 0, 4096}, {4096}},
    {Verb::all_reduce, {2048, 0, 0, 32768}, {65536}},
    {Verb::reduce, {0, 0, 2048, 2048, 2048}, {}},
    {Verb::send, {128, 128, 128, 128, 128, 0, 8192}, {}},
};

constexpr const char* class_names[SingleCopyTable::classes] = {"2",    "4",    "8",     "16",
                                                               "more", "slow", "shared"};

const char* setting() noexcept {
    const char* text = std::getenv("UNISONO_SINGLE_COPY");
    return text == nullptr ? "" : text;
}

/// A number at the beginning of the text, which is removed.
std::optional<std::uint64_t> take_number(std::string_view& text) noexcept {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
}

/// "65536" or "65536-1048576"; 0: no part is long enough.
std::optional<SingleCopyRange> parse_range(std::string_view text) noexcept {
    SingleCopyRange range;
    const auto from = take_number(text);
    if (!from) return std::nullopt;
    if (*from != 0) range.from = *from;
    if (text.empty()) return range;
    if (text.front() != '-') return std::nullopt;
    text.remove_prefix(1);
    const auto below = take_number(text);
    if (!below || !text.empty()) return std::nullopt;
    range.below = *below;
    return range;
}

/// Sets one entry, "all_gather/8=32768-4194304"; false if that is none.
bool parse_entry(std::string_view text, SingleCopyTable& table) noexcept {
    const auto slash = text.find('/');
    const auto equals = text.find('=');
    if (slash == text.npos || equals == text.npos || equals < slash) return false;
    const auto range = parse_range(text.substr(equals + 1));
    const std::string_view ranks = text.substr(slash + 1, equals - slash - 1);
    const auto row = std::find(std::begin(class_names), std::end(class_names), ranks);
    if (!range || row == std::end(class_names)) return false;
    for (const Default& known : defaults) {
        if (text.substr(0, slash) != name(known.verb)) continue;
        table.ranges[static_cast<std::size_t>(known.verb)][row - class_names] = *range;
        return true;
    }
    return false;
}

}  // namespace

const SingleCopyRange& SingleCopyTable::range(Verb verb, int ranks, bool quickly,
                                              bool oversubscribed) const noexcept {
    std::size_t row = 0;
    for (int most = 2; most < ranks && row + 3 < classes; most *= 2) ++row;
    if (!quickly) row = classes - 2;
    if (oversubscribed) row = classes - 1;
    return ranges[static_cast<std::size_t>(verb) % verbs][row];
}

SingleCopyTable make_single_copy_table() {
    SingleCopyTable table;
    for (const Default& row : defaults)
        for (std::size_t i = 0; i < SingleCopyTable::classes; ++i) {
            SingleCopyRange& range = table.ranges[static_cast<std::size_t>(row.verb)][i];
            if (row.from[i] != 0) range.from = row.from[i] << 10;
            if (row.below[i] != 0) range.below = row.below[i] << 10;
        }
    const std::string_view text = setting();
    if (text.empty()) return table;
    if (const auto all = parse_range(text)) {
        for (auto& ranges : table.ranges) std::fill(std::begin(ranges), std::end(ranges), *all);
        return table;
    }
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        if (!parse_entry(text.substr(begin, end - begin), table))
            throw Failure(FailureKind::system,
                          format("UNISONO_SINGLE_COPY is '%s'; it must be the number of bytes from "
                                 "which on ranks read each other's memory, 0 for never, or entries "
                                 "such as all_gather/8=32768-4194304, separated by commas",
                                 setting()));
        begin = end + 1;
    }
    return table;
}

bool wants_single_copy() {
    make_single_copy_table();  // throws for a wrong setting
    return std::string_view(setting()) != "0";
}

bool reads_memory_quickly() {
    constexpr std::size_t bytes = std::size_t{128} << 10;
    const std::vector<char> source(bytes, 1);
    std::vector<char> target(bytes);
    const pid_t self = getpid();
    auto kernel = Clock::duration::max();
    auto plain = Clock::duration::max();
    for (int i = 0; i < 8; ++i) {  // the best of each: others may use this core, too
        const auto began = Clock::now();
        read_memory(self, reinterpret_cast<std::uintptr_t>(source.data()), target.data(), bytes);
        const auto between = Clock::now();
        kernels().copy(target.data(), source.data(), bytes, StoreMode::plain);
        kernel = std::min(kernel, between - began);
        plain = std::min(plain, Clock::now() - between);
    }
    return kernel < 4 * plain;
}

void let_siblings_read() noexcept {
    int scope = 0;
    if (std::FILE* file = std::fopen("/proc/sys/kernel/yama/ptrace_scope", "re")) {
        if (std::fscanf(file, "%d", &scope) != 1) scope = 0;
        std::fclose(file);
    }
    // 0: every process of this user may read us anyway; 2 and 3: none, whatever we say. If the
    // launcher has ended, its place is taken by a process whose descendants are everybody.
    if (scope == 1 && getppid() > 1) prctl(PR_SET_PTRACER, getppid(), 0, 0, 0);
}

int read_memory(pid_t pid, std::uint64_t address, void* target, std::size_t bytes) noexcept {
    auto* to = static_cast<char*>(target);
    while (bytes != 0) {
        const iovec local{to, bytes};
        const iovec remote{reinterpret_cast<void*>(address), bytes};
        const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return EFAULT;
        // Short: the kernel reads at most 2 GiB at once, and stops where memory is missing.
        to += got;
        address += static_cast<std::uint64_t>(got);
        bytes -= static_cast<std::size_t>(got);
    }
    return 0;
}

}  // namespace unisono
