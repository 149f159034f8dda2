"""Find who came late, from the calls of all ranks side by side.

A collective call has the same number on all ranks of its group. The rank that begins it last makes
the others wait. Its lateness is counted from the median rank, because half of the ranks had arrived
by then.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unisono.core.trace import RankReport, Record

__all__ = [
    "CollectiveInstance",
    "Lateness",
    "compared",
    "instances",
    "latest",
    "totals",
    "waiting_time",
]

_Key = TypeVar("_Key")

#: What must be the same on all ranks of a call. Counts may differ between ranks in some calls.
_SHARED = ("verb", "dtype", "op", "root")


@dataclass(frozen=True)
class CollectiveInstance:
    """One collective call of a group: the record of each rank that made it, and who did not."""

    group: int
    number: int
    calls: dict[int, Record]  # by rank, in the order of arrival
    missing: tuple[int, ...]  # ranks that had not arrived when the trace was written
    complete: bool  # False also if the records of some rank do not reach back that far

    @property
    def first_arrival(self) -> int:
        """When the first rank arrived."""
        return next(iter(self.calls.values())).began

    @property
    def last_rank(self) -> int:
        """The rank that arrived last, of those that arrived."""
        return next(reversed(self.calls))

    @property
    def last_arrival(self) -> int:
        """When that rank arrived."""
        return self.calls[self.last_rank].began

    @property
    def late(self) -> int:
        """Nanoseconds from the median arrival to the last one; of two ranks, from the first."""
        arrivals = (call.began for call in self.calls.values())
        return self.last_arrival - statistics.median_low(arrivals)

    @property
    def disagree(self) -> bool:
        """Tell whether the ranks made different calls."""
        if any(call.state == "mismatch" for call in self.calls.values()):
            return True
        kinds = {tuple(getattr(call, name) for name in _SHARED) for call in self.calls.values()}
        return len(kinds) > 1


@dataclass
class Lateness:
    """How often one rank, or one source line, came last, and how late: nanoseconds in all."""

    calls: int = 0
    late: int = 0
    worst: int = 0

    def add(self, late: int) -> None:
        """Count one more call."""
        self.calls += 1
        self.late += late
        self.worst = max(self.worst, late)


def instances(ranks: Sequence[RankReport], clock: int) -> list[CollectiveInstance]:
    """Collect the collective calls that had begun at `clock`, in the order in which they began.

    Ranks are read one after the other, so only some of them have records of later calls.
    """
    members: dict[int, set[int]] = defaultdict(set)  # by group
    calls: dict[tuple[int, int], dict[int, Record]] = defaultdict(dict)  # by group and number
    awaited: dict[tuple[int, int], set[int]] = defaultdict(set)
    for rank in ranks:
        waits = bool(rank.missing)
        for call in rank.calls:
            if call.call is None:
                continue  # a point-to-point message
            members[call.group].add(rank.rank)
            calls[call.group, call.call][rank.rank] = call
            if waits and call.ended is None:
                awaited[call.group, call.call].update(rank.missing or ())
                waits = False  # later calls wait for the oldest one
    if 0 in members:
        members[0] = {rank.rank for rank in ranks}  # the world: ranks without calls too
    found = []
    for (group, number), records in calls.items():
        ordered = dict(sorted(records.items(), key=lambda item: item[1].began))
        begin = next(iter(ordered.values())).began
        if begin > clock:
            continue
        absent = sorted(members[group] - set(records))
        named = awaited.get((group, number), ())
        missing = [rank for rank in absent if rank in named or _reaches_back(ranks[rank], begin)]
        found.append(CollectiveInstance(group, number, ordered, tuple(missing), not absent))
    return sorted(found, key=lambda instance: instance.first_arrival)


def _reaches_back(rank: RankReport, time: int) -> bool:
    """Tell whether the trace, which keeps only the last calls, has all calls since `time`."""
    return not rank.calls or rank.calls[0].sequence == 1 or rank.calls[0].began < time


def waiting_time(call: Record, end: int, instance: CollectiveInstance | None) -> int:
    """Return for how many nanoseconds a call waited for others; a receive does nothing else."""
    length = end - call.began
    if call.verb == "recv":
        return length
    if instance is None or len(instance.calls) + len(instance.missing) < 2:
        return 0
    return length if instance.missing else min(instance.last_arrival - call.began, length)


def totals(
    found: Sequence[CollectiveInstance],
) -> tuple[dict[int, Lateness], dict[str, Lateness]]:
    """Add the lateness up by rank and by source line, the worst first."""
    by_rank: dict[int, Lateness] = {}
    by_line: dict[str, Lateness] = {}
    for instance in compared(found):
        line = instance.calls[instance.last_rank].call_site or "an unknown line"
        by_rank.setdefault(instance.last_rank, Lateness()).add(instance.late)
        by_line.setdefault(line, Lateness()).add(instance.late)
    return _worst_first(by_rank), _worst_first(by_line)


def latest(found: Sequence[CollectiveInstance], count: int = 5) -> list[CollectiveInstance]:
    """Return the calls to which a rank came latest, the worst first."""
    late = sorted(compared(found), key=lambda instance: -instance.late)
    return [instance for instance in late[:count] if instance.late > 0]


def compared(found: Sequence[CollectiveInstance]) -> Iterator[CollectiveInstance]:
    """Yield the calls that all ranks of a group of several made."""
    return (one for one in found if one.complete and len(one.calls) > 1)


def _worst_first(entries: dict[_Key, Lateness]) -> dict[_Key, Lateness]:
    return dict(sorted(entries.items(), key=lambda item: -item[1].late))
