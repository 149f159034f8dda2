"""Where lines of ranks are written: to a file or pipe, or to a terminal with live lines.

Both show a line that has no end yet, as a prompt or a progress bar has none. A file or pipe has one
such line at a time: when another rank writes, the line is left as it is. A terminal has one for
each rank, below all finished lines, and they are drawn anew when something changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Protocol

__all__ = ["LineOwner", "LineWriter", "Screen", "writers"]

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_UP = "\x1b[{}A"
_ERASE_BELOW = "\r\x1b[J"


class LineOwner(Protocol):
    """A stream of a rank; `shown` is what is on view of its line that has no end."""

    rank: int
    label: bytes
    shown: bytes


class LineWriter:
    """Writes to a file or pipe, or to a terminal without moving in it."""

    #: Whether a line can be rewritten often, or would fill a file with its versions.
    is_live = False

    def __init__(self, target: IO[bytes]) -> None:
        self._target: IO[bytes] | None = target
        self._open: LineOwner | None = None  # whose line has no end yet

    @property
    def is_closed(self) -> bool:
        """Whether the reader has gone."""
        return self._target is None

    def lines(self, owner: LineOwner | None, label: bytes, lines: Sequence[bytes]) -> None:
        """Write finished lines; the first one may continue what is shown of the owner's line."""
        if not lines:
            return
        pieces = [label + line + b"\n" for line in lines]
        if self._open is not None and self._open is owner:
            pieces[0] = self._continued(owner, lines[0]) + b"\n"
        else:
            if owner is not None and owner.shown and lines[0] == owner.shown:
                pieces[0] = b""  # it is there already: another rank has ended the line
            if self._open is not None:
                pieces.insert(0, b"\n")
        self._open = None
        if owner is not None:
            owner.shown = b""
        self._write(b"".join(pieces))

    def show(self, owner: LineOwner, text: bytes) -> None:
        """Show a line that has no end yet."""
        if self._open is owner:
            self._write(self._continued(owner, text))
        else:
            self._write((b"\n" if self._open is not None else b"") + owner.label + text)
        self._open, owner.shown = owner, text

    def continues(self, owner: LineOwner) -> bool:
        """Whether more of the owner's line can be written where it ends now."""
        return self._open is owner

    @staticmethod
    def _continued(owner: LineOwner, text: bytes) -> bytes:
        if text.startswith(owner.shown):
            return text[len(owner.shown) :]
        return b"\r" + owner.label + text + b" " * (len(owner.shown) - len(text))

    def _write(self, data: bytes) -> None:
        if self._target is None or not data:
            return
        try:
            self._target.write(data)
            self._target.flush()
        except OSError as error:
            self._target = None
            # A reader that has gone has seen enough; a full disk is news.
            if not isinstance(error, BrokenPipeError):
                with contextlib.suppress(OSError):
                    print(
                        f"unisono: cannot write the output of the ranks: {error.strerror}",
                        file=sys.stderr,
                        flush=True,
                    )


class Screen(LineWriter):
    """A terminal: finished lines move up, and below them is one live line for each rank."""

    is_live = True

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__(target)
        self._live: list[LineOwner] = []
        self._drawn = 0  # lines of the terminal that live lines have now

    def lines(self, owner: LineOwner | None, label: bytes, lines: Sequence[bytes]) -> None:
        """Write finished lines above the live ones."""
        if not lines:
            return
        if self._is_alone(owner) and owner is not None and lines[0].startswith(owner.shown):
            # The cursor may have moved: what the user types after a prompt is not ours.
            data = lines[0][len(owner.shown) :] + b"\n"
            data += b"".join(label + line + b"\n" for line in lines[1:])
            self._live, self._drawn, owner.shown = [], 0, b""
            self._write(data)
            return
        if owner in self._live:
            self._live.remove(owner)
            owner.shown = b""
        data = self._erased() + b"".join(label + line + b"\n" for line in lines)
        self._write(data + self._drawing())

    def show(self, owner: LineOwner, text: bytes) -> None:
        """Show or change the live line of a rank."""
        before, owner.shown = owner.shown, text
        fits = len(owner.label) + len(text) < self._size()[0]
        if self._is_alone(owner) and text.startswith(before) and fits:
            self._write(text[len(before) :])
            return
        if owner not in self._live:
            self._live.append(owner)
            self._live.sort(key=lambda one: -one.rank)  # rank 0, which can read, has the cursor
        self._write(self._erased() + self._drawing())

    def _is_alone(self, owner: LineOwner | None) -> bool:
        return self._live == [owner] and self._drawn == 1

    def _erased(self) -> bytes:
        up = _UP.format(self._drawn - 1) if self._drawn > 1 else ""
        erased = up + _ERASE_BELOW if self._drawn else ""
        self._drawn = 0
        return erased.encode()

    def _drawing(self) -> bytes:
        columns, rows = self._size()
        shown = self._live[-max(1, rows - 1) :]
        self._drawn = len(shown)
        return b"\n".join(_cut(one.label + one.shown, columns - 1) for one in shown)

    def _size(self) -> tuple[int, int]:
        try:
            assert self._target is not None
            columns, rows = os.get_terminal_size(self._target.fileno())
        except (AssertionError, OSError):
            columns, rows = 80, 24
        return columns or 80, rows or 24


def writers(out: IO[bytes], err: IO[bytes], live: bool) -> tuple[LineWriter, LineWriter]:
    """What writes to standard output and error: one and the same where both are one terminal."""
    if out.isatty() and err.isatty():
        both = Screen(err) if live else LineWriter(err)
        return both, both
    kinds = [Screen if live and one.isatty() else LineWriter for one in (out, err)]
    return kinds[0](out), kinds[1](err)


def _cut(text: bytes, columns: int) -> bytes:
    """The beginning of a line that fits; a longer one would take two lines of the terminal."""
    plain = text.decode(errors="replace")
    if len(_ESCAPES.sub("", plain)) <= columns:
        return text
    kept, width = "", 0
    for piece in re.split(f"({_ESCAPES.pattern})", plain):
        if _ESCAPES.fullmatch(piece):
            kept += piece
        else:
            kept += piece[: columns - width]
            width += min(len(piece), columns - width)
    return kept.encode()
