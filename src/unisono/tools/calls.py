"""Recorded calls as short text, for `unisono trace` and `unisono top`."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.core.trace import Record
from unisono.tools.formatting import NANOSECOND, duration, plain

__all__ = ["age_text", "call_site", "call_text", "current_call", "seconds_since"]

#: A longer call site is shortened to the file and its folder.
_LONGEST_CALL_SITE = 32


def call_text(call: Record) -> str:
    """Describe a call, in the words that errors use.

    >>> call_text(Record(1, 0, 1, "reduce", "float32", 8, "sum", 2, None, None, 0))
    'reduce float32 x 8 sum root 2'
    """
    parts = [call.verb]
    if call.dtype is not None:
        parts.append(call.dtype)
    if call.count is not None:
        parts.append(f"x {call.count}")
    if call.op is not None:
        parts.append(call.op)
    if call.root is not None:
        parts.append(f"root {call.root}")
    if call.peer is not None:
        parts.append(f"{'to' if call.verb == 'send' else 'from'} {call.peer}")
    return plain(" ".join(parts))


def call_site(path_and_line: str | None) -> str:
    """Shorten the source line of a call so that it fits a table.

    >>> call_site("train.py:88"), call_site("/data/projects/natural/language/models/train.py:88")
    ('train.py:88', '.../models/train.py:88')
    """
    text = plain(path_and_line or "")
    parts = text.split("/")
    if len(text) <= _LONGEST_CALL_SITE or len(parts) < 3:
        return text
    return "/".join(["...", *parts[-2:]])


def current_call(calls: Iterable[Record]) -> Record | None:
    """Return the oldest call that still runs, because later ones wait behind it; else the last."""
    last = None
    for call in calls:
        if call.state == "running":
            return call
        last = call
    return last


def seconds_since(call: Record, clock: int) -> float:
    """Return the time since a call began, or since it ended if it has."""
    return max(clock - (call.began if call.ended is None else call.ended), 0) * NANOSECOND


def age_text(call: Record, seconds: float) -> str:
    """Write for how long a call has run, or how long ago it ended; see `seconds_since`.

    >>> call = Record(1, 0, 1, "barrier", None, None, None, None, None, None, 0)
    >>> age_text(call, 1.41)
    'for 1.41 s'
    >>> call.ended, call.state = 2_000_000_000, "timeout"
    >>> age_text(call, 0.5)
    'timeout after 2 s, 500 ms ago'
    """
    if call.ended is None:
        return f"for {duration(seconds)}"
    if call.state == "done":
        return f"ended {duration(seconds)} ago"
    length = duration((call.ended - call.began) * NANOSECOND)
    return f"{plain(call.state)} after {length}, {duration(seconds)} ago"
