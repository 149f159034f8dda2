// native/process.hpp: the state and the exit status of other processes, from the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace unisono {

/// What /proc says about a process.
struct ProcessState {
    char state = 0;  ///< R: running, S: sleeping, T: stopped, Z: ended; 0: no such process
    std::uint64_t started = 0;  ///< start time: another process may get the same number later
    int status = 0;             ///< as wait() returns it, after the process has ended

    bool stopped() const noexcept { return state == 'T' || state == 't'; }
};

/// Reads the state of a process; `state` is 0 if there is none that we can see.
ProcessState read_process_state(pid_t pid) noexcept;

/// Tells whether another process has ended, and how. Where the kernel refuses pidfd_open, it reads
/// /proc instead.
class ProcessHandle {
public:
    /// This process, which has not ended.
    ProcessHandle() noexcept = default;
    /// Another one, which was started at this time (`ProcessState::started`).
    ProcessHandle(pid_t pid, std::uint64_t started) noexcept;
    ProcessHandle(ProcessHandle&& other) noexcept;
    ProcessHandle& operator=(ProcessHandle&&) = delete;
    ~ProcessHandle();

    /// Whether the process exists. A stopped process does; one that nobody has reaped does not.
    bool alive() const noexcept;

    /// The status as wait() returns it, if the process has ended and the kernel still knows it:
    /// before its parent has reaped it, and later since Linux 6.15.
    std::optional<int> exit_status() const noexcept;

private:
    pid_t pid_ = 0;  ///< 0: this process
    std::uint64_t started_ = 0;
    int pidfd_ = -1;          ///< -1: refused, or not needed
    bool had_ended_ = false;  ///< before we looked for the first time
};

/// "killed by SIGKILL" or "exited with code 3", from a status as wait() returns it.
std::string describe_exit_status(int status);

}  // namespace unisono
