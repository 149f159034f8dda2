"""The calls of a trace as bars on a time axis, for every picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.core.trace import Rank, Record
from unisono.tools.trace.file import Trace
from unisono.tools.trace.lateness import Meeting

__all__ = ["Bar", "bars", "zero"]


@dataclass(frozen=True)
class Bar:
    """One call of one rank; times are nanoseconds since the first call of the trace.

    A rank may have several calls under way, so it has lanes. `wait` is the part of `length` in
    which somebody had not come yet; `last` is who came last, and `missing` who never came.
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
    """When the first call of a trace began."""
    begins = [call.began for rank in trace.ranks for call in rank.calls]
    return min(begins, default=trace.clock)


def bars(trace: Trace, meetings: Sequence[Meeting]) -> list[Bar]:
    """Lay out the calls of all ranks, each rank's in the order of their beginning."""
    start = zero(trace)
    known = {(meeting.group, meeting.number): meeting for meeting in meetings}
    found: list[Bar] = []
    for rank in trace.ranks:
        free: list[int] = []  # by lane: when it is free again
        for call in sorted(rank.calls, key=lambda call: call.began):
            end = _end(call, trace.clock)
            lane = next((n for n, time in enumerate(free) if time <= call.began), len(free))
            free[lane : lane + 1] = [end]
            meeting = known.get((call.group, call.call)) if call.call is not None else None
            found.append(_bar(rank, lane, call, end, start, meeting))
    return found


def _bar(rank: Rank, lane: int, call: Record, end: int, start: int, meeting: Meeting | None) -> Bar:
    length = end - call.began
    wait, last = 0, None
    missing: tuple[int, ...] = ()
    if meeting is not None and len(meeting.calls) + len(meeting.missing) > 1:
        missing = meeting.missing
        last = None if missing else meeting.last
        wait = length if missing else min(meeting.arrived - call.began, length)
    return Bar(rank.rank, lane, call, call.began - start, length, wait, last, missing)


def _end(call: Record, clock: int) -> int:
    # A call may have begun after the writer looked at its clock.
    return call.ended if call.ended is not None else max(clock, call.began)
