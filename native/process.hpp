// native/process.hpp: how another process is doing, and how it ended, by the kernel's word.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace unisono {

/// What /proc says about a process.
struct ProcessState {
    char state = 0;             ///< R runs, S sleeps, T is stopped, Z has ended; 0: there is none
    std::uint64_t started = 0;  ///< tells it from a later process with the same number
    int status = 0;             ///< as wait() gives it, once it has ended

    bool stopped() const noexcept { return state == 'T' || state == 't'; }
};

/// Looks a process up; `state` is 0 if there is none that we may see.
ProcessState read_process_state(pid_t pid) noexcept;

/// How the process behind a pidfd ended, where the kernel still knows although its parent has
/// collected it (Linux 6.15).
std::optional<int> exit_status_of(int pidfd) noexcept;

/// "killed by SIGKILL" or "exited with code 3", from a status as wait() gives it.
std::string describe_exit_status(int status);

}  // namespace unisono
