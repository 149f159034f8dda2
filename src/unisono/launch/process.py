"""What a rank is given before it starts: variables, cores, death with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import signal
import socket
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unisono.errors import LaunchError
from unisono.launch.cores import bind_to

__all__ = [
    "JobEnvironment",
    "ReservedPort",
    "die_with_parent",
    "ensure_open_files",
    "inherited",
    "is_stopped",
]

_PR_SET_PDEATHSIG = 1
#: Open files for each rank, and for everything else that a process has open.
_FILES_OF_A_RANK = 3
_FILES_OF_ITS_OWN = 128
# Loaded here, because a child between fork and exec must not load anything.
_libc = ctypes.CDLL(None, use_errno=True)


class ReservedPort:
    """A TCP port of this host that no other program gets while this object lives.

    It is bound, but nobody listens there. A rank can still do so, because stores set SO_REUSEADDR;
    the kernel gives it to no program that asks for any free port, or that opens a connection.
    """

    def __init__(self) -> None:
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("", 0))
            self.number: int = held.getsockname()[1]
            weakref.finalize(self, os.close, held.detach())

    def __str__(self) -> str:
        return str(self.number)


@dataclass(frozen=True)
class JobEnvironment:
    """What tells `size` ranks of this host that they are one job: its name, secret and port."""

    size: int
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    port: ReservedPort = field(default_factory=ReservedPort, repr=False)

    def variables(self, rank: int) -> dict[str, str]:
        """Give the variables of one rank, under our names, torchrun's and those of MindSpore."""
        return {
            "UNISONO_RANK": str(rank),
            "UNISONO_SIZE": str(self.size),
            "UNISONO_LOCAL_RANK": str(rank),
            "UNISONO_LOCAL_SIZE": str(self.size),
            "UNISONO_JOB": self.name,
            "UNISONO_SECRET": self.secret,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            # Scripts read these themselves.
            "RANK_ID": str(rank),
            "RANK_SIZE": str(self.size),
            "DEVICE_ID": str(rank),
        }


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the request was made: then nobody would ever kill us.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still, because of SIGSTOP, Ctrl-Z or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a program of any name
        return text.rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def ensure_open_files(ranks: int) -> None:
    """Let this process, and the ranks that it starts, open as many files as so many ranks need.

    The supervisor has three for each rank: two pipes and a report. A rank has up to two for each
    other one: what tells of its end, and the connection of the handshake.
    """
    needed = _FILES_OF_A_RANK * ranks + _FILES_OF_ITS_OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = max(0, (hard - _FILES_OF_ITS_OWN) // _FILES_OF_A_RANK)
        raise LaunchError(
            f"{ranks} ranks need {needed} open files, and the limit is {hard} (`ulimit -Hn`); "
            f"start at most {most} ranks, or have the limit raised (root: `ulimit -Hn {needed}`, "
            "or nofile in /etc/security/limits.conf)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def inherited(variables: Mapping[str, str], cores: set[int] | None) -> Iterator[None]:
    """Let a child that is started inside the block inherit these variables and cores."""
    before = {name: os.environ.get(name) for name in variables}
    cores_before = os.sched_getaffinity(0)
    os.environ.update(variables)
    bind_to(cores)
    try:
        yield
    finally:
        bind_to(cores_before)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
