"""`unisono top`: show a running job live: the call each rank is in, and for whom it waits."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from unisono.errors import LaunchError
from unisono.tools.calls import age_text, call_site, call_text
from unisono.tools.formatting import plain, plural, rank_list
from unisono.tools.table import table, terminal_columns, wrap

if TYPE_CHECKING:
    from unisono.tools.top.jobs import RankStatus, RunningJob

__all__ = ["configure", "frame", "main"]

#: Seconds after which a wait is reported; ranks of a healthy job wait for each other as well.
_REPORTED_WAIT = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono top`."""
    parser.description = (
        "Show a running job of this user on this host, live: the call in which each rank is, for "
        "how long, and for whom it waits. It only reads, and does not affect the job. It sees jobs "
        "of engine shm, and the part of a hybrid job on this host."
    )
    parser.epilog = "Exit codes: 0 fine, also after Ctrl-C; 1 no such job; 2 wrong usage."
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="the beginning of its name, or the pid of one of its ranks",
    )
    parser.add_argument("--once", action="store_true", help="look once and exit")
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="seconds between two looks (default: 1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, on one line, for each look"
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give seconds above 0")
    return value


def main(arguments: argparse.Namespace) -> int:
    """Follow the job until it ends; return 1 if there is none."""
    try:
        from unisono.tools.top import jobs
    except ImportError as error:
        raise LaunchError(f"the native module does not load here: {error}") from error
    found = _select(jobs.running_jobs(), arguments.job)
    if len(found) != 1:
        return _list(found, arguments)
    # Ctrl-C is the way to leave; the terminal's settings were not changed.
    with contextlib.suppress(KeyboardInterrupt):
        _follow(found[0], arguments)
    return 0


def _select(found: Sequence[RunningJob], wanted: str | None) -> list[RunningJob]:
    if wanted is None:
        return list(found)
    of_rank = [job for job in found if wanted in map(str, job.pids())]
    return of_rank or [job for job in found if job.name.startswith(wanted)]


def _list(found: Sequence[RunningJob], arguments: argparse.Namespace) -> int:
    """List the jobs, so that the user can choose one."""
    if arguments.json:
        entries = [{"job": job.name, "size": job.size, "pids": job.pids()} for job in found]
        print(json.dumps({"jobs": entries}))
    elif found:
        rows = [(plain(job.name), str(job.size), ", ".join(map(str, job.pids()))) for job in found]
        print("several jobs run; choose one with `unisono top JOB`:")
        print("\n".join(table([("job", "ranks", "pids"), *rows], terminal_columns(), indent="  ")))
    if not found:
        which = "" if arguments.job is None else f" with the name or pid {arguments.job!r}"
        print(f"unisono: no job of this user runs here{which}", file=sys.stderr)
    return 0 if found else 1


def _follow(job: RunningJob, arguments: argparse.Namespace) -> None:
    screen = _Screen(live=sys.stdout.isatty() and not arguments.once and not arguments.json)
    while True:
        ranks = job.ranks()
        alive = _alive(ranks)
        if arguments.json:
            print(json.dumps(_data(job, ranks)), flush=True)
        else:
            # A line that fills the last column would make some terminals wrap it.
            lines = [*frame(job, ranks, terminal_columns() - 1)]
            screen.draw(lines if alive else [*lines, "the job has ended"])
        if arguments.once or not alive:
            return
        _sleep(arguments.interval, [rank.pid for rank in alive if rank.pid])


def _alive(ranks: Sequence[RankStatus]) -> list[RankStatus]:
    from unisono.tools.top.jobs import ALIVE

    return [rank for rank in ranks if rank.state in ALIVE]


def _sleep(seconds: float, pids: Sequence[int]) -> None:
    """Wait, but at most until the next rank ends, because we hold the memory of the job."""
    watch = select.poll()
    with contextlib.ExitStack() as handles:
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                handles.callback(os.close, handle)
                watch.register(handle, select.POLLIN)
        watch.poll(seconds * 1000)


class _Screen:
    """Prints one frame after the other; on a terminal each replaces the one before it."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        if self._live:
            room = max(shutil.get_terminal_size().lines - 2, 4)
            if len(lines) > room:
                hidden = len(lines) - room + 1
                lines = [*lines[: room - 1], f"... and {hidden} more lines: --once shows all"]
            if self._height:
                sys.stdout.write(f"\x1b[{self._height}A\x1b[J")  # go up, and clear below
        elif self._height:
            sys.stdout.write("\n")
        self._height = len(lines)
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


# ---- one frame -----------------------------------------------------------------------------------


def frame(job: RunningJob, ranks: Sequence[RankStatus], columns: int) -> Iterator[str]:
    """Yield the lines that show a job at one moment."""
    header = f"job {plain(job.name)}, {plural(job.size, 'rank')}, {time.strftime('%H:%M:%S')}"
    yield from wrap(header, columns)
    for text in _diagnose(ranks):
        yield from wrap(text, columns)
    rows = [("rank", "pid", "state", "call", "group", "at", "time", "waits for")]
    for rank in ranks:
        cells = ("none yet", "", "", "")
        if rank.call is not None:
            group = "world" if rank.call.group == 0 else str(rank.call.group)
            cells = (call_text(rank.call), group, call_site(rank.call.call_site), _age(rank))
        pid = str(rank.pid) if rank.pid else ""
        rows.append((str(rank.rank), pid, plain(rank.state), *cells, rank_list(rank.waits_for)))
    yield from table(rows, columns)


def _age(rank: RankStatus) -> str:
    return "" if rank.call is None else age_text(rank.call, rank.seconds or 0)


def _diagnose(ranks: Sequence[RankStatus]) -> Iterator[str]:
    """Name the ranks that keep others waiting for some time and do not wait themselves."""
    waiting = [rank for rank in ranks if rank.waits_for and (rank.seconds or 0) >= _REPORTED_WAIT]
    awaited = {other for rank in waiting for other in rank.waits_for if other < len(ranks)}
    stuck = {rank.rank for rank in waiting if rank.state == "waiting"}
    for number in sorted(awaited - stuck):
        rank = ranks[number]
        count = sum(number in other.waits_for for other in waiting)
        state = f"it is {rank.state}" if rank.state in ("running", "stopped") else rank.state
        last = "it has called nothing yet"
        if rank.call is not None:
            last = f"{call_text(rank.call)} {_age(rank)}"
            last += f" at {call_site(rank.call.call_site)}" if rank.call.call_site else ""
        yield f"rank {number} keeps {plural(count, 'rank')} waiting: {plain(state)}; {last}"
    if awaited and awaited <= stuck:
        yield f"ranks {rank_list(awaited)} wait for each other: they are in different calls"


def _data(job: RunningJob, ranks: Sequence[RankStatus]) -> dict[str, Any]:
    return {
        "job": job.name,
        "size": job.size,
        "ranks": [dataclasses.asdict(rank) for rank in ranks],
        "findings": list(_diagnose(ranks)),
    }
