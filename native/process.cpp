// native/process.cpp: read /proc and query pidfds.
#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "types.hpp"

// glibc 2.28, for which wheels are built, has no name for it; the number is that of all processors.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace unisono {

namespace {

/// The kernel's struct pidfd_info up to the field that we need; installed headers may lack it.
struct PidfdInfo {
    std::uint64_t mask;
    std::uint64_t cgroup;
    std::uint32_t ids[11];
    std::int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);

constexpr std::uint64_t info_exit = 1u << 3;

}  // namespace

ProcessState read_process_state(pid_t pid) noexcept {
    ProcessState process;
    char path[64], text[1024];
    std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return process;
    const ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return process;
    text[length] = 0;
    // Field 2 is the name in parentheses, which may contain parentheses: start at the last one.
    char* rest = std::strrchr(text, ')');
    if (rest == nullptr) return process;
    char* state = nullptr;
    int field = 3;
    for (char* word = strtok_r(rest + 1, " \n", &state); word != nullptr;
         word = strtok_r(nullptr, " \n", &state), ++field) {
        if (field == 3) process.state = *word;
        if (field == 22) process.started = std::strtoull(word, nullptr, 10);
        if (field == 52) process.status = static_cast<int>(std::strtol(word, nullptr, 10));
    }
    return process;
}

ProcessHandle::ProcessHandle(pid_t pid, std::uint64_t started) noexcept
    : pid_(pid), started_(started), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {
    had_ended_ = pidfd_ < 0 && errno == ESRCH;
}

ProcessHandle::ProcessHandle(ProcessHandle&& other) noexcept
    : pid_(other.pid_),
      started_(other.started_),
      pidfd_(std::exchange(other.pidfd_, -1)),
      had_ended_(other.had_ended_) {}

ProcessHandle::~ProcessHandle() {
    if (pidfd_ >= 0) close(pidfd_);
}

bool ProcessHandle::alive() const noexcept {
    if (pid_ == 0) return true;
    if (had_ended_) return false;
    if (pidfd_ >= 0) {
        pollfd poller{pidfd_, POLLIN, 0};  // readable once the process has ended, reaped or not
        int ended;
        do ended = poll(&poller, 1, 0);
        while (ended < 0 && errno == EINTR);  // a Unix signal for us, which says nothing about it
        return ended <= 0;
    }
    const ProcessState process = read_process_state(pid_);
    // Without an answer it is gone, or there is no /proc.
    if (process.state == 0) return kill(pid_, 0) == 0 || errno != ESRCH;
    const bool ended = process.state == 'Z' || process.state == 'X';
    return !ended && process.started == started_;
}

std::optional<int> ProcessHandle::exit_status() const noexcept {
    if (pid_ == 0) return std::nullopt;
    const ProcessState process = read_process_state(pid_);
    if (process.state == 'Z' && process.started == started_) return process.status;
    PidfdInfo info{};
    info.mask = info_exit;
    if (pidfd_ < 0 || ioctl(pidfd_, _IOWR(0xff, 11, PidfdInfo), &info) != 0 ||
        (info.mask & info_exit) == 0)
        return std::nullopt;
    return info.exit_code;
}

std::string describe_exit_status(int status) {
    static constexpr std::array names{
        "",     "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
        "SEGV", "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
        "TTOU", "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "IO",   "PWR",  "SYS"};
    if (WIFEXITED(status)) return format("exited with code %d", WEXITSTATUS(status));
    const auto number = static_cast<std::size_t>(WTERMSIG(status));
    if (number < names.size()) return format("killed by SIG%s", names[number]);
    return format("killed by signal %zu", number);
}

}  // namespace unisono
