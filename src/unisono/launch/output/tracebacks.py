"""Folds tracebacks: ranks that fail alike are shown once, with the names of all of them.

A traceback on a rank's stderr is held back until the rank has ended or has been silent for a
moment, and then a little longer, so that those of other ranks can come. Equal means: equal but for
the rank's own number, times and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["FoldedTraceback", "TracebackFolder"]

_START = re.compile(rb"(\[rank\d+\]: )?Traceback \(most recent call last\):\s*$")
#: What torch puts in front of each line; our own label says the same.
_TORCH_LABEL = re.compile(rb"^\[rank\d+\]: ?")
_OWN_RANK = re.compile(rb"( on group '[^']*'), rank \d+ of (\d+)$")
_VARYING = re.compile(rb"\d+\.\d+ s\b|\b0x[0-9a-f]+\b")

#: Seconds of silence after which a traceback of a rank that is still running is complete.
_SILENCE = 0.5
#: Seconds that a complete one waits for those of other ranks.
_COMPANY = 0.5
#: Lines of a rank that are held back at most.
_MOST = 2000


@dataclass
class _Held:
    lines: list[bytes]
    last: float  # when a line came
    complete: float | None = None  # since when no more is expected


@dataclass(frozen=True)
class FoldedTraceback:
    """The lines of one traceback, and the ranks that wrote it."""

    lines: Sequence[bytes]
    ranks: list[int] = field(default_factory=list)


class TracebackFolder:
    """Takes the lines of all ranks' stderr and keeps tracebacks until they are due."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def take(self, rank: int, lines: Sequence[bytes], now: float) -> list[bytes]:
        """Return the lines that can be printed now; keep those from the start of a traceback on."""
        held = self._held.get(rank)
        if held is None:
            start = next((i for i, line in enumerate(lines) if _START.match(line)), len(lines))
            if start < len(lines):
                self._held[rank] = _Held(list(lines[start:]), now)
            return list(lines[:start])
        held.lines += lines
        held.last, held.complete = now, None
        if len(held.lines) > _MOST:
            del self._held[rank]
            return held.lines
        return []

    def holds(self, rank: int) -> bool:
        """Whether the lines of this rank are held back."""
        return rank in self._held

    def end(self, rank: int, now: float) -> None:
        """Note that a rank writes no more."""
        held = self._held.get(rank)
        if held is not None and held.complete is None:
            held.complete = now

    def due_at(self) -> float:
        """When to ask again what is due."""
        return min(
            (
                held.last + _SILENCE if held.complete is None else held.complete + _COMPANY
                for held in self._held.values()
            ),
            default=float("inf"),
        )

    def due(
        self, now: float, last: int | None = None, everything: bool = False
    ) -> list[FoldedTraceback]:
        """Return the tracebacks to print now, folded; that of the rank `last` comes last."""
        for held in self._held.values():
            if held.complete is None and now >= held.last + _SILENCE:
                held.complete = now
        complete = {
            rank: held
            for rank, held in self._held.items()
            if everything or held.complete is not None
        }
        if not everything and all(
            held.complete is None or now < held.complete + _COMPANY for held in complete.values()
        ):
            return []
        groups: dict[tuple[bytes, ...], FoldedTraceback] = {}
        for rank in sorted(complete):
            lines = self._held.pop(rank).lines
            key = tuple(_VARYING.sub(b"#", _common(line)) for line in lines)
            groups.setdefault(key, FoldedTraceback(lines)).ranks.append(rank)
        found = [
            one
            if len(one.ranks) == 1
            else FoldedTraceback(list(map(_common, one.lines)), one.ranks)
            for one in groups.values()
        ]
        return sorted(found, key=lambda one: (last in one.ranks, one.ranks))


def _common(line: bytes) -> bytes:
    """A line without what names the rank that wrote it.

    >>> _common(b"[rank1]: in barrier (call 2) on group 'world', rank 1 of 4")
    b"in barrier (call 2) on group 'world' of 4 ranks"
    """
    return _OWN_RANK.sub(rb"\1 of \2 ranks", _TORCH_LABEL.sub(b"", line))
