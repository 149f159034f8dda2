"""Run the ranks of several libraries at the same time, and measure the libraries in turn.

The ranks of each library are processes of their own. Each connects to a socket, gets requests by it
and answers them (`serve` in rank.py). Between two requests it sleeps in a read, so that one library
does not disturb another. The order rotates from round to round, so that what else the host does
affects all libraries alike.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from unisono.errors import LaunchError, Unsupported
from unisono.launch.supervisor import EndPolicy, Supervisor

__all__ = ["Library", "LibraryRanks", "calls_per_round", "in_turn", "start_libraries"]

_DEADLINE = 120.0
_TIME_TO_LEAVE = 10.0  # seconds between the end of a rank's requests and SIGTERM
_MOST_CALLS = 20000
_SHOWN_LINES = 8  # of what a library wrote before it failed
_READ_BYTES = 8192
# glibc gives large blocks back after each call unless told otherwise; peers that allocate scratch
# memory in every call would pay for fresh pages, which is not what is compared.
_KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}

_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Library:
    """How the ranks of one library start: the path of their socket is added to the command.

    The command is either that of each rank, or that of a launcher (`is_launcher`), which starts all
    ranks and binds them to cores itself.
    """

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    is_launcher: bool = False


class LibraryRanks:
    """The ranks of one library (an engine of unisono, or a peer), waiting for requests."""

    def __init__(self, library: Library, ranks: int) -> None:
        self.name = library.name
        self.version = ""
        self.has_failed = False
        self._ranks = ranks
        self._streams: dict[int, IO[str]] = {}
        with ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())
            self._folder = tempfile.TemporaryDirectory(prefix="unisono-")
            address = str(Path(stack.enter_context(self._folder)) / "socket")
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                self._listener.bind(address)
            except OSError as error:  # the path of a socket has at most 107 characters
                raise LaunchError(f"no socket at {address}: {error}; set TMPDIR") from error
            self._listener.listen(ranks)
            processes = 1 if library.is_launcher else ranks
            self._supervisor = stack.enter_context(
                Supervisor(
                    processes,
                    EndPolicy(_TIME_TO_LEAVE, kill_after=2.0),
                    bind="none" if library.is_launcher else "share",
                )
            )
            for _ in range(processes):
                self._supervisor.start(
                    [*library.command, address],
                    {**_KEEP_MEMORY, **library.variables},
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                )
            self._resources = stack.pop_all()

    def wait_ready(self) -> None:
        """Return when all ranks have joined their world."""
        deadline = time.monotonic() + _DEADLINE
        while len(self._streams) < self._ranks:
            if select.select([self._listener], [], [], 0.1)[0]:
                connection, _ = self._listener.accept()
                connection.settimeout(_DEADLINE)
                with connection:  # the stream keeps it open
                    stream = self._resources.enter_context(connection.makefile("rw"))
                hello = json.loads(stream.readline())
                self.version = hello["version"]
                self._streams[hello["rank"]] = stream
            self._supervisor.check()
            if self._supervisor.codes:
                raise self._failure("did not start")
            if time.monotonic() > deadline:
                raise self._failure(f"did not start in {_DEADLINE:g} s")
        self._folder.cleanup()  # now, because nobody would do it if we were killed

    def ask(self, request: Mapping[str, Any]) -> list[Any]:
        """Send a request to all ranks, and return their answers."""
        for stream in self._streams.values():
            with suppress(OSError):  # the answer, which does not come, is the error
                print(json.dumps(request), file=stream, flush=True)
        found = [self._answer(rank) for rank in range(self._ranks)]
        for rank, answer in enumerate(found):
            if "error" in answer:
                self.has_failed = True
                raise LaunchError(f"rank {rank} of {self.name} failed: {answer['error']}")
            if "refused" in answer:
                raise Unsupported(f"{self.name}: {answer['refused']}")
        return [answer["answer"] for answer in found]

    def slowest(self, request: Mapping[str, Any]) -> float:
        """Send a request to all ranks, and return the seconds that the slowest one measured."""
        return max(map(float, self.ask(request)))

    def close(self) -> None:
        """End the ranks, if that is not done; they leave by themselves when requests end."""
        for stream in self._streams.values():
            with suppress(OSError):
                stream.close()
        has_started = len(self._streams) == self._ranks  # otherwise nobody tells them to leave
        self._supervisor.stop(after=_TIME_TO_LEAVE if has_started else 0)
        self._supervisor.watch()
        self._resources.close()

    def _answer(self, rank: int) -> dict[str, Any]:
        try:
            line = self._streams[rank].readline()
        except TimeoutError:
            raise self._failure(f"gave no answer in {_DEADLINE:g} s", rank) from None
        except OSError:
            line = ""
        if not line:
            raise self._failure("ended", rank)
        found: dict[str, Any] = json.loads(line)
        return found

    def _failure(self, what: str, rank: int | None = None) -> LaunchError:
        self.has_failed = True
        who = self.name if rank is None else f"rank {rank} of {self.name}"
        # Not by seek and read: that would move the place at which the ranks write.
        size = os.fstat(self._log.fileno()).st_size
        written = os.pread(self._log.fileno(), _READ_BYTES, max(0, size - _READ_BYTES))
        lines = [line for line in written.decode(errors="replace").splitlines() if line]
        shown = "".join(f"\n    {line}" for line in lines[-_SHOWN_LINES:])
        return LaunchError(f"{who} {what}" + (f"; its last lines are:{shown}" if shown else ""))


@contextmanager
def start_libraries(
    libraries: Sequence[Library],
    ranks: int,
    leave_out: Callable[[str, LaunchError], object] | None = None,
) -> Iterator[list[LibraryRanks]]:
    """Start the ranks of each library, and end them at exit.

    If a library other than the first does not start, `leave_out` is told, if it is given.
    """
    with ExitStack() as stack:
        running: list[LibraryRanks] = []
        for library in libraries:
            running.append(LibraryRanks(library, ranks))
            stack.callback(running[-1].close)
        for own in list(running):
            try:
                own.wait_ready()
            except LaunchError as error:
                if leave_out is None or own.name == libraries[0].name:
                    raise
                running.remove(own)
                own.close()
                leave_out(own.name, error)
        yield running


def in_turn(entries: Sequence[_Entry], rounds: int) -> Iterator[_Entry]:
    """Yield every entry once in each round; each round begins with another one.

    >>> "".join(in_turn("abc", 3))
    'abcbcacab'
    """
    for turn in range(rounds):
        first = turn % len(entries)
        yield from [*entries[first:], *entries[:first]]


def calls_per_round(seconds: float, once: float) -> int:
    """Return how many calls of `once` seconds fill a round of `seconds`."""
    return max(1, min(_MOST_CALLS, int(seconds / max(once, 1e-7))))
