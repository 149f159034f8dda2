"""Whatever is killed, and when: no process, no shared memory, no socket and no file is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks, nothing_new_is_left
from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE, is_running, pids_of, wait_until

pytestmark = pytest.mark.alone

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]

LOOP = """
from tests.helpers.rank_side import *
world = groups.init("shm", 600)
print("ready", os.getpid(), flush=True)
while True:
    reduce(world, 10_000)
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a script with `unisono run`; its temporary files would come into their own folder."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def begin(n: int, body: str) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(body)
        return subprocess.Popen(
            [*UNISONO, "run", "-n", str(n), str(script)],
            env={
                **os.environ,
                "TMPDIR": str(temporary),
                "PYTHONPATH": with_tests(),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def check_gone(pids: list[int], tmp_path: Path, check: Callable[[], None]) -> None:
    wait_until(lambda: not any(map(is_running, pids)))
    check()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_run_with_a_killed_rank(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    check = nothing_new_is_left()
    job = start(3, LOOP)
    pids = pids_of(job, 3)
    os.kill(pids[1], signal.SIGKILL)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 137
    assert "failed: killed by SIGKILL" in err
    check_gone(pids, tmp_path, check)


def test_run_with_a_rank_that_raises(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    check = nothing_new_is_left()
    body = LOOP.replace("while True:", "while rank != 1 or reduce(world, 10_000) != 6:")
    job = start(3, body + "raise ValueError('the cause')\n")
    pids = pids_of(job, 3)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    report = err[err.index("unisono: rank 1 of 3 failed: exit code 1") :]
    assert report.endswith("ValueError: the cause\n")
    check_gone(pids, tmp_path, check)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_run_with_an_ended_launcher(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    check = nothing_new_is_left()
    job = start(3, LOOP)
    pids = pids_of(job, 3)
    job.send_signal(number)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)
    check_gone(pids, tmp_path, check)


def test_launcher_killed_while_the_job_starts(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    check = nothing_new_is_left()
    body = 'import os, time\nprint("ready", os.getpid(), flush=True)\n'
    body += 'if os.environ["RANK"] == "2": time.sleep(600)\n'
    job = start(3, body + LOOP)
    pids = pids_of(job, 3)
    time.sleep(0.5)
    job.kill()
    job.communicate(timeout=DEADLINE)
    check_gone(pids, tmp_path, check)


@pytest.mark.parametrize("count", [1, 1 << 20], ids=["8 B", "8 MiB"])
def test_all_killed_in_a_collective(count: int) -> None:
    check = nothing_new_is_left()
    body = f"""
world = groups.init("shm", 600)
group = world.split([0, 1])
say(joined=True)
while True:
    reduce(world, {count})
    reduce(group, {count})
"""
    with Ranks(2, body) as ranks:
        for rank in range(2):
            ranks[rank].read()
        time.sleep(0.2)
        ranks.kill()
        pids = [ranks[rank].pid for rank in range(2)]
        wait_until(lambda: not any(map(is_running, pids)))
    check()


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.2, 0.4, 1.0])
def test_all_killed_while_the_job_starts(pause: float) -> None:
    check = nothing_new_is_left()
    with Ranks(4, 'groups.init("shm", 600)', only=[0, 1, 2]) as ranks:
        time.sleep(pause)
        ranks.kill()
        assert [ranks[rank].end() for rank in range(3)] == [-signal.SIGKILL] * 3
    check()
