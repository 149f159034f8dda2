"""What each rank did lately: how many calls it made, how long it waited, and how late it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.core.trace import RankReport
from unisono.tools.formatting import NANOSECOND
from unisono.tools.lateness import (
    CollectiveInstance,
    Lateness,
    compared,
    totals,
    waiting_time,
)

__all__ = ["Activity", "activities"]


@dataclass(frozen=True)
class Activity:
    """One rank in the time that the records cover; shares are between 0 and 1.

    `waiting` is the share of the time in which a call of this rank waited for others. `late` is how
    much later than the median rank it came, in nanoseconds, added up over the calls to which it
    came last; `late_share` is the same as a share of the time, and `worst` the largest.
    """

    calls_per_second: float
    waiting: float
    compared: int  # the collective calls of which the records of all ranks are known
    came_last: int  # how many of them
    late: int
    late_share: float
    worst: int


def activities(
    ranks: Sequence[RankReport], found: Sequence[CollectiveInstance], clock: int
) -> list[Activity]:
    """Tell of each rank what it did until `clock`; `found` are the calls of all, side by side."""
    since = _known_since(ranks, clock)
    known = {(one.group, one.number): one for one in found}
    counts = Counter(rank for one in compared(found) for rank in one.calls)
    by_rank, _ = totals(found)
    return [
        _activity(rank, known, counts[rank.rank], by_rank.get(rank.rank, Lateness()), since, clock)
        for rank in ranks
    ]


def _known_since(ranks: Sequence[RankReport], clock: int) -> int:
    """Return since when the records of all ranks are complete: only the last ones are kept."""
    first = [rank.calls[0] for rank in ranks if rank.calls]
    cut = [call.began for call in first if call.sequence > 1]
    since = max(cut) if cut else min((call.began for call in first), default=clock)
    return min(since, clock)


def _activity(
    rank: RankReport,
    known: dict[tuple[int, int], CollectiveInstance],
    count: int,
    late: Lateness,
    since: int,
    clock: int,
) -> Activity:
    own = clock - min((call.began for call in rank.calls), default=clock)
    time = clock - since
    waited = _waited(rank, known, since, clock)
    return Activity(
        calls_per_second=len(rank.calls) / (own * NANOSECOND) if own > 0 else 0.0,
        waiting=waited / time if time else 0.0,
        compared=count,
        came_last=late.calls,
        late=late.late,
        late_share=min(late.late / time, 1.0) if time else 0.0,
        worst=late.worst,
    )


def _waited(
    rank: RankReport,
    known: dict[tuple[int, int], CollectiveInstance],
    since: int,
    clock: int,
) -> int:
    """Add up the time in which some call waited: several may wait at the same time."""
    waited, reached = 0, since
    for call in sorted(rank.calls, key=lambda call: call.began):
        end = min(call.ended or clock, clock)
        instance = known.get((call.group, call.call)) if call.call is not None else None
        until = call.began + waiting_time(call, end, instance)
        if until > reached:
            waited += until - max(call.began, reached)
            reached = until
    return waited
