"""The running jobs of this user, found by the memory that their ranks hold.

Every rank keeps the job's memory open, and the kernel shows the open files of a process to its
user. Such a file is opened for reading only, and read, never mapped: the job notices nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unisono import _native
from unisono.core.trace import Rank, Record
from unisono.errors import LaunchError
from unisono.tools.formatting import current

__all__ = ["ALIVE", "Job", "Seat", "jobs"]

#: How the kernel shows the memory of a job among the open files of a process.
_MEMORY = "/memfd:unisono (deleted)"
#: The states of ranks that still belong to their job.
ALIVE = ("starting", "running", "waiting", "stopped")


@dataclass(frozen=True)
class Seat:
    """One rank at one moment. `seconds` is for how long `call` runs, or since when it has ended."""

    rank: int
    pid: int
    state: str  # one of ALIVE, "left", or how its process ended
    call: Record | None
    seconds: float | None
    waits_for: tuple[int, ...]  # world ranks


class Job:
    """A job as one sees it from outside; `name` is that of its launcher, if there is one."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._viewer = _native.JobInspector(descriptor)

    @property
    def size(self) -> int:
        """How many ranks the job has on this host."""
        return self._viewer.size

    def look(self) -> list[Seat]:
        """Where each rank is now."""
        found = self._viewer.snapshot()
        clock = time.monotonic_ns()
        return [
            _seat(Rank(rank, pid, state, [Record(*call) for call in calls], missing), clock)
            for rank, (pid, state, calls, missing) in enumerate(found)
        ]

    def pids(self) -> list[int]:
        """The processes of the ranks that run."""
        return [pid for pid, state, _, _ in self._viewer.snapshot() if pid and state in ALIVE]


def _seat(rank: Rank, clock: int) -> Seat:
    call = current(rank.calls)
    state, seconds = rank.state, None
    waits_for: tuple[int, ...] = ()
    if call is not None:
        since = call.began if call.ended is None else call.ended
        seconds = max(clock - since, 0) / 1e9
    if state == "running":
        waits_for = _waits_for(rank, call)
        state = "waiting" if waits_for else "running"
        if _is_stopped(rank.pid):
            state = "stopped"
    return Seat(rank.rank, rank.pid, state, call, seconds, waits_for)


def _waits_for(rank: Rank, call: Record | None) -> tuple[int, ...]:
    if call is None or call.state != "running":
        return ()
    if call.call is not None:
        return tuple(rank.missing or ())
    # The peer of a message is a rank of its group; only in the world do we know who that is.
    return (call.peer,) if call.peer is not None and call.group == 0 else ()


def _is_stopped(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def jobs() -> list[Job]:
    """All jobs of this user that run on this host, each once; those of one name get numbers."""
    found = dict(_found())
    names = [job.name for job in found.values()]
    for number, job in found.items():
        if names.count(job.name) > 1:
            job.name += f".{number}"
    return sorted(found.values(), key=lambda job: job.name)


def _found() -> Iterator[tuple[int, Job]]:
    """Jobs, with the number of their memory, which is unique among those that are there."""
    seen: set[int] = set()
    for process in _processes():
        for descriptor in _memories(process):
            try:
                number = os.fstat(descriptor).st_ino
                job = None if number in seen else Job(_name(process, number), descriptor)
            except LaunchError:
                continue  # something else of that name, or a job of another version
            finally:
                os.close(descriptor)
            seen.add(number)
            if job is not None and job.pids():
                yield number, job


def _processes() -> Iterator[Path]:
    """The other processes of this user."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                yield entry
        except OSError:
            continue  # it has ended meanwhile


def _memories(process: Path) -> Iterator[int]:
    """Descriptors of our own for what looks like the memory of a job in a process."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return  # it has ended, or hides itself
    for link in links:
        try:
            if str(link.readlink()) != _MEMORY:
                continue
            # Not blocking: a pipe could bear the name of our memory.
            descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        yield descriptor


def _name(process: Path, number: int) -> str:
    """What the launcher calls the job, or the number of its memory."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        variables = []
    names = [entry[12:] for entry in variables if entry.startswith(b"UNISONO_JOB=")]
    return names[0].decode(errors="replace") if names and names[0] else f"memory-{number}"
