// native/single_copy.hpp: read the memory of another rank, if the kernel allows it: one copy
// instead of two through a slot. And the table that says from which size on that pays.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "types.hpp"

namespace unisono {

/// Sizes of parts for which one copy pays: `from` bytes on, and `below` bytes only.
struct SingleCopyRange {
    std::uint64_t from = ~std::uint64_t{0};
    std::uint64_t below = ~std::uint64_t{0};

    bool contains(std::uint64_t bytes) const noexcept { return bytes >= from && bytes < below; }
};

/// The ranges for each verb and number of ranks. A part is what one rank reads of one peer. All
/// ranks of a job use one table: it is in the JobHeader, and rank 0 has put it there.
struct SingleCopyTable {
    static constexpr std::size_t verbs = static_cast<std::size_t>(Verb::send) + 1;
    /// 2 ranks; up to 4; up to 8; up to 16; more; any number with a slow kernel; any number that
    /// have to share cores.
    static constexpr std::size_t classes = 7;

    SingleCopyRange ranges[verbs][classes];

    const SingleCopyRange& range(Verb verb, int ranks, bool quickly,
                                 bool oversubscribed) const noexcept;
};

/// The table of a new job: what was measured on two machines, changed by UNISONO_SINGLE_COPY. That
/// is one range for everything, "65536" or "65536-1048576", "0" for none; or entries for verbs and
/// classes, separated by commas: "all_gather/8=32768-4194304,broadcast/shared=0". Classes are 2, 4,
/// 8, 16, more, slow, shared. Throws Failure(system) for anything else.
SingleCopyTable make_single_copy_table();

/// Whether this rank takes part: not if UNISONO_SINGLE_COPY is 0. Throws as above.
bool wants_single_copy();

/// Where yama only lets ancestors read a process, lets the descendants of our parent read us: those
/// are the ranks that one launcher has started. Elsewhere it changes nothing.
void let_siblings_read() noexcept;

/// Whether the kernel copies memory of another process in less than four times what a plain
/// copy within a near cache takes: else the two copies of staging are not slower. Takes some 100
/// us.
bool reads_memory_quickly();

/// Copies memory of another process. Returns 0, or the error of the kernel: then a part of `target`
/// may have been written. No address can do harm here: a wrong one is EFAULT.
int read_memory(pid_t pid, std::uint64_t address, void* target, std::size_t bytes) noexcept;

}  // namespace unisono
