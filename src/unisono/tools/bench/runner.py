"""Run the ranks of several libraries at the same time, and measure the libraries in turn.

The ranks of each library are processes of their own. Between two requests they sleep in a read, so
that one library does not disturb another. The order rotates from round to round, so that what else
the host does affects all libraries alike.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from unisono.errors import LaunchError
from unisono.launch.supervisor import EndPolicy, Supervisor

__all__ = ["LibraryRanks", "calls_per_round", "in_turn", "start_libraries"]

_DEADLINE = 120.0
_TIME_TO_LEAVE = 10.0  # seconds between the end of a rank's stdin and SIGKILL
_MOST_CALLS = 20000
# glibc gives large blocks back after each call unless told otherwise; peers that allocate scratch
# memory in every call would pay for fresh pages, which is not what is compared.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}

_Entry = TypeVar("_Entry")


class LibraryRanks:
    """The ranks of one library (an engine of unisono, or a peer), waiting for requests."""

    def __init__(self, name: str, ranks: int, module: str) -> None:
        self.name = name
        self._supervisor = Supervisor(ranks, EndPolicy(settle=_TIME_TO_LEAVE, grace=0.0))
        self._ranks: list[subprocess.Popen[str]] = [
            self._supervisor.start(
                [sys.executable, "-m", module, name],
                _KEEP_MEMORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(ranks)
        ]

    def wait_ready(self) -> None:
        """Return when all ranks have joined their world."""
        for rank in range(len(self._ranks)):
            self._answer(rank)

    def ask(self, request: dict[str, Any]) -> list[Any]:
        """Send a request to all ranks, and return their answers."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return [json.loads(self._answer(rank)) for rank in range(len(self._ranks))]

    def slowest(self, request: dict[str, Any]) -> float:
        """Send a request to all ranks, and return the seconds that the slowest one measured."""
        return max(map(float, self.ask(request)))

    def close(self) -> None:
        """End the ranks; they leave by themselves when their stdin ends."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.close()
        with self._supervisor:
            self._supervisor.stop(after=_TIME_TO_LEAVE)
            self._supervisor.watch()
        for process in self._ranks:
            assert process.stdout is not None
            process.stdout.close()

    def _answer(self, rank: int) -> str:
        stdout = self._ranks[rank].stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _DEADLINE)[0]:
            raise LaunchError(f"rank {rank} of {self.name} gave no answer in {_DEADLINE:g} s")
        line = stdout.readline()
        if not line:
            raise LaunchError(f"rank {rank} of {self.name} ended; its error stands above")
        return line


@contextmanager
def start_libraries(names: Sequence[str], ranks: int, module: str) -> Iterator[list[LibraryRanks]]:
    """Start the ranks of each named library, all of them running `module`, and end them at exit."""
    with ExitStack() as stack:
        libraries = []
        for name in names:
            libraries.append(LibraryRanks(name, ranks, module))
            stack.callback(libraries[-1].close)
        for library in libraries:
            library.wait_ready()
        yield libraries


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
