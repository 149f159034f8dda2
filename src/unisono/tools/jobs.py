"""Find the running jobs of this user by the shared memory that their ranks hold.

Every rank keeps the job's memory open, and the kernel shows the open files of a process to its
user. We open such a file for reading only and never map it, so the job is not affected.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono import _native
from unisono.core.trace import RankReport, Record
from unisono.errors import LaunchError
from unisono.launch.process import is_stopped
from unisono.tools.activity import Activity, activities
from unisono.tools.calls import current_call, seconds_since
from unisono.tools.lateness import instances
from unisono.tools.program import Program, program_of

__all__ = ["ALIVE", "RankStatus", "RunningJob", "running_jobs", "select"]

#: How the kernel names the memory of a job among the open files of a process; the second way is
#: that of a file without a name, where memfd_create is refused.
_MEMORY = re.compile(r"/memfd:unisono \(deleted\)|/dev/shm/#\d+ \(deleted\)")
#: The states of ranks that still belong to their job.
ALIVE = ("starting", "running", "waiting", "stopped")


@dataclass(frozen=True)
class RankStatus:
    """One rank at one moment; `seconds` is the time since `call` began, or since it ended."""

    rank: int
    pid: int
    state: str  # one of ALIVE, "left", or how its process ended
    call: Record | None
    seconds: float | None
    waits_for: tuple[int, ...]  # world ranks
    activity: Activity


class RunningJob:
    """A running job seen from outside; `name` is what its launcher calls it, if it has one."""

    def __init__(self, name: str, program: Program, descriptor: int) -> None:
        self.name = name
        self.program = program
        self._inspector = _native.JobInspector(descriptor)

    @property
    def size(self) -> int:
        """The number of the job's ranks on this host."""
        return self._inspector.size

    def look(self) -> tuple[list[RankReport], int]:
        """Return the last calls of all ranks, and the time of the look by the clock of the calls.

        A rank that was read late may have records of calls that began after that time.
        """
        clock = time.monotonic_ns()
        return [
            RankReport(rank, pid, state, [Record(*call) for call in calls], missing)
            for rank, (pid, state, calls, missing) in enumerate(self._inspector.snapshot())
        ], clock

    def ranks(self) -> list[RankStatus]:
        """Look at the job, and return where each rank is now and what it did lately."""
        found, clock = self.look()
        now = time.monotonic_ns()
        lately = activities(found, instances(found, clock), clock)
        return [_status(rank, one, now) for rank, one in zip(found, lately, strict=True)]

    def pids(self) -> list[int]:
        """Return the processes of the ranks that run."""
        return [pid for pid, state, _, _ in self._inspector.snapshot() if pid and state in ALIVE]


def _status(rank: RankReport, activity: Activity, clock: int) -> RankStatus:
    call = current_call(rank.calls)
    seconds = None if call is None else seconds_since(call, clock)
    state = rank.state
    waits_for: tuple[int, ...] = ()
    if state == "running":
        waits_for = _waits_for(rank, call)
        state = "waiting" if waits_for else "running"
        if is_stopped(rank.pid):
            state = "stopped"
    return RankStatus(rank.rank, rank.pid, state, call, seconds, waits_for, activity)


def _waits_for(rank: RankReport, call: Record | None) -> tuple[int, ...]:
    if call is None or call.state != "running":
        return ()
    if call.call is not None:
        return tuple(rank.missing or ())
    # The peer of a message is a rank of its group; we can name it only if that is the world.
    return (call.peer,) if call.peer is not None and call.group == 0 else ()


def running_jobs() -> list[RunningJob]:
    """Return the jobs of this user on this host; a number is added to names that repeat."""
    found = dict(_found())
    names = [job.name for job in found.values()]
    for number, job in found.items():
        if names.count(job.name) > 1:
            job.name += f".{number}"
    return sorted(found.values(), key=lambda job: job.name)


def select(found: Sequence[RunningJob], wanted: str) -> list[RunningJob]:
    """Return the jobs that have a rank with this pid, or else a name with this beginning."""
    of_rank = [job for job in found if wanted in map(str, job.pids())]
    return of_rank or [job for job in found if job.name.startswith(wanted)]


def _found() -> Iterator[tuple[int, RunningJob]]:
    """Yield jobs with the inode number of their memory, which is unique on this host."""
    seen: set[int] = set()
    for process in _processes():
        for descriptor in _memories(process):
            try:
                number = os.fstat(descriptor).st_ino
                job = None if number in seen else _job(process, number, descriptor)
            except LaunchError:
                continue  # other memory of that name, or a job of another version
            finally:
                os.close(descriptor)
            seen.add(number)
            if job is not None and job.pids():
                yield number, job


def _job(process: Path, number: int, descriptor: int) -> RunningJob:
    return RunningJob(_name(process, number), program_of(int(process.name)), descriptor)


def _processes() -> Iterator[Path]:
    """Yield the /proc folders of this user's processes."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                yield entry
        except OSError:
            continue  # it has just ended


def _memories(process: Path) -> Iterator[int]:
    """Open what looks like the memory of a job in a process, and yield the descriptors."""
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return  # it has ended, or does not let us look
    for link in links:
        try:
            if _MEMORY.fullmatch(str(link.readlink())) is None:
                continue
            # Not blocking, because a pipe could have the name of our memory.
            descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        yield descriptor


def _name(process: Path, number: int) -> str:
    """Return the launcher's name for the job, or one made from the number of its memory."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        variables = []
    names = [entry[12:] for entry in variables if entry.startswith(b"UNISONO_JOB=")]
    return names[0].decode(errors="replace") if names and names[0] else f"memory-{number}"
