"""The cores that ranks of this host may use, and how they are divided among the ranks.

Ranks that wait for each other spin for a moment. Two that spin on one core keep each other from
running, and one that moves to another core leaves its cache behind, so each rank is bound to cores
of its own. By default that is an equal share of all cores, not one core: torch and the libraries
under NumPy start as many threads as a process has cores.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from unisono.errors import ArgumentError

__all__ = ["BINDINGS", "allowed_cores", "bind_to", "core_blocks", "divide"]

#: How ranks can be bound: each to an equal share of the cores, each to one core, or not at all.
BINDINGS = ("share", "core", "none")

_PROCESSORS = Path("/sys/devices/system/cpu")


def core_blocks(n: int, bind: str = "share") -> list[set[int]] | None:
    """Return the processors of each of n ranks of this host, or None if they are not bound."""
    if bind not in BINDINGS:
        raise ArgumentError(f"--bind is {bind!r}; give one of {', '.join(BINDINGS)}")
    return None if bind == "none" else divide(allowed_cores(), n, bind)


def divide(cores: Sequence[Sequence[int]], n: int, bind: str) -> list[set[int]] | None:
    """Divide cores, each given by its hardware threads, among n ranks: neighbours to each.

    If there are fewer cores than ranks, each rank gets hardware threads. If there are fewer of
    these too, a share is None, because the scheduler must be free to move the ranks.

    >>> divide([[0, 4], [1, 5], [2, 6], [3, 7]], 2, "share")
    [{0, 1, 4, 5}, {2, 3, 6, 7}]
    >>> divide([[0, 4], [1, 5], [2, 6], [3, 7]], 2, "core")
    [{0, 4}, {1, 5}]
    """
    units = list(cores)
    if len(units) < n:
        units = [[thread] for core in cores for thread in core]
    if len(units) < n:
        if bind == "core":
            raise ArgumentError(
                f"--bind core needs a core for each of {n} ranks, and there are {len(units)}; "
                "use --bind none"
            )
        return None
    share = 1 if bind == "core" else len(units) // n
    return [
        {thread for core in units[rank * share : (rank + 1) * share] for thread in core}
        for rank in range(n)
    ]


def bind_to(cores: set[int] | None) -> None:
    """Bind this process to these processors, if there are any and the kernel lets us.

    A rank that is not bound is slower at worst, so a refusal (seccomp, a cpuset that has changed)
    is no error; `unisono doctor` tells of it.
    """
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def allowed_cores(processors: Path = _PROCESSORS) -> list[list[int]]:
    """Return the cores that we may use, each by its hardware threads, in order of sockets."""
    cores: dict[tuple[int, int], list[int]] = {}
    for thread in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_core_of(thread, processors), []).append(thread)
    return [cores[place] for place in sorted(cores)]


def _core_of(thread: int, processors: Path) -> tuple[int, int]:
    """Return the socket of a hardware thread, and the first thread of its core."""
    topology = processors / f"cpu{thread}" / "topology"
    try:
        socket = int((topology / "physical_package_id").read_text())
        siblings = re.match(r"\d+", (topology / "thread_siblings_list").read_text())
    except (OSError, ValueError):  # a kernel or a sandbox that does not tell
        return 0, thread
    return socket, int(siblings[0]) if siblings else thread
