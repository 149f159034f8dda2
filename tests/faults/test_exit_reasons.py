"""Survivors say how a lost rank ended: by which signal, or with which code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.processes import DEADLINE, is_running, wait_until
from tests.helpers.thorough import essential
from unisono import spawn
from unisono.core import groups
from unisono.errors import PeerLost, UnisonoError
from unisono.launch.outcome import exit_code

WAYS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "crashed": ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    "exited without cleanup": ("os._exit(3)", "exited with code 3"),
    "exited": ("sys.exit(4)", "exited with code 4"),
    "returned": ("sys.exit()", "exited with code 0"),
    "raised": ("raise ValueError('the cause')", "exited with code 1"),
}


def check(text: str, lost: int, pid: int, reason: str) -> None:
    assert f"rank {lost} (pid {pid}) {reason}" in text, text
    assert "its last call was all_reduce float64 x 1 sum (call 1)" in text, text


def unless_slow(told_by_survivors: Callable[[], tuple[int, list[str]]]) -> tuple[int, list[str]]:
    """Return the pid of the lost rank and what survivors said about it.

    Survivors wait a moment for a Python process that is about to end, and then say that they do not
    know yet. On a machine with too much to do that may happen, but not three times.
    """
    for _ in range(3):
        pid, texts = told_by_survivors()
        if not any("how is not known yet" in text for text in texts):
            break
    return pid, texts


# ---- ranks that were started one by one ----------------------------------------------------------


@pytest.mark.parametrize("verb", essential(1, ["all_reduce", "recv"]))
@pytest.mark.parametrize("way", essential(3, WAYS))
def test_started_by_hand(way: str, verb: str) -> None:
    action, reason = WAYS[way]
    body = f"""
world = groups.init("shm", 600)
reduce(world)
say(joined=True)
if rank == 1:
    hear()
    {action}
say(**fault(lambda: {"reduce(world)" if verb == "all_reduce" else "recv(world, 1)"}))
"""

    def told() -> tuple[int, list[str]]:
        with Ranks(3, body) as ranks:
            for rank in range(3):
                ranks[rank].read()
            for rank in (0, 2):
                ranks[rank].wait_for_sleep()
            ranks[1].tell()
            errors = [ranks[rank].read() for rank in (0, 2)]
            assert [ranks[rank].end() for rank in (0, 2)] == [0, 0]
        assert all((error["kind"], error["ranks"]) == ("PeerLost", [1]) for error in errors)
        return ranks[1].pid, [error["text"] for error in errors]

    pid, texts = unless_slow(told)
    for text in texts:
        if verb == "all_reduce":
            check(text, 1, pid, reason)
        else:
            assert f"rank 1 (pid {pid}): it {reason}" in text


def test_rank_that_was_collected_immediately() -> None:
    """Then only newer kernels know how it ended."""
    body = """
world = groups.init("shm", 600)
reduce(world)
say(joined=True)
hear()
say(**fault(lambda: reduce(world)))
"""
    with Ranks(2, body) as ranks:
        for rank in range(2):
            ranks[rank].read()
        ranks[1].signal(signal.SIGKILL)
        pid = ranks[1].pid
        ranks[1].end()
        ranks[0].tell()
        text = ranks[0].read()["text"]
        known = f"rank 1 (pid {pid}) was killed by SIGKILL"
        unknown = f"rank 1 (pid {pid}) ended without leaving the job; its exit status is not known"
        assert known in text or unknown in text


# ---- the launcher --------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
import numpy as np
import unisono.torch.distributed as dist
dist.init_process_group("shm")
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or a slow survivor is ended before it is told
x = np.zeros(1)
dist.all_reduce(x)
if dist.get_rank() == 1:
    print("pid", os.getpid(), flush=True)
    time.sleep(0.3)
    {action}
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print("told", error, flush=True)
"""


@pytest.mark.parametrize("way", essential(2, WAYS))
def test_started_by_the_launcher(way: str, tmp_path: Path) -> None:
    action, reason = WAYS[way]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(action=action))

    def told() -> tuple[int, list[str]]:
        job = subprocess.run(
            [sys.executable, "-m", "unisono", "run", "-n", "3", str(script)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = job.stdout.splitlines()
        texts = {line[1]: line for line in lines if " told " in line}
        assert set(texts) == {"0", "2"}, job.stdout + job.stderr
        pid = next(int(line.split()[-1]) for line in lines if line.startswith("[1] pid"))
        return pid, list(texts.values())

    pid, texts = unless_slow(told)
    for text in texts:
        check(text, 1, pid, reason)


def test_launcher_collects_every_rank(tmp_path: Path) -> None:
    """An ended rank stays uncollected, so that others can look at it, but not for long."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "print('ready', os.getpid(), flush=True)\n"
        "if os.environ['RANK'] == '0':\n"
        "    sys.stdin.readline()\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-m", "unisono", "run", "-n", "3", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None and job.stdout is not None
    pids = {}
    for _ in range(3):
        label, *_, pid = job.stdout.readline().split()
        pids[label] = int(pid)
    for rank in ("[1]", "[2]"):
        wait_until(lambda pid=pids[rank]: not is_running(pid))
        wait_until(lambda pid=pids[rank]: not Path(f"/proc/{pid}").exists())
    assert is_running(pids["[0]"])
    job.communicate("\n", timeout=DEADLINE)
    assert job.returncode == 0


# ---- spawn ---------------------------------------------------------------------------------------


def end_in_some_way(action: str, folder: Path) -> None:
    import numpy as np

    import unisono.torch.distributed as dist

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or a slow survivor is ended before it is told
    x = np.zeros(1)
    dist.all_reduce(x)
    if groups.world().rank == 1:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(0.3)
        exec(action)
    try:
        dist.all_reduce(x)
    except PeerLost as error:
        (folder / f"told{groups.world().rank}").write_text(str(error))
        raise


@pytest.mark.parametrize(
    "way", essential(1, [way for way in WAYS if way not in ("exited", "returned")])
)
def test_started_by_spawn(way: str, tmp_path: Path) -> None:
    action, reason = WAYS[way]

    def told() -> tuple[int, list[str]]:
        with pytest.raises((UnisonoError, ValueError)):
            spawn(end_in_some_way, 3, f"import os, signal, sys\n{action}", tmp_path, engine="shm")
        texts = [(tmp_path / f"told{rank}").read_text() for rank in (0, 2)]
        return int((tmp_path / "pid").read_text()), texts

    pid, texts = unless_slow(told)
    for text in texts:
        check(text, 1, pid, reason)
    assert not Path(f"/proc/{pid}").exists()


# ---- looking without collecting ------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_exit_code_without_collecting(code: int) -> None:
    way = f"sys.exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    source = f"import os, sys\nsys.stdin.readline()\n{way}"
    child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert exit_code(child.pid) is None
    child.stdin.close()
    wait_until(lambda: exit_code(child.pid) is not None)
    assert exit_code(child.pid) == code
    assert child.wait() == code
    with pytest.raises(ChildProcessError):
        exit_code(child.pid)
