"""What tests need that start and watch real processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["DEADLINE", "is_running", "pids_of", "unignore_signals", "wait_until"]

#: Signals that nohup, cron and a shell's `&` tell a program, and all that it starts, to ignore.
_OFTEN_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

#: Seconds after which a test gives up waiting; far more than anything takes.
DEADLINE = 30.0


def pids_of(job: subprocess.Popen[str], n: int) -> list[int]:
    """The process ids that n ranks print in lines like "[1] ready 1234"."""
    assert job.stdout is not None
    return [int(job.stdout.readline().split()[-1]) for _ in range(n)]


def is_running(pid: int) -> bool:
    """Tell whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when the condition is true; fail the test after the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {DEADLINE:g} s"
        time.sleep(0.02)


def unignore_signals(also: Iterable[int] = ()) -> list[int]:
    """Keep ignoring the signals that this process ignores, but let the programs it starts not.

    A program inherits a signal that is ignored, but not a handler: it starts with the default
    action, as it would from a terminal. So each such signal gets a handler that does nothing.
    Signals in `also` get one in any case. Returns all of them.
    """
    ignored = {int(s) for s in _OFTEN_IGNORED if signal.getsignal(s) == signal.SIG_IGN}
    for number in ignored.union(also):
        signal.signal(number, lambda *_: None)
    return sorted(ignored.union(also))
