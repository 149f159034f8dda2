"""Calls, times and ranks in few words, for `unisono trace` and `unisono top`."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.core.trace import Record

__all__ = ["current", "describe", "duration", "listed", "plain", "spot"]


def plain(text: str) -> str:
    r"""Take everything out of a text that a terminal could obey.

    >>> plain("train\x1b[2J.py")
    'train?[2J.py'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def spot(place: str | None) -> str:
    """Name a line of source so that it fits a table: of a long path, the file and its folder.

    >>> spot("train.py:88"), spot("/home/somebody/projects/language/models/train.py:88")
    ('train.py:88', '.../models/train.py:88')
    """
    text = plain(place or "")
    parts = text.split("/")
    return text if len(text) <= 32 or len(parts) < 3 else "/".join(["...", *parts[-2:]])


def duration(nanoseconds: float) -> str:
    """Say a time with the unit that suits it.

    >>> [duration(time) for time in (720, 41_300, 999_900, 9_870_000, 3.21e9, 754e9, 8e12)]
    ['720 ns', '41.3 µs', '1 ms', '9.87 ms', '3.21 s', '12:34 min', '2:13 h']
    """
    for limit, divisor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if nanoseconds < limit * 0.9995:  # what would be rounded to 1000 has the next unit
            return f"{nanoseconds / divisor:.3g} {unit}"
    seconds = nanoseconds / 1e9
    if seconds < 100:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def listed(ranks: Iterable[int]) -> str:
    """Name ranks, many of them as ranges.

    >>> listed([3, 0, 4, 5, 9, 10])
    '0, 3-5, 9, 10'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(str(rank) for rank in run)
        for run in runs
    ]
    return ", ".join(words)


def describe(call: Record) -> str:
    """Say what a rank calls, as errors do.

    >>> describe(Record(1, 0, 1, "reduce", "float32", 8, "sum", 2, None, None, 0))
    'reduce float32 x 8 sum root 2'
    """
    words = [call.verb]
    if call.dtype is not None:
        words.append(call.dtype)
    if call.count is not None:
        words.append(f"x {call.count}")
    if call.op is not None:
        words.append(call.op)
    if call.root is not None:
        words.append(f"root {call.root}")
    if call.peer is not None:
        words.append(f"{'to' if call.verb == 'send' else 'from'} {call.peer}")
    return plain(" ".join(words))


def current(calls: Iterable[Record]) -> Record | None:
    """What a rank is in, the oldest first, for later calls wait behind it; else its last call."""
    last = None
    for call in calls:
        if call.state == "running":
            return call
        last = call
    return last
