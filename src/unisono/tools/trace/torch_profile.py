"""Put the calls of a trace beside the events of torch.profiler, in one file for the same viewers.

torch's profiler counts microseconds since `baseTimeNanoseconds` of the wall clock. A trace counts
nanoseconds of the monotonic clock, and says what both clocks showed when it was written.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from unisono.errors import ArgumentError
from unisono.tools.trace.bars import Bar, zero
from unisono.tools.trace.chrome import chrome
from unisono.tools.trace.file import Trace

__all__ = ["merge", "read_profile"]


def read_profile(path: Path) -> dict[str, Any]:
    """Read a file that `torch.profiler` has exported, also a compressed one."""
    try:
        content = path.read_bytes()
        profile = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except OSError as error:
        raise ArgumentError(f"cannot read the profile {path}: {error.strerror}") from None
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{path} is not a profile: {error}") from None
    if not isinstance(profile, dict) or not isinstance(profile.get("traceEvents"), list):
        raise ArgumentError(f"{path} is not a profile; write one with export_chrome_trace")
    if not isinstance(profile.get("baseTimeNanoseconds"), int):
        raise ArgumentError(f"{path} does not say when it began (baseTimeNanoseconds)")
    return profile


def merge(trace: Trace, bars: Sequence[Bar], profiles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first profile with the events of the others and the calls of the trace.

    Each rank is one process, as in torch: its profile, if there is one, and below it its calls.
    """
    base = profiles[0]["baseTimeNanoseconds"]
    pids = {rank.pid for rank in trace.ranks}
    theirs = [
        _later(event, (profile["baseTimeNanoseconds"] - base) / 1000)
        for profile in profiles
        for event in _events(profile, pids)
    ]
    if not pids & {event.get("pid") for event in theirs}:
        listed = ", ".join(map(str, sorted(pids)))
        raise ArgumentError(f"no profile is of a rank of this job, whose pids are {listed}")
    written = datetime.fromisoformat(trace.written)
    began = round(written.timestamp() * 1e9) - (trace.clock - zero(trace))
    pid_of = {rank.rank + 1: rank.pid for rank in trace.ranks}  # as `chrome` numbers processes
    ours = [
        {**_later(event, (began - base) / 1000), "pid": pid_of[event["pid"]]}
        for event in chrome(trace, bars)["traceEvents"]
    ]
    return {**profiles[0], "traceEvents": [*theirs, *ours]}


def _events(profile: dict[str, Any], pids: set[int]) -> list[dict[str, Any]]:
    """The events, without torch's names for processes that are ranks: those have better ones."""
    names = ("process_name", "process_sort_index")
    return [
        event
        for event in profile["traceEvents"]
        if not (event.get("name") in names and event.get("pid") in pids)
    ]


def _later(event: dict[str, Any], microseconds: float) -> dict[str, Any]:
    return {**event, "ts": event["ts"] + microseconds} if "ts" in event else event
