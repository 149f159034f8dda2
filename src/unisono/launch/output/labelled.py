"""Prints the output of all ranks, line by line, with the rank in front.

Lines of two ranks never mix. A line without an end, as a prompt, is shown after a moment.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

from unisono.errors import LaunchError
from unisono.launch.outcome import number_list
from unisono.launch.output.screen import LineWriter, writers
from unisono.launch.output.stream import Stream
from unisono.launch.output.tracebacks import TracebackFolder

__all__ = ["LabelledOutput"]

#: The most bytes that we read from a pipe whose rank has ended: Linux holds 64 KiB by default.
_PIPE = 1 << 20
#: Colours of the labels, without red, which looks like an error.
_COLOURS = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)
_NEVER = float("inf")


class _Pipe(Stream):
    """One pipe from one rank; its bytes also go to a file, if there is one."""

    def __init__(
        self, rank: int, pipe: IO[bytes], writer: LineWriter, log: IO[bytes] | None
    ) -> None:
        super().__init__(rank, writer)
        self.pipe = pipe
        self.log = log
        os.set_blocking(pipe.fileno(), False)

    def take(self, chunk: bytes, now: float) -> list[bytes]:
        """Add what the rank wrote, and return the lines that have an end."""
        if self.log is not None:
            try:
                self.log.write(chunk)
                self.log.flush()
            except OSError as error:
                # A full disk must not stop the ranks, which would wait until we read on.
                lost, self.log = self.log, None
                print(f"unisono: {lost.name} is incomplete: {error}", file=sys.stderr, flush=True)
        return super().take(chunk, now)

    @property
    def wanted(self) -> bool:
        """Whether the lines still go anywhere."""
        return not self.writer.is_closed or self.log is not None


class LabelledOutput:
    """A thread that reads the pipes of all ranks.

    One thread prints for all of them, so the lines of two ranks never mix.
    """

    def __init__(self, directory: Path | None = None, *, live: bool = True) -> None:
        self._directory = directory
        self._logs = contextlib.ExitStack()
        self._selector = selectors.DefaultSelector()
        self._streams: dict[tuple[int, str], _Pipe] = {}
        self._writers = dict(
            zip(("out", "err"), writers(sys.stdout.buffer, sys.stderr.buffer, live), strict=True)
        )
        self._folder = TracebackFolder()
        self._last_on_stderr: list[int] = []  # the ranks that wrote the last lines there
        self._culprit: int | None = None
        self._notices: deque[bytes] = deque()
        self._wake_reader, self._wake_writer = os.pipe()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read, name="unisono output", daemon=True)
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(
                    f"--log-dir {str(directory)!r} cannot be made: {error}; give another folder"
                ) from error

    def add(self, rank: int, out: IO[bytes], err: IO[bytes]) -> None:
        """Take over the two pipes of a rank, before `start`."""
        for kind, pipe in (("out", out), ("err", err)):
            log = None
            if self._directory is not None:
                path = self._directory / f"rank-{rank}.{kind}"
                try:
                    log = self._logs.enter_context(io.BufferedWriter(io.FileIO(path, "w")))
                except OSError as error:
                    raise LaunchError(
                        f"--log-dir: cannot write {str(path)!r}: {error.strerror}; "
                        "give another folder"
                    ) from error
            stream = _Pipe(rank, pipe, self._writers[kind], log)
            stream.label = _label([rank], kind)
            self._streams[rank, kind] = stream
            self._selector.register(pipe, selectors.EVENT_READ, (kind, stream))

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def tail(self, rank: int) -> list[str]:
        """Return the last lines that a rank wrote to stderr, if others' lines came after them."""
        stream = self._streams.get((rank, "err"))
        if stream is None or rank in self._last_on_stderr:
            return []
        return [line.decode(errors="replace") for line in stream.tail]

    def say(self, text: str) -> None:
        """Print a line of our own between those of the ranks."""
        self._notices.append(f"unisono: {text}".encode())
        os.write(self._wake_writer, b"n")

    def finish(self, culprit: int | None = None) -> None:
        """Print what the ranks, which have all ended, left in their pipes; the culprit's last."""
        self._culprit = culprit
        os.write(self._wake_writer, b"x")
        self._thread.join()
        os.close(self._wake_writer)
        os.close(self._wake_reader)
        for stream in self._streams.values():
            stream.pipe.close()
        self._logs.close()

    def _read(self) -> None:
        ended = False
        while not ended:
            due = min((one.show_at() for one in self._showing()), default=_NEVER)
            wait = min(due, self._folder.due_at()) - time.monotonic()
            for key, _ in self._selector.select(None if wait == _NEVER else max(0.0, wait)):
                if key.data is None:
                    ended = b"x" in os.read(self._wake_reader, 4096)
                else:
                    self._read_once(*key.data)
            now = time.monotonic()
            for stream in self._showing():
                if stream.show_at() <= now:
                    stream.show(now)
            self._print_notices()
            self._print_tracebacks(now)
        # Do not wait for the end of a pipe: a process that a rank left behind may hold it open. All
        # that the ranks wrote is in the pipes by now, and it is no more than a pipe can hold.
        for (_, kind), stream in self._streams.items():
            taken = 0
            while taken < _PIPE and (count := self._read_once(kind, stream)) > 0:
                taken += count
            self._print(kind, stream, stream.rest())
        self._print_notices()
        self._print_tracebacks(time.monotonic(), everything=True)
        self._selector.close()

    def _showing(self) -> list[_Pipe]:
        """The streams whose lines are not held back."""
        return [
            stream
            for (rank, kind), stream in self._streams.items()
            if kind == "out" or not self._folder.holds(rank)
        ]

    def _read_once(self, kind: str, stream: _Pipe) -> int:
        try:
            chunk = os.read(stream.pipe.fileno(), 1 << 16) if not stream.pipe.closed else b""
        except BlockingIOError:
            return 0
        now = time.monotonic()
        if chunk:
            self._print(kind, stream, stream.take(chunk, now))
        if not chunk or not stream.wanted:
            # If our own reader is gone, the rank gets a broken pipe, as it would without us.
            self._forget(stream)
            if kind == "err":
                self._folder.end(stream.rank, now)
        return len(chunk)

    def _print(self, kind: str, stream: _Pipe, lines: list[bytes]) -> None:
        if kind == "err" and lines:
            lines = self._folder.take(stream.rank, lines, time.monotonic())
            if lines:
                self._last_on_stderr = [stream.rank]
        stream.writer.lines(stream, stream.label, lines)

    def _print_tracebacks(self, now: float, everything: bool = False) -> None:
        for found in self._folder.due(now, self._culprit, everything):
            self._writers["err"].lines(None, _label(found.ranks, "err"), found.lines)
            self._last_on_stderr = found.ranks

    def _print_notices(self) -> None:
        while self._notices:
            self._writers["err"].lines(None, b"", [self._notices.popleft()])

    def _forget(self, stream: _Pipe) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream.pipe)
        stream.pipe.close()


def _label(ranks: list[int], kind: str) -> bytes:
    """What stands before a line: the ranks that wrote it; coloured if it is one, on a terminal."""
    text = f"[{number_list(ranks).replace(' ', '')}]"
    target = sys.stdout if kind == "out" else sys.stderr
    if len(ranks) == 1 and target.buffer.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\x1b[{_COLOURS[ranks[0] % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text} ".encode()
