"""How jobs of `unisono run` fail: who is reported, and with which exit code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.launcher import run
from tests.helpers.processes import is_running


def test_the_failing_rank_is_reported_last(script: Callable[[str], str], tmp_path: Path) -> None:
    body = """
Path(sys.argv[1], f"pid-{rank}").write_text(str(os.getpid()))
if rank == 1:
    while len(list(Path(sys.argv[1]).glob("pid-*"))) < 3:
        time.sleep(0.02)
    raise ValueError("this is the cause")
time.sleep(600)
"""
    done = run("-n", "3", "--grace", "1", script(body), str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "[1] ValueError: this is the cause\nunisono: rank 1 of 3 failed: exit code 1\n"
    )
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("pid-*"))


def test_exit_code_of_the_failing_rank(script: Callable[[str], str]) -> None:
    done = run("-n", "2", script("sys.exit(7 if rank == 1 else 0)"))
    assert done.returncode == 7
    assert done.stderr == "unisono: rank 1 of 2 failed: exit code 7\n"


def test_a_killed_rank(script: Callable[[str], str]) -> None:
    body = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    done = run("-n", "2", "--grace", "0.5", script(body))
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == "unisono: rank 1 of 2 failed: killed by SIGKILL"


def test_a_survivor_is_not_the_culprit(script: Callable[[str], str]) -> None:
    # The survivors end first: the culprit has told them, but takes its time to leave.
    body = """
from unisono.errors import PeerLost
if rank == 2:
    time.sleep(0.8)
    sys.exit("the cause")
raise PeerLost("rank 2 closed the group")
"""
    done = run("-n", "3", script(body))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "[2] the cause\n"
        "unisono: failed as well: ranks 0, 1 (exit code 1)\n"
        "unisono: rank 2 of 3 failed: exit code 1\n"
    )


def test_a_cause_that_ends_late_is_found_behind_wrapped_errors(
    script: Callable[[str], str],
) -> None:
    """The kind of an error is data: neither other hooks nor other texts on stderr hide it."""
    body = """
from unisono.errors import PeerLost
sys.excepthook = lambda *_: print("no traceback", file=sys.stderr)
if rank == 2:
    time.sleep(0.8)
    print("PeerLost: only a text", file=sys.stderr)
    raise ValueError("the cause")
try:
    raise PeerLost("rank 2 closed the group")
except PeerLost as error:
    raise LookupError("no gradients") from error
"""
    path = script(body)
    done = run("-n", "3", path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"unisono: rank 2 of 3 failed: ValueError at {path}:11: the cause"
    )


def test_lines_of_the_culprit_are_repeated_if_others_came_after_them(
    script: Callable[[str], str],
) -> None:
    body = """
if rank == 1:
    sys.exit("the cause")
time.sleep(1)
sys.exit("a consequence" if rank == 0 else 0)
"""
    done = run("-n", "3", script(body))
    assert done.stderr.splitlines() == [
        "[1] the cause",
        "[0] a consequence",
        "unisono: failed as well: rank 0 (exit code 1)",
        "unisono: the last lines of rank 1 on stderr:",
        "    the cause",
        "unisono: rank 1 of 3 failed: exit code 1",
    ]


@pytest.mark.thorough
def test_a_rank_that_ignores_sigterm_is_killed(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    body = """
if rank == 0:
    while not Path(sys.argv[1], "pid").exists():
        time.sleep(0.02)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1], "written").write_text(str(os.getpid()))
Path(sys.argv[1], "written").rename(Path(sys.argv[1], "pid"))
time.sleep(600)
"""
    begin = time.monotonic()
    done = run("-n", "2", "--grace", "0", script(body), str(tmp_path))
    assert done.returncode == 3
    assert time.monotonic() - begin > 4.5
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_grandchild_does_not_hold_the_launcher(script: Callable[[str], str]) -> None:
    body = "print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    done = run("-n", "1", script(body))
    assert done.returncode == 0
    grandchild = int(done.stdout.split()[-1])
    assert is_running(grandchild)
    os.kill(grandchild, signal.SIGKILL)
