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

/// The exit status of the process of a pidfd, if the kernel still knows it after its parent has
/// reaped it (Linux 6.15).
std::optional<int> exit_status_of(int pidfd) noexcept;

/// "killed by SIGKILL" or "exited with code 3", from a status as wait() returns it.
std::string describe_exit_status(int status);

}  // namespace unisono
