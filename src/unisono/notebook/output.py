"""Prints what ranks write: whole lines, with the rank in front, while they run.

All of it is printed by the thread that waits for the ranks, because a notebook shows what a thread
prints below the cell that runs, or below the one that has started the thread.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from unisono.launch.output.screen import LineWriter
from unisono.launch.output.stream import Stream
from unisono.notebook.tasks import Event, OutputPiece

__all__ = ["Printer", "RankOutput", "labelled_threads"]

#: So many pieces of output wait to be printed; then ranks that are threads wait.
_MOST_WAITING = 10_000


class Printer:
    """Prints the output of n ranks during one call."""

    def __init__(self, n: int) -> None:
        out, err = (
            LineWriter(io.BufferedWriter(_Text(_target(name)))) for name in ("stdout", "stderr")
        )
        self._err = err
        self._streams: dict[tuple[int, str], Stream] = {}
        for rank in range(n):
            for kind, writer in (("out", out), ("err", err)):
                stream = self._streams[rank, kind] = Stream(rank, writer)
                stream.label = f"[{rank}] ".encode()

    def take(self, output: OutputPiece) -> None:
        """Print the lines that have an end."""
        stream = self._streams[output.rank, output.kind]
        lines = stream.take(output.data, time.monotonic())
        stream.writer.lines(stream, stream.label, lines)

    def show(self) -> None:
        """Print lines that have had no end for a moment: prompts, progress bars."""
        now = time.monotonic()
        for stream in self._streams.values():
            if stream.show_at() <= now:
                stream.show(now)

    def say(self, text: str) -> None:
        """Print a line of our own."""
        self._err.lines(None, b"", [f"unisono: {text}".encode()])

    def finish(self) -> None:
        """Print what is left."""
        for stream in self._streams.values():
            stream.writer.lines(stream, stream.label, stream.rest())


class _Text(io.RawIOBase):
    """Lets bytes be written to a stream of text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = self._decoder.decode(bytes(data))
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()
        return len(data)


# ---- ranks that are threads ----------------------------------------------------------------------

_rank = threading.local()  # `output` is where the current thread writes, if it is a rank
_installing = threading.Lock()
_installed = 0  # how many calls need the routers now


class RankOutput:
    """Where a thread that is a rank writes; make one in that thread."""

    def __init__(self, rank: int, events: queue.SimpleQueue[Event]) -> None:
        self._rank = rank
        self._events = events
        _rank.output = self

    def write(self, kind: str, text: str) -> None:
        """Hand a text to the thread that prints."""
        while self._events.qsize() > _MOST_WAITING:
            time.sleep(0.01)
        self._events.put(OutputPiece(self._rank, kind, text.encode(errors="backslashreplace")))


class _Router:
    """Stands for a standard stream: ranks write to their own output, all others as before."""

    def __init__(self, kind: str, original: TextIO) -> None:
        self.original = original
        self._kind = kind

    def write(self, text: str) -> int:
        output: RankOutput | None = getattr(_rank, "output", None)
        if output is None:
            return self.original.write(text)
        output.write(self._kind, text)
        return len(text)

    def flush(self) -> None:
        if getattr(_rank, "output", None) is None:
            self.original.flush()

    def isatty(self) -> bool:
        return getattr(_rank, "output", None) is None and self.original.isatty()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)  # encoding, fileno, and what notebooks add


@contextlib.contextmanager
def labelled_threads() -> Iterator[None]:
    """Let ranks that are threads write to their own output inside the block."""
    global _installed
    with _installing:
        _installed += 1
        for name, kind in (("stdout", "out"), ("stderr", "err")):
            if not isinstance(getattr(sys, name), _Router):
                setattr(sys, name, _Router(kind, getattr(sys, name)))
    try:
        yield
    finally:
        with _installing:
            _installed -= 1
            for name in ("stdout", "stderr"):
                router = getattr(sys, name)
                # Somebody may have put another stream into its place meanwhile.
                if _installed == 0 and isinstance(router, _Router):
                    setattr(sys, name, router.original)


def _target(name: str) -> TextIO:
    stream = getattr(sys, name)
    target: TextIO = stream.original if isinstance(stream, _Router) else stream
    return target
