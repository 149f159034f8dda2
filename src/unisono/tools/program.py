"""What a process runs, and since when, as the kernel tells it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Program", "program_of", "script_name"]

#: Options of Python whose value is the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: A process that Python's multiprocessing has started says so in its command line.
_FROM_MULTIPROCESSING = "--multiprocessing-fork"


@dataclass(frozen=True)
class Program:
    """The script of a process, or "" if that is not known, and when the process started."""

    script: str
    started: float  # seconds, as time.time() counts them


def program_of(pid: int) -> Program:
    """Ask the kernel about a process of this user; it may have ended meanwhile."""
    return Program(_script(pid), time.time() - _age(pid))


def _script(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if _FROM_MULTIPROCESSING in words:
            return _script(int(_fields(pid)[1]))  # the script is that of its parent
    except (OSError, IndexError):
        return ""
    return script_name(words)


def script_name(command: Sequence[str]) -> str:
    """Find the script in a command line.

    >>> script_name(["/usr/bin/python3", "-u", "-X", "dev", "models/train.py", "--layers", "8"])
    'train.py'
    >>> script_name(["python", "-m", "models.train"]), script_name(["python", "-c", "pass"])
    ('-m models.train', '-c')
    >>> script_name(["build/solver", "input"])
    'solver'
    """
    words = iter(command)
    name = Path(next(words, "")).name
    if not name.startswith(("python", "pypy")):
        return name
    for word in words:
        if word == "-m":
            return f"-m {next(words, '')}"
        if word in _WITH_VALUE:
            next(words, None)
        elif word == "-c" or not word.startswith("-"):
            return Path(word).name
    return name


def _age(pid: int) -> float:
    """Return for how many seconds a process has run."""
    try:
        started = int(_fields(pid)[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0)


def _fields(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on: the name may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
