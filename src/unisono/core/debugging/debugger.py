"""pdb for any rank: at the terminal of the job, whatever the rank's own input and output are.

Ranks of `unisono run` write to pipes, and only one of them reads the terminal; but they belong to
its session, so each can open it. One at a time has it. `unisono run` names `stop_here` in
PYTHONBREAKPOINT, so that Python's own `breakpoint()` comes here.
"""

from __future__ import annotations

import bdb
import contextlib
import hashlib
import os
import pdb
import socket
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from unisono.errors import ArgumentError, LaunchError

if TYPE_CHECKING:
    from unisono.core.groups import Group

__all__ = ["RankDebugger", "hold", "post_mortem", "stop_here"]

_TERMINAL = "/dev/tty"
#: Seconds between two attempts to get the terminal from another rank.
_POLL = 0.1
#: Seconds that the others wait: ten years, because a debugger has no deadline.
_FOR_EVER = 3e8


class RankDebugger(pdb.Pdb):
    """A debugger that has the terminal of the job from its first prompt until it continues."""

    def __init__(self) -> None:
        super().__init__(**_streams(), nosigint=True)
        self.prompt = f"(rank {_rank()}) "
        self.has_continued = False
        self._turn: socket.socket | None = None

    def interaction(
        self, frame: FrameType | None, traceback: TracebackType | None, *more: Any
    ) -> None:
        """Wait for the terminal, and take commands."""
        if self._turn is None:
            self._turn = _take_turn()
        self.has_continued = False
        super().interaction(frame, traceback, *more)

    def set_continue(self) -> None:
        """Go on, and let other ranks have the terminal."""
        self.has_continued = True
        super().set_continue()
        self._let_go()

    def set_quit(self) -> None:
        """End the program, and let other ranks have the terminal."""
        super().set_quit()
        self._let_go()

    def _let_go(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None


def stop_here(*_: Any, **__: Any) -> None:
    """Stop in the function that calls this; what `breakpoint()` does in ranks of `unisono run`."""
    RankDebugger().set_trace(sys._getframe(1))


def hold(group: Group, rank: int, frame: FrameType) -> None:
    """Take commands on one rank of a group, in this frame; the others wait, without a deadline."""
    from unisono.core import dispatch  # brings NumPy, which a mere `breakpoint()` need not

    if not 0 <= rank < group.size:
        raise ArgumentError(f"rank is {rank}, and group {group.name!r} has {group.size} ranks")
    if group.rank != rank:
        dispatch.barrier(group, timeout=_FOR_EVER)
        return
    debugger = RankDebugger()
    debugger.reset()
    debugger.interaction(frame, None)
    if debugger.quitting:
        raise bdb.BdbQuit
    dispatch.barrier(group, timeout=_FOR_EVER)
    # Only now, or the debugger would step through our own calls.
    if debugger.breaks or not debugger.has_continued:
        go_on = debugger.set_continue if debugger.has_continued else debugger.set_step
        debugger.set_trace(frame)
        sys.settrace(None)  # or it would stop in its own method
        go_on()  # since Python 3.13 it would stop on this line once more
        sys.settrace(debugger.trace_dispatch)


def post_mortem(traceback: TracebackType, text: str) -> None:
    """Show a text, then take commands where an error was raised."""
    debugger = RankDebugger()
    debugger.reset()
    debugger.message(text)
    debugger.interaction(None, traceback)
    debugger.set_continue()


def _rank() -> str:
    return os.environ.get("RANK") or os.environ.get("UNISONO_RANK") or "0"


def _streams() -> dict[str, Any]:
    """Give pdb the terminal as input and output, unless this process has it already."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        if os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno()):
            return {}
    try:
        # Two files: one that is open for both cannot be buffered, as a terminal has no position.
        return {"stdin": open(_TERMINAL), "stdout": open(_TERMINAL, "w", buffering=1)}
    except OSError:
        pass
    if _reads_nothing():
        raise LaunchError(
            f"rank {_rank()} has no terminal for a debugger; start the job in one with "
            f"`unisono run --tty {_rank()}`, or call breakpoint(rank=0), which reads standard input"
        )
    return {}


def _reads_nothing() -> bool:
    try:
        return os.path.samestat(os.fstat(0), Path(os.devnull).stat())
    except OSError:
        return True


def _take_turn() -> socket.socket:
    """Wait until no other rank of the job has the terminal; the kernel ends the turn with us."""
    job = os.environ.get("UNISONO_JOB") or str(os.getppid())
    name = hashlib.blake2b(job.encode(), digest_size=8).hexdigest()
    turn = socket.socket(socket.AF_UNIX)
    while True:
        try:
            turn.bind(f"\0unisono-debugger-{name}")
        except OSError:
            time.sleep(_POLL)
        else:
            return turn
