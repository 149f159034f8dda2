"""Random calls under random kills, stops and delays, for as long as you like: `make soak`.

Jobs of 8 ranks run one after the other. Their ranks are forked from here, so that a job starts in
milliseconds; some are killed, some stopped for a while. The survivors shrink their group and go
on. At the end of a job those that are left must agree on who they are, and nothing may be left.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import unisono.engines.shm.engine  # noqa: F401  (loaded once, before the ranks are forked)
from tests.long import soak_rank

_TIMEOUT = 90.0  # seconds for a job; far more than it takes, stops included
_CALLS = 400  # that each rank of a job makes after the last loss
_PACE = 0.15  # seconds between two faults, on average


@dataclass
class Rank:
    """A rank that runs, or has."""

    pid: int
    answer: int  # where it writes what it has seen
    killed: bool = False
    status: int | None = None

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def told(self) -> dict[str, Any]:
        with os.fdopen(self.answer) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith("{") else {"wrong": text}


@dataclass
class Job:
    """One job of some ranks, and the faults that it meets."""

    seed: int
    size: int
    ranks: list[Rank] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    stopped: dict[int, float] = field(default_factory=dict)  # pid, and when it goes on

    def start(self) -> None:
        name, secret = secrets.token_hex(8), secrets.token_hex(16)
        for rank in range(self.size):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _be_rank(write, rank, self.size, name, secret, self.seed)
            os.close(write)
            self.ranks.append(Rank(pid, read))

    def run(self) -> str:
        """What went wrong; empty if nothing did."""
        draw = random.Random(self.seed)
        deadline = time.monotonic() + _TIMEOUT
        next_fault = time.monotonic() + draw.random() * 4 * _PACE
        while sum(rank.ended() for rank in self.ranks) < self.size:
            now = time.monotonic()
            if now > deadline:
                return self._hangs()
            self._continue(now)
            if now > next_fault:
                self._harm(draw, now)
                next_fault = now + draw.expovariate(1 / _PACE)
            time.sleep(0.002)
        return self._verdict()

    def _continue(self, now: float) -> None:
        for pid, until in list(self.stopped.items()):
            if now > until:
                _tell(pid, signal.SIGCONT)
                del self.stopped[pid]

    def _harm(self, draw: random.Random, now: float) -> None:
        running = [rank for rank in self.ranks if not rank.ended() and rank.pid not in self.stopped]
        if not running:
            return
        victim = draw.choice(running)
        alive = sum(not rank.killed for rank in self.ranks)
        if draw.random() < 0.35 and alive > soak_rank.FEWEST:
            victim.killed = True
            self.faults["kills"] += 1
            _tell(victim.pid, signal.SIGKILL)
        else:
            self.faults["stops"] += 1
            _tell(victim.pid, signal.SIGSTOP)
            self.stopped[victim.pid] = now + draw.random() ** 2

    def _hangs(self) -> str:
        hanging = [number for number, rank in enumerate(self.ranks) if not rank.ended()]
        for number in hanging:
            _tell(self.ranks[number].pid, signal.SIGCONT)
            _tell(self.ranks[number].pid, signal.SIGUSR1)  # it prints where it is
        time.sleep(1.0)
        for number in hanging:
            _tell(self.ranks[number].pid, signal.SIGKILL)
        return f"ranks {hanging} hang"

    def _verdict(self) -> str:
        told = [rank.told() for rank in self.ranks]
        left = [number for number, rank in enumerate(self.ranks) if rank.status == 0]
        for number, rank in enumerate(self.ranks):
            if rank.status != 0 and not (rank.killed and rank.status == -signal.SIGKILL):
                return f"rank {number} ended with {rank.status}: {told[number].get('wrong')}"
        if not self.faults["kills"] and any(told[number]["unstarted"] for number in left):
            return f"ranks {left} did not join"
        finals = {tuple(told[number]["members"]) for number in left}
        if len(finals) > 1:
            return f"survivors {left} disagree on who they are: {sorted(finals)}"
        for number in left:
            for name in ("calls", "messages", "groups", "lost", "unstarted"):
                self.faults[name] += told[number][name]
        return ""


def _be_rank(answer: int, rank: int, size: int, name: str, secret: str, seed: int) -> None:
    """What a forked rank does; never returns."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the job
    os.environ.update(
        UNISONO_RANK=str(rank), UNISONO_SIZE=str(size), UNISONO_JOB=name, UNISONO_SECRET=secret
    )
    code = 1
    try:
        report = str(soak_rank.soak(seed, _CALLS))
        code = 0
    except BaseException:
        report = traceback.format_exc()
    os.write(answer, report.encode()[-60000:])
    os._exit(code)


def _tell(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _held() -> tuple[int, int]:
    """Descriptors of this process, and files of jobs in shared memory; others have theirs there."""
    shared = [path for path in Path("/dev/shm").iterdir() if "unisono" in path.name]
    return len([*Path("/proc/self/fd").iterdir()]), len(shared)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    total: Counter[str] = Counter()
    began = said = time.monotonic()
    before = _held()
    while time.monotonic() - began < 60 * options.minutes:
        job = Job(options.seed + total["jobs"], options.ranks)
        job.start()
        wrong = job.run()
        total["jobs"] += 1
        total += job.faults
        after = _held()
        if not wrong and after != before:
            wrong = f"descriptors and files in /dev/shm: {before} before, {after} after"
        if wrong:
            print(f"job {total['jobs']}, seed {job.seed}: {wrong}", flush=True)
            return 1
        if time.monotonic() - said > 10:
            said = time.monotonic()
            print(f"{said - began:.0f} s: {dict(total)}", flush=True)
    print(f"nothing wrong in {time.monotonic() - began:.0f} s: {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
