"""Run a command whose system calls are refused, as a container or an old kernel refuses them.

    python -m tests.helpers.refusals ENOSYS pidfd_open,fallocate -- unisono doctor

The filter is the kernel's own (seccomp), so it holds for everything that the command starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

__all__ = ["CALLS", "CAN_REFUSE", "refuse", "refusing"]

#: The number of each call, by machine.
CALLS = {
    "x86_64": {
        "fallocate": 285,
        "memfd_create": 319,
        "pidfd_open": 434,
        "process_vm_readv": 310,
        "sched_setaffinity": 203,
    },
    "aarch64": {
        "fallocate": 47,
        "memfd_create": 279,
        "pidfd_open": 434,
        "process_vm_readv": 270,
        "sched_setaffinity": 122,
    },
}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_FILTER = 2
_LOAD_NUMBER, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

#: Whether we know the numbers of the calls here.
CAN_REFUSE = platform.machine() in CALLS


def refuse(calls: list[str], error: int) -> None:
    """Make the kernel answer these calls of this process, and of its children, with an error."""
    numbers = CALLS[platform.machine()]
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        steps += [(_IS_EQUAL, 0, 1, numbers[call]), (_RETURN, 0, 0, _ERRNO | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    described = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel takes a filter from a user only if no program can gain rights by it.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or (
        libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0) != 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel took no filter")


def refusing(calls: str, error: str, *command: str) -> list[str]:
    """Give the command line that runs a command with these calls refused: "memfd_create", "EPERM".

    It needs a PYTHONPATH on which the package `tests` is found (`paths.with_tests`).
    """
    return [sys.executable, "-m", "tests.helpers.refusals", error, calls, "--", *command]


if __name__ == "__main__":
    refuse(sys.argv[2].split(","), getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[4], sys.argv[4:])
