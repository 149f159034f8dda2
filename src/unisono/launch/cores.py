"""The cores that ranks of this host may use, and how they are divided among the ranks."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["allowed_cores", "core_blocks", "physical_cores"]

_TOPOLOGY = Path("/sys/devices/system/cpu")


def allowed_cores() -> list[int]:
    """Return the processors that we may use, those that share a core or a socket side by side."""
    return sorted(os.sched_getaffinity(0), key=_place)


def physical_cores() -> int:
    """Return how many cores we may use; two hardware threads of one core count once."""
    return len({_place(cpu)[:2] for cpu in os.sched_getaffinity(0)})


def core_blocks(n: int) -> list[set[int]] | None:
    """Share the cores that we may use among n ranks, or return None if there are not enough.

    Ranks that spin on one core keep each other from running, so each gets neighbouring cores of its
    own; with more ranks than cores the scheduler must be free to move them.
    """
    cores = allowed_cores()
    share = len(cores) // n
    if share == 0:
        return None
    return [set(cores[rank * share : (rank + 1) * share]) for rank in range(n)]


def _place(cpu: int) -> tuple[int, int, int]:
    """Return the socket of a processor, the first hardware thread of its core, and itself."""
    topology = _TOPOLOGY / f"cpu{cpu}" / "topology"
    try:
        socket = int((topology / "physical_package_id").read_text())
        siblings = (topology / "thread_siblings_list").read_text()
    except (OSError, ValueError):  # a kernel or a sandbox that does not tell
        return 0, cpu, cpu
    first = re.match(r"\d+", siblings)
    return socket, int(first[0]) if first else cpu, cpu
