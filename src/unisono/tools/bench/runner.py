"""A contest: the ranks of several libraries, alive at once, measured in turn.

A contestant's ranks are processes of their own that sleep in a read between orders, so that
contestants do not disturb each other; rounds of rotating order let all of them meet the same host.
"""

from __future__ import annotations

import importlib.util
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from unisono.errors import ArgumentError, LaunchError
from unisono.launch.supervisor import EndPolicy, Supervisor

__all__ = [
    "PEERS",
    "Contestant",
    "calls_for",
    "chosen",
    "contest",
    "in_turn",
    "need_torch",
    "time_name",
]

#: What unisono can be measured against; all of them need torch.
PEERS = ("gloo",)
_DEADLINE = 120.0
_TIME_TO_LEAVE = 10.0  # seconds between the end of a rank's stdin and SIGKILL
_MOST_CALLS = 20000
# glibc gives large blocks back after each call unless told otherwise; peers that allocate scratch
# memory in every call would pay for fresh pages, which is not what is compared.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}

_Entry = TypeVar("_Entry")


class Contestant:
    """The ranks of one library, waiting for orders."""

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

    def ask(self, order: dict[str, Any]) -> list[Any]:
        """Give all ranks an order, and return their answers."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        return [json.loads(self._answer(rank)) for rank in range(len(self._ranks))]

    def slowest(self, order: dict[str, Any]) -> float:
        """Seconds that the slowest rank answers to an order."""
        return max(map(float, self.ask(order)))

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
def contest(names: Sequence[str], ranks: int, module: str) -> Iterator[list[Contestant]]:
    """Start a contestant for each name, with `module` as their ranks, and end them afterwards."""
    contestants = [Contestant(name, ranks, module) for name in names]
    try:
        for contestant in contestants:
            contestant.wait_ready()
        yield contestants
    finally:
        for contestant in contestants:
            contestant.close()


def in_turn(entries: Sequence[_Entry], rounds: int) -> Iterator[_Entry]:
    """Every entry once in each round; another one begins each time.

    >>> "".join(in_turn("abc", 3))
    'abcbcacab'
    """
    for turn in range(rounds):
        first = turn % len(entries)
        yield from [*entries[first:], *entries[:first]]


def calls_for(seconds: float, once: float) -> int:
    """How many calls of `once` seconds fill a round."""
    return max(1, min(_MOST_CALLS, int(seconds / max(once, 1e-7))))


def chosen(words: str, allowed: Sequence[str], kind: str) -> list[str]:
    """The words of a list with commas, all of them `allowed`."""
    found = [word for word in words.split(",") if word]
    for word in found:
        if word not in allowed:
            raise ArgumentError(f"no {kind} {word!r}; there are {', '.join(allowed)}")
    return found


def need_torch(what: str) -> None:
    """Refuse `what` where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError(f"{what} needs torch: pip install 'unisono[bench]'")


def time_name(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> time_name(2.5e-6), time_name(0.25)
    ('2.50 us', '250.00 ms')
    """
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
