"""Prints the output of all ranks, a whole line at a time, with the rank in front."""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO

from unisono.errors import LaunchError

__all__ = ["LabelledOutput"]

#: A line of more bytes is printed in pieces, so that it need not fit into memory.
_LONGEST = 1 << 20
#: The most bytes that we read from a pipe whose rank has ended: Linux holds 64 KiB by default.
_PIPE = 1 << 20
#: Colours of the labels, without red, which looks like an error.
_COLOURS = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)
#: How many lines of each stream are kept for the report of a failure.
_KEPT = 20


class _Stream:
    """One pipe from one rank, and where its lines are written."""

    def __init__(
        self, rank: int, pipe: IO[bytes], target: IO[bytes], log: IO[bytes] | None
    ) -> None:
        colour = target.isatty() and not os.environ.get("NO_COLOR")
        start, end = (f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m", "\x1b[0m") if colour else ("", "")
        self.label = f"{start}[{rank}]{end} ".encode()
        self.pipe = pipe
        self.target: IO[bytes] | None = target
        self.log = log
        self.unfinished = b""
        self.tail: deque[bytes] = deque(maxlen=_KEPT)
        os.set_blocking(pipe.fileno(), False)

    def write(self, chunk: bytes) -> None:
        if self.log is not None:
            try:
                self.log.write(chunk)
                self.log.flush()
            except OSError as error:
                # A full disk must not stop the ranks, which would wait until we read on.
                lost, self.log = self.log, None
                print(f"unisono: {lost.name} is incomplete: {error}", file=sys.stderr, flush=True)
        *lines, self.unfinished = (self.unfinished + chunk).split(b"\n")
        if len(self.unfinished) > _LONGEST:
            lines.append(self.unfinished)
            self.unfinished = b""
        self._print(lines)

    def finish(self) -> None:
        """Print the last line if it has no newline."""
        if self.unfinished:
            self._print([self.unfinished])
            self.unfinished = b""

    def _print(self, lines: list[bytes]) -> None:
        self.tail.extend(lines)
        if self.target is None or not lines:
            return
        try:
            self.target.write(b"".join(self.label + line + b"\n" for line in lines))
            self.target.flush()
        except OSError:
            self.target = None

    @property
    def wanted(self) -> bool:
        """Whether the lines still go anywhere."""
        return self.target is not None or self.log is not None


class LabelledOutput:
    """A thread that reads the pipes of all ranks.

    One thread prints for all of them, so the lines of two ranks never mix.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._logs = contextlib.ExitStack()
        self._selector = selectors.DefaultSelector()
        self._streams: dict[tuple[int, str], _Stream] = {}
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
        for kind, pipe, target in (
            ("out", out, sys.stdout.buffer),
            ("err", err, sys.stderr.buffer),
        ):
            log = None
            if self._directory is not None:
                path = self._directory / f"rank-{rank}.{kind}"
                log = self._logs.enter_context(io.BufferedWriter(io.FileIO(path, "w")))
            stream = _Stream(rank, pipe, target, log)
            self._streams[rank, kind] = stream
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def tail(self, rank: int) -> list[str]:
        """Return the last lines that a rank wrote to stderr."""
        stream = self._streams.get((rank, "err"))
        return [] if stream is None else [line.decode(errors="replace") for line in stream.tail]

    def finish(self) -> None:
        """Print what the ranks, which have all ended, left in their pipes."""
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
            for key, _ in self._selector.select():
                if key.data is None:
                    ended = True
                else:
                    self._read_once(key.data)
        # Do not wait for the end of a pipe: a process that a rank left behind may hold it open. All
        # that the ranks wrote is in the pipes by now, and it is no more than a pipe can hold.
        for stream in self._streams.values():
            taken = 0
            while taken < _PIPE and (count := self._read_once(stream)) > 0:
                taken += count
            stream.finish()
        self._selector.close()

    def _read_once(self, stream: _Stream) -> int:
        try:
            chunk = os.read(stream.pipe.fileno(), 1 << 16) if not stream.pipe.closed else b""
        except BlockingIOError:
            return 0
        if chunk:
            stream.write(chunk)
        if not chunk or not stream.wanted:
            # If our own reader is gone, the rank gets a broken pipe, as it would without us.
            self._forget(stream)
        return len(chunk)

    def _forget(self, stream: _Stream) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream.pipe)
        stream.pipe.close()
