"""What one rank writes to one of its streams, cut into lines.

A line that has no end yet, as a prompt or a progress bar has none, is shown after a moment.
"""

from __future__ import annotations

from collections import deque

from unisono.launch.output.screen import LineWriter

__all__ = ["Stream"]

#: A line of more bytes is printed in pieces, so that it need not fit into memory.
_LONGEST = 1 << 20
#: How many lines of each stream are kept for the report of a failure.
_KEPT = 20
#: Seconds after which a line without an end is shown.
_PATIENCE = 0.08
#: Seconds between two versions of a line, where both stay: in a file.
_REWRITE = 2.0
_NEVER = float("inf")


class Stream:
    """One stream of one rank, and where its lines are written."""

    def __init__(self, rank: int, writer: LineWriter) -> None:
        self.rank = rank
        self.label = b""
        self.shown = b""
        self.writer = writer
        self.unfinished = b""
        self.tail: deque[bytes] = deque(maxlen=_KEPT)
        self._unseen_since: float | None = None  # when something came that is not shown yet
        self._shown_at = 0.0

    def take(self, chunk: bytes, now: float) -> list[bytes]:
        """Add what the rank wrote, and return the lines that have an end."""
        *lines, self.unfinished = (self.unfinished + chunk).split(b"\n")
        if len(self.unfinished) > _LONGEST:
            lines.append(self.unfinished)
            self.unfinished = b""
        lines = [_visible(line) for line in lines]
        if b"\r" in self.unfinished:
            # What a carriage return has overwritten is gone; its end may overwrite the next.
            end = b"\r" if self.unfinished.endswith(b"\r") else b""
            self.unfinished = b"\r" + _visible(self.unfinished) + end
        if lines or self._unseen_since is None:
            self._unseen_since = now if self.unfinished else None
        self.tail.extend(lines)
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no end."""
        lines = [_visible(self.unfinished)] if self.unfinished else []
        self.unfinished, self._unseen_since = b"", None
        self.tail.extend(lines)
        return lines

    def show_at(self) -> float:
        """When the line that has no end is to be shown."""
        if self._unseen_since is None:
            return _NEVER
        at = self._unseen_since + _PATIENCE
        # Another rank may have ended the line, and then all of it is written again.
        is_again = bool(self.shown) and not self.writer.continues(self)
        if (is_again or self.unfinished.startswith(b"\r")) and not self.writer.is_live:
            at = max(at, self._shown_at + _REWRITE)
        return at

    def show(self, now: float) -> None:
        """Show the line that has no end."""
        text = _visible(self.unfinished)
        if text != self.shown:
            self.writer.show(self, text)
        self._unseen_since, self._shown_at = None, now


def _visible(line: bytes) -> bytes:
    """What a terminal shows of a line in which carriage returns go back to its beginning.

    >>> _visible(b"\\r 10%\\r 20%\\r")
    b' 20%'
    """
    return line.rstrip(b"\r").rpartition(b"\r")[2]
