"""One look of `unisono top`: what is wrong, and one line for each rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unisono.tools.calls import age_text, call_site, call_text
from unisono.tools.formatting import NANOSECOND, duration, plain, plural, rank_list, rate
from unisono.tools.table import cut, pad, width, wrap

if TYPE_CHECKING:
    from unisono.tools.jobs import RankStatus, RunningJob

__all__ = ["findings", "frame"]

#: Seconds after which a wait is reported; ranks of a healthy job wait for each other as well.
_REPORTED_WAIT = 0.5
#: The share of the time by which a rank must be late to be reported.
_REPORTED_LATENESS = 0.05

_BOLD, _RED, _GREEN, _YELLOW = "1", "31", "32", "33"
_STATE_COLOURS = {"running": _GREEN, "waiting": _YELLOW, "starting": "", "left": ""}


def frame(
    job: RunningJob, ranks: Sequence[RankStatus], columns: int, coloured: bool
) -> Iterator[str]:
    """Yield the lines that show a job at one moment, none of them wider than `columns`."""
    paint = _paint if coloured else _leave
    script = f", {plain(job.program.script)}" if job.program.script else ""
    age = duration(max(time.time() - job.program.started, 0))
    header = f"job {plain(job.name)}{script}, {plural(job.size, 'rank')}, for {age}"
    for line in wrap(f"{header}, {time.strftime('%H:%M:%S')}", columns):
        yield paint(line, _BOLD)
    for text in findings(ranks):
        for line in wrap(text, columns):
            yield paint(line, _RED)
    yield from _table(ranks, columns, paint)


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[RankStatus], str]
    align: str = "<"
    colour: Callable[[RankStatus], str] = lambda rank: ""


def _table(
    ranks: Sequence[RankStatus], columns: int, paint: Callable[[str, str], str]
) -> Iterator[str]:
    """Lay out the widest choice of columns that fits; what does not fit even then is cut."""
    for chosen in _CHOICES:
        titles = [column.title for column in chosen]
        rows = [[column.cell(rank) for column in chosen] for rank in ranks]
        sizes = [max(map(width, texts)) for texts in zip(titles, *rows, strict=True)]
        fits = sum(sizes) + 2 * (len(sizes) - 1) <= columns
        if fits:
            break
    between = "  " if fits else " "
    colours = [[column.colour(rank) for column in chosen] for rank in ranks]
    for texts, codes in zip([titles, *rows], [[_BOLD] * len(titles), *colours], strict=True):
        room, parts = columns, []
        for text, size, code, column in zip(texts, sizes, codes, chosen, strict=True):
            parts.append(paint(cut(pad(text, size, column.align), room), code if text else ""))
            room = max(room - size - len(between), 0)
        yield between.join(parts).rstrip()


def _paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text


def _leave(text: str, colour: str) -> str:
    return text


def _state_colour(rank: RankStatus) -> str:
    return _STATE_COLOURS.get(rank.state, _RED)


def _lateness_colour(rank: RankStatus) -> str:
    return _RED if rank.activity.late_share >= _REPORTED_LATENESS else ""


def _state(rank: RankStatus) -> str:
    return plain(rank.state)


def _short_state(rank: RankStatus) -> str:
    """Write "SIGKILL" for "killed by SIGKILL", and "code 3" for "exited with code 3"."""
    return _state(rank).removeprefix("killed by ").removeprefix("exited with ")


def _call(rank: RankStatus) -> str:
    return "none yet" if rank.call is None else call_text(rank.call)


def _verb(rank: RankStatus) -> str:
    return "none yet" if rank.call is None else plain(rank.call.verb)


def _group(rank: RankStatus) -> str:
    if rank.call is None:
        return ""
    return "world" if rank.call.group == 0 else str(rank.call.group)


def _age(rank: RankStatus) -> str:
    return "" if rank.call is None else age_text(rank.call, rank.seconds or 0)


def _short_age(rank: RankStatus) -> str:
    if rank.call is None:
        return ""
    text = duration(rank.seconds or 0)
    return f"for {text}" if rank.call.ended is None else f"{text} ago"


def _last(rank: RankStatus) -> str:
    lately = rank.activity
    return f"{lately.came_last / lately.compared:.0%}" if lately.compared else ""


def _late(rank: RankStatus) -> str:
    lately = rank.activity
    return duration(lately.late / lately.came_last * NANOSECOND) if lately.came_last else ""


_RANK = _Column("rank", lambda rank: str(rank.rank))
_PID = _Column("pid", lambda rank: str(rank.pid) if rank.pid else "")
_LATELY = (
    _Column("calls/s", lambda rank: rate(rank.activity.calls_per_second), ">"),
    _Column("waiting", lambda rank: f"{rank.activity.waiting:.0%}", ">"),
    _Column("last", _last, ">"),
    _Column("late", _late, ">", _lateness_colour),
)
_AT = _Column("at", lambda rank: call_site(rank.call.call_site) if rank.call else "")
_AWAITED = _Column("waits for", lambda rank: rank_list(rank.waits_for))
_STATE = _Column("state", _state, colour=_state_colour)
_SHORT_STATE = _Column("state", _short_state, colour=_state_colour)
_SHORT_AGE = _Column("time", _short_age)
_VERB = _Column("call", _verb)
#: From the widest to the narrowest.
_CHOICES: tuple[tuple[_Column, ...], ...] = (
    (
        *(_RANK, _PID, _STATE, *_LATELY, _Column("call", _call), _Column("group", _group), _AT),
        *(_Column("time", _age), _AWAITED),
    ),
    (_RANK, _PID, _STATE, *_LATELY, _VERB, _AT, _SHORT_AGE, _AWAITED),
    (_RANK, _SHORT_STATE, *_LATELY, _VERB, _AT, _SHORT_AGE, _AWAITED),
    (_RANK, _SHORT_STATE, *_LATELY, _VERB, _SHORT_AGE, _AWAITED),
)


# ---- what is wrong -------------------------------------------------------------------------------


def findings(ranks: Sequence[RankStatus]) -> Iterator[str]:
    """Name the ranks that keep others waiting: now for some time, or again and again."""
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
    for rank in sorted(ranks, key=lambda rank: -rank.activity.late_share):
        lately = rank.activity
        if lately.late_share < _REPORTED_LATENESS:
            break
        yield (
            f"rank {rank.rank} comes late: last in {lately.came_last} of {lately.compared} calls, "
            f"up to {duration(lately.worst * NANOSECOND)} after the median rank, "
            f"{lately.late_share:.0%} of the time"
        )
