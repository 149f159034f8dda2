"""Write a trace in the format of chrome://tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from unisono.tools.formatting import rank_list
from unisono.tools.trace.bars import Bar
from unisono.tools.trace.file import Trace

__all__ = ["chrome"]


def chrome(trace: Trace, bars: Sequence[Bar]) -> dict[str, Any]:
    """Return the file's content: a process for each rank, a thread for each of its lanes."""
    return {
        "traceEvents": [*_names(trace, bars), *(event for bar in bars for event in _events(bar))],
        "displayTimeUnit": "ms",
        "otherData": {
            "job": trace.job,
            "script": trace.script,
            "written": trace.written,
            "reason": trace.reason,
        },
    }


def _process(rank: int) -> int:
    return rank + 1  # viewers keep 0 for the kernel's idle process


def _thread(bar: Bar) -> int:
    # The viewers expect thread numbers that are unique across processes.
    return _process(bar.rank) << 16 | bar.lane


def _names(trace: Trace, bars: Sequence[Bar]) -> Iterator[dict[str, Any]]:
    for rank in trace.ranks:
        process = {"ph": "M", "pid": _process(rank.rank), "tid": 0}
        name = f"rank {rank.rank} (pid {rank.pid}, {rank.state})"
        yield {**process, "name": "process_name", "args": {"name": name}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": rank.rank}}
    for (pid, tid), lane in {(_process(bar.rank), _thread(bar)): bar.lane for bar in bars}.items():
        thread = {"ph": "M", "pid": pid, "tid": tid}
        name = "calls" if lane == 0 else f"concurrent calls ({lane})"
        yield {**thread, "name": "thread_name", "args": {"name": name}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _events(bar: Bar) -> Iterator[dict[str, Any]]:
    begin = bar.begin / 1000  # the format counts microseconds
    common = {"pid": _process(bar.rank), "tid": _thread(bar), "ts": begin}
    event = {
        **common,
        "ph": "X",
        "name": bar.call.verb,
        "cat": "message" if bar.call.call is None else "collective",
        "dur": bar.length / 1000,
        "args": {**asdict(bar.call), "came_last": bar.last, "missing": list(bar.missing)},
    }
    yield {**event, "cname": "terrible"} if bar.failed else event
    if bar.wait > 0:
        awaited = bar.missing or (() if bar.last is None else (bar.last,))
        yield {
            **common,
            "ph": "X",
            "name": f"waits for rank {rank_list(awaited)}" if awaited else "waits for a message",
            "cat": "wait",
            "dur": bar.wait / 1000,
            "args": {},
        }
    if bar.failed:
        end = {**common, "ts": begin + bar.length / 1000}
        yield {**end, "ph": "i", "name": bar.call.state, "s": "t", "cat": "failure"}
