"""`breakpoint`: one rank stops in a debugger, and the others wait for it."""

from __future__ import annotations

import sys
from collections import Counter

from unisono.core import groups
from unisono.core.arguments import as_int
from unisono.core.debugging import debugger

__all__ = ["breakpoint"]

_seen: Counter[str] = Counter()  # calls by their line


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
    """Stop in a debugger on one rank; the others wait, without a deadline, until it goes on.

    The debugger is pdb, at the terminal of the job, in the frame of the caller. The first `skip`
    calls from this line do nothing. Calls that follow may wait `timeout_s` seconds for other ranks
    if they could wait less before; None changes nothing.

    >>> unisono.spawn(lambda: dist.breakpoint(skip=1), 1)  # the first call is skipped
    [None]
    """
    world = groups.world()
    caller = sys._getframe(1)
    line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    _seen[line] += 1
    if _seen[line] <= as_int(skip, "skip"):
        return
    if timeout_s is not None and world.engine is not None:
        world.engine.timeout = max(world.engine.timeout, float(timeout_s))
    debugger.hold(world, as_int(rank, "rank"), caller)
