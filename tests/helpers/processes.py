"""What tests need that watch real processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["DEADLINE", "is_running", "pids_of", "wait_until"]

#: Seconds after which a test has waited in vain; far more than anything takes.
DEADLINE = 30.0


def pids_of(job: subprocess.Popen[str], n: int) -> list[int]:
    """The process ids that n ranks print in lines like "[1] ready 1234"."""
    assert job.stdout is not None
    return [int(job.stdout.readline().split()[-1]) for _ in range(n)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
