"""What a rank is given before it starts: variables, cores of its own, death with its parent."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import weakref
from dataclasses import dataclass, field

__all__ = ["Job", "Port", "core_blocks", "die_with_parent", "ended", "ending"]

_PR_SET_PDEATHSIG = 1
# Loaded here, because a child between fork and exec must not load anything.
_libc = ctypes.CDLL(None, use_errno=True)


class Port:
    """A TCP port of this host that is nobody else's while this object lives.

    It is bound but not listened at. A rank can still listen there, for stores ask to reuse
    addresses; to a program that asks for any free port, or for a connection, it is never given.
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
class Job:
    """A job of `size` ranks on this host: a name, a secret and a port that are its own."""

    size: int
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    port: Port = field(default_factory=Port, repr=False)

    def variables(self, rank: int) -> dict[str, str]:
        """What the rank finds in its environment, in our words and in torchrun's."""
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
        }


def core_blocks(n: int) -> list[set[int]] | None:
    """Share the cores that we may use among n ranks, or None if there are not enough.

    Ranks that spin on one core keep each other from running, so each gets its own neighbours; with
    more ranks than cores the scheduler must be free to move them.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // n
    if share == 0:
        return None
    return [set(cores[rank * share : (rank + 1) * share]) for rank in range(n)]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the request was made: then nobody would ever kill us.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def ended(pid: int) -> int | None:
    """How a child has ended, in Python's codes, or None while it runs; it is not collected.

    Until somebody collects it, other processes can read its end too, and ranks that have lost it
    say how it came about. ChildProcessError means that somebody has.
    """
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def ending(code: int) -> str:
    """Say in words how a process ended, from the code that Python gives for it.

    >>> ending(3), ending(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"  # most real-time signals have no name
