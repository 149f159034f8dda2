"""Whatever is killed, and when: no process, no shared memory, no socket and no file is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.leftovers import Leftovers
from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE, pids_of, wait_until

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]

LOOP = """
from tests.helpers.rank_side import *
world = groups.init("shm", 600)
print("ready", os.getpid(), flush=True)
while True:
    reduce(world, 10_000)
"""


Start = Callable[[int, str], subprocess.Popen[str]]


@pytest.fixture
def leftovers(tmp_path: Path) -> Leftovers:
    """What the programs of the test leave, in temporary files of their own among others."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    return Leftovers(temporary)


@pytest.fixture
def start(tmp_path: Path, leftovers: Leftovers) -> Iterator[Start]:
    """`start(n, body)` starts a script with `unisono run`, which ends with the test."""
    jobs: list[subprocess.Popen[str]] = []

    def begin(n: int, body: str) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(body)
        variables = {"PYTHONPATH": with_tests(), "PYTHONDONTWRITEBYTECODE": "1"}
        job = subprocess.Popen(
            [*UNISONO, "run", "-n", str(n), str(script)],
            env={**os.environ, **variables, **leftovers.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.kill()
        job.communicate(timeout=DEADLINE)


def wait_for_ranks(job: subprocess.Popen[str], leftovers: Leftovers) -> list[int]:
    """The process ids of three ranks, once all of them run."""
    pids = pids_of(job, 3)
    assert {job.pid, *pids} <= set(leftovers.processes()), "the check does not see them"
    return pids


def test_leftovers_are_seen(leftovers: Leftovers) -> None:
    """The check itself: it sees a process and a process of that one, and nothing of others."""
    program = "sleep 600 & echo ready; wait"
    with subprocess.Popen(
        ["sh", "-c", program], env={**os.environ, **leftovers.variables}, stdout=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        wait_until(lambda: len(leftovers.processes()) == 2)
        assert job.pid in leftovers.processes() and os.getpid() not in leftovers.processes()
        for pid in leftovers.processes():
            os.kill(pid, signal.SIGKILL)
    leftovers.check()


def test_run_with_a_killed_rank(start: Start, leftovers: Leftovers) -> None:
    job = start(3, LOOP)
    pids = wait_for_ranks(job, leftovers)
    os.kill(pids[1], signal.SIGKILL)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 137
    assert "failed: killed by SIGKILL" in err
    leftovers.check()


def test_run_with_a_rank_that_raises(start: Start, leftovers: Leftovers) -> None:
    body = LOOP.replace("while True:", "while rank != 1 or reduce(world, 10_000) != 6:")
    job = start(3, body + "raise ValueError('the cause')\n")
    pids_of(job, 3)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    assert err.splitlines()[-1].startswith("unisono: rank 1 of 3 failed: ValueError")
    assert err.endswith(": the cause\n")
    leftovers.check()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_run_with_an_ended_launcher(
    start: Start, leftovers: Leftovers, number: signal.Signals
) -> None:
    job = start(3, LOOP)
    wait_for_ranks(job, leftovers)
    job.send_signal(number)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)
    leftovers.check()


def test_launcher_killed_while_the_job_starts(start: Start, leftovers: Leftovers) -> None:
    body = 'import os, time\nprint("ready", os.getpid(), flush=True)\n'
    body += 'if os.environ["RANK"] == "2": time.sleep(600)\n'
    job = start(3, body + LOOP)
    wait_for_ranks(job, leftovers)
    time.sleep(0.5)
    job.kill()
    job.communicate(timeout=DEADLINE)
    leftovers.check()


@pytest.mark.parametrize("count", [1, 1 << 20], ids=["8 B", "8 MiB"])
def test_all_killed_in_a_collective(leftovers: Leftovers, count: int) -> None:
    body = f"""
world = groups.init("shm", 600)
group = world.split([0, 1])
say(joined=True)
while True:
    reduce(world, {count})
    reduce(group, {count})
"""
    with Ranks(2, body, **leftovers.variables) as ranks:
        ranks.read_all()
        time.sleep(0.2)
        ranks.kill()
        leftovers.check()


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.2, 0.4, 1.0])
def test_all_killed_while_the_job_starts(leftovers: Leftovers, pause: float) -> None:
    body = 'groups.init("shm", 600)'
    with Ranks(4, body, only=[0, 1, 2], **leftovers.variables) as ranks:
        time.sleep(pause)
        ranks.kill()
        assert [ranks[rank].end() for rank in range(3)] == [-signal.SIGKILL] * 3
        leftovers.check()
