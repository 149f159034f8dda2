"""What a trace shows: failures, disagreements, who came late and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from unisono.core.trace import RankReport, Record
from unisono.tools import lateness
from unisono.tools.activity import Activity, activities
from unisono.tools.calls import current_call
from unisono.tools.lateness import CollectiveInstance
from unisono.tools.trace.file import Trace

__all__ = ["Findings", "examine"]


@dataclasses.dataclass(frozen=True)
class Findings:
    """A trace, and its collective calls with the records of all ranks side by side."""

    trace: Trace
    instances: Sequence[CollectiveInstance]

    @cached_property
    def activity(self) -> list[Activity]:
        """What each rank did, in rank order."""
        return activities(self.trace.ranks, self.instances, self.trace.clock)

    @property
    def disagreements(self) -> list[CollectiveInstance]:
        """The collectives in which ranks made different calls."""
        return [instance for instance in self.instances if instance.disagree]

    @property
    def failed(self) -> bool:
        """Tell whether a call failed, ranks disagreed, or a rank ended without leaving."""
        calls = (call for rank in self.trace.ranks for call in rank.calls)
        return (
            any(rank.state not in ("running", "left", "starting") for rank in self.trace.ranks)
            or any(call.state not in ("running", "done") for call in calls)
            or bool(self.disagreements)
        )

    def waits_for(self, rank: RankReport) -> tuple[int, ...]:
        """Return the ranks that have not arrived at the call in which this rank is."""
        call = current_call(rank.calls)
        for instance in self.instances:
            if call is not None and (instance.group, instance.number) == (call.group, call.call):
                return instance.missing
        return ()

    def as_data(self) -> dict[str, Any]:
        """Return the findings as plain data, with times in nanoseconds."""
        trace = self.trace
        by_rank, by_line = lateness.totals(self.instances)
        return {
            "job": trace.job,
            "script": trace.script,
            "written": trace.written,
            "by": trace.by,
            "reason": trace.reason,
            "failed": self.failed,
            "ranks": [self._rank_data(rank) for rank in trace.ranks],
            "late_by_rank": [
                {"rank": rank, **dataclasses.asdict(one)} for rank, one in by_rank.items()
            ],
            "late_by_line": [
                {"call_site": line, **dataclasses.asdict(one)} for line, one in by_line.items()
            ],
            "latest": [
                {
                    **_call_data(instance.calls[instance.last_rank]),
                    "last": instance.last_rank,
                    "late": instance.late,
                    "after_first": instance.last_arrival - instance.first_arrival,
                }
                for instance in lateness.latest(self.instances)
            ],
            "disagreements": [
                {
                    "group": instance.group,
                    "call": instance.number,
                    "ranks": {rank: _call_data(call) for rank, call in instance.calls.items()},
                }
                for instance in self.disagreements
            ],
        }

    def _rank_data(self, rank: RankReport) -> dict[str, Any]:
        call = current_call(rank.calls)
        return {
            "rank": rank.rank,
            "pid": rank.pid,
            "state": rank.state,
            "call": None if call is None else _call_data(call),
            "waits_for": list(self.waits_for(rank)),
            "activity": dataclasses.asdict(self.activity[rank.rank]),
        }


def _call_data(call: Record) -> dict[str, Any]:
    return dataclasses.asdict(call)


def examine(trace: Trace) -> Findings:
    """Put the calls of all ranks of a trace side by side."""
    return Findings(trace, lateness.instances(trace.ranks, trace.clock))
