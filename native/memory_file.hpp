// native/memory_file.hpp: the file behind a job's memory; it never has a name.
//
// The kernel's own calls for it (memfd_create, fallocate) are refused in some containers. Each has
// another way here, which is as safe: nothing is left behind, and a host that is short of memory
// answers with an error and not with SIGBUS.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "types.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; installed headers may be older
#endif

namespace unisono {

/// A part of the file, mapped into this process.
class Mapping {
public:
    /// `writable` says whether we may change it.
    Mapping(int fd, std::size_t offset, std::size_t bytes, bool writable = true);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }

private:
    std::byte* data_;
    std::size_t bytes_;
};

/// Throws Failure(system) with what `errno` says.
[[noreturn]] void throw_system_error(const char* what);

/// Throws Failure(memory), with sizes.
[[noreturn]] void throw_no_memory(std::size_t bytes, const char* reason);

/// Throws Failure(memory), with sizes, if the host has not so much left.
void check_available(std::size_t bytes);

/// Creates an empty file in memory and returns its descriptor.
int create_memory_file();

/// Lets nobody shrink the file, which would be SIGBUS for the others, if it is of a kind that can
/// be sealed.
void seal_length(int fd) noexcept;

/// Makes the file at least so long, without pages: a rank that reads a slot or a cell that was
/// never filled gets zeros, while it would get SIGBUS past the end of the file. Never makes it
/// shorter. The last page belongs to the caller, who has not written to it yet.
void lengthen(int fd, std::size_t bytes);

std::size_t length_of(int fd);

/// Asks the kernel for pages within the length of the file, and keeps what they contain; throws
/// Failure(memory), with sizes, if there are none.
void commit_pages(int fd, std::size_t offset, std::size_t bytes);

/// Returns pages to the kernel.
void release_pages(int fd, std::size_t offset, std::size_t bytes) noexcept;

}  // namespace unisono
