"""Lay out the calls of a trace as bars on a time axis, for the page and the Chrome trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.core.trace import RankReport, Record
from unisono.tools.lateness import CollectiveInstance, waiting_time
from unisono.tools.trace.file import Trace

__all__ = ["Bar", "bars", "zero"]


@dataclass(frozen=True)
class Bar:
    """One call of one rank; times are nanoseconds since the first call of the trace.

    A rank may have several calls running at the same time, so it has lanes. `wait` is the part of
    `length` before all ranks had arrived, or the message; `last` is the rank that came last;
    `missing` are those that never came.
    """

    rank: int
    lane: int
    call: Record
    begin: int
    length: int
    wait: int
    last: int | None
    missing: tuple[int, ...]

    @property
    def failed(self) -> bool:
        """Tell whether the call ended in an error."""
        return self.call.state not in ("running", "done")

    @property
    def came_last(self) -> bool:
        """Tell whether the others waited for this rank."""
        return self.last == self.rank


def zero(trace: Trace) -> int:
    """Return when the first call of a trace began."""
    begins = [call.began for rank in trace.ranks for call in rank.calls]
    return min(begins, default=trace.clock)


def bars(trace: Trace, instances: Sequence[CollectiveInstance]) -> list[Bar]:
    """Lay out the calls of all ranks; those of one rank are in the order in which they began."""
    start = zero(trace)
    known = {(instance.group, instance.number): instance for instance in instances}
    found: list[Bar] = []
    for rank in trace.ranks:
        free: list[int] = []  # by lane: when it is free again
        for call in sorted(rank.calls, key=lambda call: call.began):
            end = _end(call, trace.clock)
            lane = next((n for n, time in enumerate(free) if time <= call.began), len(free))
            free[lane : lane + 1] = [end]
            instance = known.get((call.group, call.call)) if call.call is not None else None
            found.append(_bar(rank, lane, call, end, start, instance))
    return found


def _bar(
    rank: RankReport,
    lane: int,
    call: Record,
    end: int,
    start: int,
    instance: CollectiveInstance | None,
) -> Bar:
    last = None
    missing: tuple[int, ...] = ()
    if instance is not None and len(instance.calls) + len(instance.missing) > 1:
        missing = instance.missing
        last = None if missing else instance.last_rank
    wait = waiting_time(call, end, instance)
    return Bar(rank.rank, lane, call, call.began - start, end - call.began, wait, last, missing)


def _end(call: Record, clock: int) -> int:
    # A call may have begun after the writer read its clock.
    return call.ended if call.ended is not None else max(clock, call.began)
