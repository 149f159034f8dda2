"""Who came late: the calls of all ranks side by side.

A call of a group bears the same number on all its ranks. Whoever begins it last lets the others
wait; how much too late that is, is counted from the median of the ranks, for half of them were
there by then.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from unisono.core.trace import Rank, Record

__all__ = ["Meeting", "Tardy", "latest", "meetings", "tardy"]

_Key = TypeVar("_Key")

#: What must be the same on all ranks of a call. Counts may differ by rank in some.
_SHARED = ("verb", "dtype", "op", "root")


@dataclass(frozen=True)
class Meeting:
    """One call of a group: what each rank that came made of it, and who did not come."""

    group: int
    number: int
    calls: dict[int, Record]  # by rank, in the order of their coming
    missing: tuple[int, ...]  # ranks that had not come when the trace was written
    complete: bool  # False also if the records of some rank do not reach back so far

    @property
    def first(self) -> int:
        """When the first rank came."""
        return next(iter(self.calls.values())).began

    @property
    def last(self) -> int:
        """Who came last of those who came."""
        return next(reversed(self.calls))

    @property
    def arrived(self) -> int:
        """When the last one came."""
        return self.calls[self.last].began

    @property
    def late(self) -> int:
        """How much later than the median the last one came, in nanoseconds; of two, the first."""
        return self.arrived - statistics.median_low(call.began for call in self.calls.values())

    @property
    def disagree(self) -> bool:
        """Tell whether the ranks called different things."""
        if any(call.state == "mismatch" for call in self.calls.values()):
            return True
        kinds = {tuple(getattr(call, name) for name in _SHARED) for call in self.calls.values()}
        return len(kinds) > 1


@dataclass
class Tardy:
    """How often somebody, or some line, came last, and how late in all."""

    calls: int = 0
    late: int = 0
    worst: int = 0

    def add(self, late: int) -> None:
        """Count one more call."""
        self.calls += 1
        self.late += late
        self.worst = max(self.worst, late)


@dataclass
class _Group:
    members: set[int] = field(default_factory=set)
    calls: dict[int, dict[int, Record]] = field(default_factory=dict)  # by number, by rank


def meetings(ranks: Sequence[Rank]) -> list[Meeting]:
    """All calls that ranks make together, in the order of their beginning."""
    groups: dict[int, _Group] = {}
    for rank in ranks:
        for call in rank.calls:
            if call.call is None:
                continue  # a message
            group = groups.setdefault(call.group, _Group())
            group.members.add(rank.rank)
            group.calls.setdefault(call.call, {})[rank.rank] = call
    if 0 in groups:
        groups[0].members = {rank.rank for rank in ranks}  # the world, silent ranks included
    found = [
        _meeting(number, name, calls, group.members, ranks)
        for number, group in groups.items()
        for name, calls in group.calls.items()
    ]
    return sorted(found, key=lambda meeting: meeting.first)


def _meeting(
    group: int, number: int, calls: dict[int, Record], members: set[int], ranks: Sequence[Rank]
) -> Meeting:
    ordered = dict(sorted(calls.items(), key=lambda item: item[1].began))
    begin = next(iter(ordered.values())).began
    absent = sorted(members - set(calls))
    missing = tuple(rank for rank in absent if _reaches_back(ranks[rank], begin))
    return Meeting(group, number, ordered, missing, not absent)


def _reaches_back(rank: Rank, time: int) -> bool:
    """Whether all calls of a rank since then are in the trace, which keeps the last ones only."""
    return not rank.calls or rank.calls[0].sequence == 1 or rank.calls[0].began < time


def tardy(found: Sequence[Meeting]) -> tuple[dict[int, Tardy], dict[str, Tardy]]:
    """Sum up by rank and by line of its source, the worst first."""
    by_rank: dict[int, Tardy] = {}
    by_place: dict[str, Tardy] = {}
    for meeting in _counted(found):
        last = meeting.calls[meeting.last]
        by_rank.setdefault(meeting.last, Tardy()).add(meeting.late)
        by_place.setdefault(last.place or "a line that is not known", Tardy()).add(meeting.late)
    return _sorted(by_rank), _sorted(by_place)


def latest(found: Sequence[Meeting], count: int = 5) -> list[Meeting]:
    """The calls to which somebody came latest, the worst first."""
    late = sorted(_counted(found), key=lambda meeting: -meeting.late)
    return [meeting for meeting in late[:count] if meeting.late > 0]


def _counted(found: Sequence[Meeting]) -> Iterator[Meeting]:
    """The calls to which all ranks of a group of several came."""
    return (one for one in found if one.complete and len(one.calls) > 1)


def _sorted(table: dict[_Key, Tardy]) -> dict[_Key, Tardy]:
    return dict(sorted(table.items(), key=lambda item: -item[1].late))
