"""`unisono top`: show a running job live: where each rank is, for whom it waits, who is late."""

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
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from unisono.errors import LaunchError
from unisono.tools.formatting import duration, plain, rank_list
from unisono.tools.table import table, terminal_columns
from unisono.tools.top.frame import findings, frame

if TYPE_CHECKING:
    from unisono.tools.jobs import RankStatus, RunningJob

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono top`."""
    parser.description = (
        "Show a running job of this user on this host, live: the call in which each rank is, for "
        "how long, and for whom it waits; and from its last 1024 calls how many it makes, how much "
        "of the time it waits, how often it comes last and how late. It only reads, and does not "
        "affect the job. It sees jobs of engine shm, and the part of a hybrid job on this host."
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
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 < value < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a time; give seconds above 0")


def main(arguments: argparse.Namespace) -> int:
    """Follow the job until it ends; return 1 if there is none."""
    try:
        from unisono.tools import jobs
    except ImportError as error:
        raise LaunchError(f"the native module does not load here: {error}") from error
    found = jobs.running_jobs()
    if arguments.job is not None:
        found = jobs.select(found, arguments.job)
    if len(found) != 1:
        return _list(found, arguments)
    # Ctrl-C is the way to leave; the terminal's settings were not changed.
    with contextlib.suppress(KeyboardInterrupt):
        _follow(found[0], arguments)
    return 0


def _list(found: Sequence[RunningJob], arguments: argparse.Namespace) -> int:
    """List the jobs, so that the user can choose one."""
    if arguments.json:
        entries = [{**_job_data(job), "pids": job.pids()} for job in found]
        print(json.dumps({"jobs": entries}))
    elif found:
        rows = [("job", "script", "ranks", "age", "pids"), *map(_job_row, found)]
        print("several jobs run; choose one with `unisono top JOB`:")
        print("\n".join(table(rows, terminal_columns(), indent="  ")))
    if not found:
        which = "" if arguments.job is None else f" with the name or pid {arguments.job!r}"
        print(f"unisono: no job of this user runs here{which}", file=sys.stderr)
    return 0 if found else 1


def _job_row(job: RunningJob) -> tuple[str, ...]:
    age = duration(max(time.time() - job.program.started, 0))
    script, pids = plain(job.program.script), rank_list(job.pids())
    return (plain(job.name), script, str(job.size), age, pids)


def _job_data(job: RunningJob) -> dict[str, Any]:
    started = datetime.fromtimestamp(job.program.started).astimezone()
    return {
        "job": job.name,
        "script": job.program.script,
        "started": started.isoformat(timespec="seconds"),
        "size": job.size,
    }


def _follow(job: RunningJob, arguments: argparse.Namespace) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    screen = _Screen(live=sys.stdout.isatty() and not arguments.once and not arguments.json)
    while True:
        ranks = job.ranks()
        alive = _alive(ranks)
        if arguments.json:
            print(json.dumps(_data(job, ranks)), flush=True)
        else:
            # A line that fills the last column would make some terminals wrap it.
            lines = [*frame(job, ranks, terminal_columns() - 1, coloured)]
            screen.draw(lines if alive else [*lines, "the job has ended"])
        if arguments.once or not alive:
            return
        _sleep(arguments.interval, [rank.pid for rank in alive if rank.pid])


def _alive(ranks: Sequence[RankStatus]) -> list[RankStatus]:
    from unisono.tools.jobs import ALIVE

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


def _data(job: RunningJob, ranks: Sequence[RankStatus]) -> dict[str, Any]:
    return {
        **_job_data(job),
        "ranks": [dataclasses.asdict(rank) for rank in ranks],
        "findings": list(findings(ranks)),
    }
