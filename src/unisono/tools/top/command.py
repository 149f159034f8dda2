"""`unisono top`: a running job, live: where each rank is, for how long, and for whom it waits."""

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
from unisono.tools.formatting import describe, duration, listed, plain, spot
from unisono.tools.table import table, wrap

if TYPE_CHECKING:
    from unisono.tools.top.jobs import Job, Seat

__all__ = ["configure", "main", "show"]

#: Seconds after which a wait is worth a word; ranks of a healthy job wait for each other as well.
_NOTICEABLE = 0.5
_WIDEST = 160
_NARROWEST = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono top`."""
    parser.description = (
        "Show a running job of this user on this host, live: the call in which each rank is, for "
        "how long, and for whom it waits. It only reads, and the job notices nothing. Jobs of "
        "engine shm can be seen, and what engine hybrid does inside this host."
    )
    parser.epilog = "Exit codes: 0 fine, also after Ctrl-C, 1 no such job, 2 wrong usage."
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="how its name begins, or the pid of one of its ranks"
    )
    parser.add_argument("--once", action="store_true", help="look once, and end")
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
        raise argparse.ArgumentTypeError(f"{text!r} is no time to wait; give seconds above 0")
    return value


def main(arguments: argparse.Namespace) -> int:
    """Follow the job until it ends; return 1 if there is none."""
    try:
        from unisono.tools.top import jobs
    except ImportError as error:
        raise LaunchError(f"the native module does not load here: {error}") from error
    found = _chosen(jobs.jobs(), arguments.job)
    if len(found) != 1:
        return _list(found, arguments)
    # Ctrl-C is how one leaves; nothing was done to the terminal that would have to be undone.
    with contextlib.suppress(KeyboardInterrupt):
        _follow(found[0], arguments)
    return 0


def _chosen(found: Sequence[Job], wanted: str | None) -> list[Job]:
    if wanted is None:
        return list(found)
    of_rank = [job for job in found if wanted in map(str, job.pids())]
    return of_rank or [job for job in found if job.name.startswith(wanted)]


def _list(found: Sequence[Job], arguments: argparse.Namespace) -> int:
    """Say which jobs there are, for the user to choose one."""
    if arguments.json:
        entries = [{"job": job.name, "size": job.size, "pids": job.pids()} for job in found]
        print(json.dumps({"jobs": entries}))
    elif found:
        rows = [(plain(job.name), str(job.size), ", ".join(map(str, job.pids()))) for job in found]
        print("several jobs run; name one as `unisono top JOB`:")
        print("\n".join(table([("job", "ranks", "pids"), *rows], _columns())))
    if not found:
        which = "" if arguments.job is None else f" that {arguments.job!r} could mean"
        print(f"unisono: no job of this user runs here{which}", file=sys.stderr)
    return 0 if found else 1


def _follow(job: Job, arguments: argparse.Namespace) -> None:
    screen = _Screen(live=sys.stdout.isatty() and not arguments.once and not arguments.json)
    while True:
        seats = job.look()
        alive = _alive(seats)
        if arguments.json:
            print(json.dumps(_data(job, seats)), flush=True)
        else:
            screen.draw([*show(job, seats, _columns()), *([] if alive else ["the job has ended"])])
        if arguments.once or not alive:
            return
        _sleep(arguments.interval, [seat.pid for seat in alive if seat.pid])


def _alive(seats: Sequence[Seat]) -> list[Seat]:
    from unisono.tools.top.jobs import ALIVE

    return [seat for seat in seats if seat.state in ALIVE]


def _sleep(seconds: float, pids: Sequence[int]) -> None:
    """Wait, but not longer than until the next rank ends: we hold the memory of the job."""
    watch = select.poll()
    with contextlib.ExitStack() as handles:
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                handles.callback(os.close, handle)
                watch.register(handle, select.POLLIN)
        watch.poll(seconds * 1000)


class _Screen:
    """Prints one frame after the other; a live one stands where the last one stood."""

    def __init__(self, live: bool) -> None:
        self._live = live
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        if self._live:
            room = max(shutil.get_terminal_size().lines - 2, 4)
            if len(lines) > room:
                hidden = len(lines) - room + 1
                lines = [*lines[: room - 1], f"... and {hidden} lines more: --once shows all"]
            if self._height:
                sys.stdout.write(f"\x1b[{self._height}A\x1b[J")  # up, and clear what is below
        elif self._height:
            sys.stdout.write("\n")
        self._height = len(lines)
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def _columns() -> int:
    return min(max(shutil.get_terminal_size((120, 24)).columns - 1, _NARROWEST), _WIDEST)


# ---- one look ------------------------------------------------------------------------------------


def show(job: Job, seats: Sequence[Seat], columns: int) -> Iterator[str]:
    """One look at a job, as lines of a terminal."""
    yield f"job {plain(job.name)}, {job.size} ranks, {time.strftime('%H:%M:%S')}"
    for text in _verdict(seats):
        yield from wrap(text, columns)
    rows = [("rank", "pid", "state", "call", "group", "at", "time", "waits for")]
    for seat in seats:
        words = ("none yet", "", "", "")
        if seat.call is not None:
            group = "world" if seat.call.group == 0 else str(seat.call.group)
            words = (describe(seat.call), group, spot(seat.call.place), _time(seat))
        pid = str(seat.pid) if seat.pid else ""
        rows.append((str(seat.rank), pid, plain(seat.state), *words, listed(seat.waits_for)))
    yield from table(rows, columns, indent="")


def _time(seat: Seat) -> str:
    passed = duration((seat.seconds or 0) * 1e9)
    if seat.call is None or seat.call.state == "running":
        return f"for {passed}"
    return f"{'ended' if seat.call.state == 'done' else plain(seat.call.state)} {passed} ago"


def _verdict(seats: Sequence[Seat]) -> Iterator[str]:
    """Who keeps the others waiting, once that has lasted: one who does not wait for anybody."""
    waiting = [seat for seat in seats if seat.waits_for and (seat.seconds or 0) >= _NOTICEABLE]
    awaited = {rank for seat in waiting for rank in seat.waits_for if rank < len(seats)}
    stuck = {seat.rank for seat in waiting if seat.state == "waiting"}
    for rank in sorted(awaited - stuck):
        count = sum(rank in seat.waits_for for seat in waiting)
        seat = seats[rank]
        text = f"rank {rank} keeps {count} {'rank' if count == 1 else 'ranks'} waiting"
        told = f"it is {seat.state}" if seat.state in ("running", "stopped") else seat.state
        if seat.call is None:
            last = "it has called nothing yet"
        else:
            last = f"{describe(seat.call)} {_time(seat)}"
            last += f" at {spot(seat.call.place)}" if seat.call.place else ""
        yield f"{text}: {plain(told)}; {last}"
    if awaited and awaited <= stuck:
        yield f"ranks {listed(awaited)} wait for each other: they are in different calls"


def _data(job: Job, seats: Sequence[Seat]) -> dict[str, Any]:
    return {
        "job": job.name,
        "size": job.size,
        "ranks": [dataclasses.asdict(seat) for seat in seats],
        "findings": list(_verdict(seats)),
    }
