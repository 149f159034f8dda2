"""The system calls that unisono uses and that some containers and old kernels refuse."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable

__all__ = ["WITHOUT", "refused"]

#: Each call, and what unisono does where it is refused.
WITHOUT = {
    "memfd_create": "the memory of a job is a file without a name in /dev/shm, and has its limit",
    "fallocate": "ranks ask for memory through mappings, which needs Linux 5.14",
    "pidfd_open": "ranks look in /proc for the end of others",
    "process_vm_readv": "ranks copy long messages twice",
    "sched_setaffinity": "ranks are not bound to cores",
}


def refused() -> dict[str, str]:
    """Try each call, and return those that are refused, with what the kernel says."""
    found = {}
    for name, attempt in _ATTEMPTS.items():
        try:
            attempt()
        except (OSError, AttributeError) as error:  # a Python that was built without it
            found[name] = getattr(error, "strerror", None) or str(error)
    return found


def _memfd_create() -> None:
    os.close(os.memfd_create("unisono-doctor"))


def _fallocate() -> None:
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, 1)


def _pidfd_open() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _process_vm_readv() -> None:
    # In our own memory, which the kernel checks least: only the call itself can be refused.
    source, target = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    parts = [(ctypes.c_void_p * 2)(ctypes.addressof(one), 8) for one in (target, source)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.process_vm_readv(os.getpid(), parts[0], 1, parts[1], 1, 0) != 8:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _sched_setaffinity() -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0))


_ATTEMPTS: dict[str, Callable[[], None]] = {
    "memfd_create": _memfd_create,
    "fallocate": _fallocate,
    "pidfd_open": _pidfd_open,
    "process_vm_readv": _process_vm_readv,
    "sched_setaffinity": _sched_setaffinity,
}
