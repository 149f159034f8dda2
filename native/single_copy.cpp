// native/single_copy.cpp: process_vm_readv, who may use it, and where it pays.
#include "single_copy.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace unisono {

namespace {

/// In KiB, for 2 ranks, up to 4, up to 8, up to 16, and more. `from` 0: no part; `below` 0: no
/// limit.
struct Default {
    Verb verb;
    std::uint64_t from[SingleCopyTable::classes];
    std::uint64_t below[SingleCopyTable::classes];
};

// A call of the kernel takes 1 to 2 us and pins pages one by one, so short parts are staged. A slot
// is in a cache that its readers share, and what is stored from there can go past the cache: so
// where many ranks read the same long part, it is staged too. Many ranks that reduce gain, because
// there is no barrier between chunks; two gain little, and nothing beyond the cache. Where ranks
// share cores, a barrier is dear, and the direct way has one more than a part of one chunk.
constexpr Default defaults[] = {
    {Verb::broadcast, {64, 128, 128, 128, 256, 2048}, {}},
    {Verb::scatter, {32, 32, 32, 32, 64, 512}, {}},
    {Verb::gather, {64, 64, 64, 64, 64, 1024}, {}},
    {Verb::all_gather, {32, 32, 32, 64, 64, 2048}, {0, 0, 4096, 2048, 2048, 0}},
    {Verb::all_to_all, {32, 32, 32, 16, 32, 256}, {}},
    {Verb::reduce_scatter, {64, 64, 32, 16, 32, 4096}, {4096}},
    {Verb::all_reduce, {2048}, {8192}},
};

/// The value of UNISONO_SINGLE_COPY, if it is set.
std::optional<std::uint64_t> requested_bytes() {
    const char* text = std::getenv("UNISONO_SINGLE_COPY");
    if (text == nullptr || *text == 0) return std::nullopt;
    if (std::strspn(text, "0123456789") != std::strlen(text))
        throw Failure(FailureKind::system,
                      format("UNISONO_SINGLE_COPY is '%s'; it must be a number of bytes from which "
                             "on ranks read each other's memory, or 0 for never",
                             text));
    return std::strtoull(text, nullptr, 10);
}

}  // namespace

const SingleCopyRange& SingleCopyTable::range(Verb verb, int ranks,
                                              bool oversubscribed) const noexcept {
    std::size_t row = 0;
    for (int most = 2; most < ranks && row + 2 < classes; most *= 2) ++row;
    return ranges[static_cast<std::size_t>(verb) % verbs][oversubscribed ? classes - 1 : row];
}

SingleCopyTable make_single_copy_table() {
    SingleCopyTable table;
    if (const auto bytes = requested_bytes()) {
        if (*bytes != 0)
            for (auto& ranges : table.ranges)
                for (SingleCopyRange& range : ranges) range.from = *bytes;
        return table;
    }
    for (const Default& row : defaults)
        for (std::size_t i = 0; i < SingleCopyTable::classes; ++i) {
            SingleCopyRange& range = table.ranges[static_cast<std::size_t>(row.verb)][i];
            if (row.from[i] != 0) range.from = row.from[i] << 10;
            if (row.below[i] != 0) range.below = row.below[i] << 10;
        }
    return table;
}

bool wants_single_copy() { return requested_bytes().value_or(1) != 0; }

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
