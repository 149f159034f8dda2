// native/memory_file.cpp: create, lengthen and fill the file behind a job's memory.
#include "memory_file.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

// Not in the headers of glibc 2.28, for which wheels are built.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace unisono {

namespace {

constexpr std::size_t smallest_page = 4096;
constexpr std::size_t unlimited = ~std::size_t{0} >> 2;  // if the kernel names no limit

/// The number after `pattern` in a file of the kernel, or `otherwise`.
std::size_t read_number(const std::string& path, const char* pattern, std::size_t otherwise) {
    std::size_t number = otherwise;
    if (std::FILE* file = std::fopen(path.c_str(), "r")) {
        char line[256];
        while (std::fgets(line, sizeof line, file) != nullptr)
            if (std::sscanf(line, pattern, &number) == 1) break;
        std::fclose(file);
    }
    return number;
}

/// What the memory limit of our control group leaves, for both versions of control groups; the page
/// cache does not count, because the kernel can drop it. At that limit the kernel does not return
/// an error, it kills the process: so we check first.
std::size_t available_in_control_group() {
    std::size_t left = unlimited;
    std::FILE* file = std::fopen("/proc/self/cgroup", "r");
    if (file == nullptr) return left;
    char line[512], path[400];
    while (std::fgets(line, sizeof line, file) != nullptr) {
        std::string folder = "/sys/fs/cgroup";
        const bool second = std::sscanf(line, "0::%399s", path) == 1;
        if (!second && std::sscanf(line, "%*d:memory:%399s", path) != 1) continue;
        folder += second ? path : std::string("/memory") + path;
        const std::size_t limit = read_number(
            folder + (second ? "/memory.max" : "/memory.limit_in_bytes"), "%zu", unlimited);
        const std::size_t used =
            read_number(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"), "%zu", 0);
        const std::size_t cache = read_number(
            folder + "/memory.stat", second ? "inactive_file %zu" : "total_inactive_file %zu", 0);
        left = std::min(left, limit + cache > used ? limit + cache - used : 0);
    }
    std::fclose(file);
    return left;
}

/// Memory that is still available, in bytes.
std::size_t available_memory() {
    const std::size_t host = read_number("/proc/meminfo", "MemAvailable: %zu kB", unlimited >> 10)
                             << 10;
    return std::min(host, available_in_control_group());
}

/// Whether a call failed because the kernel does not have it, or does not let us use it.
bool is_refused(int error) noexcept {
    return error == EPERM || error == EACCES || error == ENOSYS || error == EOPNOTSUPP;
}

/// What `madvise` does with pages of the file that nobody may have mapped; 0 or an error number.
/// Whole pages only: `inside` says whether the others are left out or added.
int advise(int fd, std::size_t offset, std::size_t bytes, int advice, bool inside) {
    const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t begin = (inside ? offset + size - 1 : offset) / size * size;
    const std::size_t end = (inside ? offset + bytes : offset + bytes + size - 1) / size * size;
    if (begin >= end) return 0;
    const Mapping pages(fd, begin, end - begin);
    return madvise(pages.data(), pages.bytes(), advice) == 0 ? 0 : errno;
}

/// The same as fallocate, where that is refused: the kernel gives the pages to a mapping, and
/// reports a lack of memory as an error.
void populate_pages(int fd, std::size_t offset, std::size_t bytes, int refusal) {
    int error;
    do error = advise(fd, offset, bytes, MADV_POPULATE_WRITE, false);
    while (error == EINTR);
    if (error == 0) return;
    if (error == ENOMEM || error == EFAULT) throw_no_memory(bytes, std::strerror(ENOSPC));
    throw Failure(FailureKind::system,
                  format("fallocate is refused (%s), and so is MADV_POPULATE_WRITE (%s); allow "
                         "fallocate in the seccomp profile, or use Linux 5.14 or newer",
                         std::strerror(refusal), std::strerror(error)));
}

}  // namespace

void throw_no_memory(std::size_t bytes, const char* reason) {
    const double needed = static_cast<double>(bytes) / (1 << 20);
    throw Failure(FailureKind::memory,
                  format("%.*f MiB of shared memory are needed: %s (%.1f MiB are available); "
                         "free memory, raise the memory limit of the container or of the user "
                         "(ulimit -f, cgroup memory.max), or start fewer ranks",
                         needed < 1 ? 3 : 1, needed, reason,
                         static_cast<double>(available_memory()) / (1 << 20)));
}

void throw_system_error(const char* what) {
    throw Failure(FailureKind::system, format("%s failed: %s", what, std::strerror(errno)));
}

void check_available(std::size_t bytes) {
    if (bytes > available_memory()) throw_no_memory(bytes, "too little is available");
}

int create_memory_file() {
    int fd = memfd_create("unisono", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0) return fd;
    const int refusal = errno;
    if (!is_refused(refusal)) throw_system_error("memfd_create");
    // A file that never has a name, only for us: O_EXCL keeps others from giving it one.
    fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
    struct statfs system{};
    if (fd >= 0 && fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC) return fd;
    const char* why = fd < 0 ? std::strerror(errno) : "it is not a tmpfs";
    if (fd >= 0) close(fd);
    throw Failure(FailureKind::system,
                  format("memfd_create is refused (%s), and /dev/shm cannot replace it (%s); allow "
                         "memfd_create in the seccomp profile, or mount a tmpfs at /dev/shm",
                         std::strerror(refusal), why));
}

void seal_length(int fd) noexcept { fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK); }

void lengthen(int fd, std::size_t bytes) {
    if (length_of(fd) >= bytes) return;
    // Not ftruncate: a rank that is slower than another would make a file shorter that is not
    // sealed.
    while (pwrite(fd, "", 1, static_cast<off_t>(bytes - 1)) != 1)
        if (errno != EINTR) throw_no_memory(bytes, std::strerror(errno));
    const std::size_t last = (bytes - 1) / smallest_page * smallest_page;
    release_pages(fd, last, smallest_page);  // which the byte has taken
}

std::size_t length_of(int fd) {
    struct stat file{};
    if (fstat(fd, &file) != 0) throw_system_error("fstat");
    return static_cast<std::size_t>(file.st_size);
}

void commit_pages(int fd, std::size_t offset, std::size_t bytes) {
    check_available(bytes);
    for (;;) {
        if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return;
        if (is_refused(errno)) return populate_pages(fd, offset, bytes, errno);
        if (errno != EINTR) throw_no_memory(bytes, std::strerror(errno));
    }
}

void release_pages(int fd, std::size_t offset, std::size_t bytes) noexcept {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return;
    try {
        if (is_refused(errno)) advise(fd, offset, bytes, MADV_REMOVE, true);
    } catch (const Failure&) {
        // Without room for a mapping the pages stay until the job ends.
    }
}

Mapping::Mapping(int fd, std::size_t offset, std::size_t bytes, bool writable) : bytes_(bytes) {
    void* address = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                         fd, static_cast<off_t>(offset));
    if (address == MAP_FAILED) throw_system_error("mapping shared memory");
    data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace unisono
