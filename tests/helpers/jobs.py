"""Start the ranks of a job one by one, as plain processes, and talk with them line by line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE, wait_until
from unisono.launch.process import JobEnvironment

__all__ = ["Rank", "Ranks", "state_of"]


class Rank:
    """One process; its script reads `hear()` and writes `say()`, see rank_side.py."""

    def __init__(self, body: str, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.helpers.rank_side import *\n{body}"],
            env={**os.environ, **variables, "PYTHONPATH": with_tests()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> dict[str, Any]:
        """The next thing that the rank says."""
        assert self.process.stdout is not None
        end = time.monotonic() + DEADLINE
        while b"\n" not in self._unread:
            assert self._answers(max(0.0, end - time.monotonic())), "the rank says nothing"
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, f"the rank has ended instead, with code {self.end()}"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def has_said(self) -> bool:
        """Whether there is something to read."""
        return bool(self._unread) or self._answers(0)

    def _answers(self, seconds: float) -> bool:
        poll = select.poll()  # not select, which knows 1024 descriptors
        poll.register(self.process.stdout, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def tell(self) -> None:
        """Let the rank go on that waits in `hear()`."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for_sleep(self) -> None:
        """Return when the process waits in the kernel and not in a loop."""
        seen: list[str] = []

        def sleeps() -> bool:
            seen.append(state_of(self.pid))
            return seen[-5:] == ["S"] * 5

        wait_until(sleeps)

    def end(self) -> int:
        """Wait for the end of the process and return its code."""
        return self.process.wait(DEADLINE)


class Ranks:
    """The ranks of one job, killed at the end of the test; `only` starts some of them."""

    def __init__(
        self,
        n: int,
        body: str,
        *,
        only: Sequence[int] | None = None,
        job: JobEnvironment | None = None,
        **variables: str,
    ) -> None:
        self.job = job or JobEnvironment(n)
        self.variables = variables
        self._all: dict[int, list[Rank]] = {}
        self._body = body
        for rank in range(n) if only is None else only:
            self.start(rank)

    def start(self, rank: int, **variables: str) -> Rank:
        """Start one more process, as the rank of this number."""
        environment = {**self.job.variables(rank), **self.variables, **variables}
        process = Rank(self._body, environment)
        self._all.setdefault(rank, []).append(process)
        return process

    def __getitem__(self, rank: int) -> Rank:
        return self._all[rank][0]

    def read_all(self, *numbers: int) -> list[dict[str, Any]]:
        """The next thing that each of these ranks says; of all ranks if none is named."""
        return [self[rank].read() for rank in numbers or self._all]

    def wait_for_sleep(self, *numbers: int) -> None:
        """Return when these ranks wait in the kernel and not in a loop."""
        for rank in numbers:
            self[rank].wait_for_sleep()

    def of_number(self, rank: int) -> list[Rank]:
        """All processes that were started as this rank."""
        return list(self._all[rank])

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for rank in self._every():
            rank.end()
            for pipe in (rank.process.stdin, rank.process.stdout):
                assert pipe is not None
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def kill(self) -> None:
        """Kill all of them, so that none has time to notice the end of another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for rank in self._every():
                rank.signal(number)

    def _every(self) -> list[Rank]:
        return [rank for same in self._all.values() for rank in same]


def state_of(pid: int) -> str:
    """One letter: R runs, S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
