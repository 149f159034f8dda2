"""What tests need that watch real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["DEADLINE", "is_running", "pids_of", "wait_until", "with_default_signals"]

#: Seconds after which a test gives up; far more than anything takes.
DEADLINE = 30.0

_RESET = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_DFL)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)


def with_default_signals(command: Sequence[str | Path]) -> list[str]:
    """Make a command that obeys SIGINT and SIGHUP, however the tests were started.

    Under nohup and cron they are ignored, and children inherit that. A program in between resets
    them, because Python code between fork and exec is not safe where the tests have threads.
    """
    return [sys.executable, "-c", _RESET, *map(str, command)]


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
        assert time.monotonic() < deadline, f"not true after {DEADLINE:g} s"
        time.sleep(0.02)
