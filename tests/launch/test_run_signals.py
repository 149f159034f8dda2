"""Signals to `unisono run`, to its ranks, and from a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO, Start
from tests.helpers.processes import DEADLINE, is_running, pids_of, wait_until

#: Counts its SIGINTs, and says so when none has come for a while.
COUNTING = """
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", os.getpid(), flush=True)
while not seen:
    time.sleep(0.05)
time.sleep(0.5)
print("seen", len(seen))
"""


def test_interrupt_by_kill_is_forwarded_once(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "2", script(COUNTING))
    pids_of(job, 2)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=DEADLINE)
    assert sorted(out.splitlines()) == ["[0] seen 1", "[1] seen 1"]
    assert job.returncode == 130
    assert err.splitlines()[-1] == "unisono: interrupted by SIGINT"


def test_second_interrupt_kills(script: Callable[[str], str], start: Start) -> None:
    body = "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
    job = start("-n", "2", script(body + "print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 2)
    job.send_signal(signal.SIGINT)
    assert job.stdout is not None
    assert {job.stdout.readline() for _ in range(2)} == {"[0] no\n", "[1] no\n"}
    assert job.stderr is not None
    assert job.stderr.readline() == (
        "unisono: still running after Ctrl-C: ranks 0, 1; Ctrl-C again kills what still runs\n"
    )
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == 130
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_end_by_signal(script: Callable[[str], str], start: Start, number: signal.Signals) -> None:
    body = f"signal.signal({int(number)}, lambda *_: sys.exit('got it'))\n"
    job = start("-n", "2", script(body + "print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 2)
    job.send_signal(number)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 128 + number
    assert {"[0] got it", "[1] got it"} < set(err.splitlines())
    assert not any(map(is_running, pids))


def ignoring(*numbers: signal.Signals) -> list[str]:
    """A program that ignores these signals and becomes the program that follows."""
    lines = "\n".join(f"signal.signal({int(number)}, signal.SIG_IGN)" for number in numbers)
    source = f"import os, signal, sys\n{lines}\nos.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", source]


def test_an_ignored_hangup_stays_ignored(script: Callable[[str], str], start: Start) -> None:
    """As under nohup: the job goes on without its terminal, its ranks too."""
    body = """
print("ready", os.getpid(), signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, os.getpid())
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""
    path = script(body)
    end = Path(path).parent / "end"
    job = start("-n", "2", path, str(end), prefix=ignoring(signal.SIGHUP))
    for pid in [*pids_of(job, 2), job.pid]:
        os.kill(pid, signal.SIGHUP)
    end.touch()
    _, err = job.communicate(timeout=DEADLINE)
    assert (job.returncode, err) == (0, "")


def test_an_ignored_interrupt_is_not_inherited(script: Callable[[str], str], start: Start) -> None:
    """As under cron: a rank can still be interrupted, and clean up."""
    body = "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    job = start("-n", "2", script(body), prefix=ignoring(signal.SIGINT))
    out, _ = job.communicate(timeout=DEADLINE)
    assert sorted(out.splitlines()) == ["[0] True", "[1] True"]


def test_terminal_interrupt_reaches_ranks_once(script: Callable[[str], str]) -> None:
    # A program in between takes its stdin as its terminal: code before exec is not safe here.
    own_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    terminal, end = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-c", own_terminal, *UNISONO, "run", "-n", "2", script(COUNTING)],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    seen = b""
    interrupted = False
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
            if seen.count(b"ready") == 2 and not interrupted:
                interrupted = True
                os.write(terminal, b"\x03")
    except OSError:
        pass  # the terminal ends with its last process
    os.close(terminal)
    assert job.wait(DEADLINE) == 130
    assert seen.count(b"seen 1") == 2
    assert b"\x1b[" in seen  # labels are coloured on a terminal


def test_no_rank_survives_the_launcher(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "3", script("print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 3)
    assert all(map(is_running, pids))
    job.kill()
    job.communicate(timeout=DEADLINE)
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_reader_that_leaves_ends_the_job(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "2", script("while 1: print('more' * 100)"))
    assert job.stdout is not None
    job.stdout.readline()
    job.stdout.close()
    job.stdout = None
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    assert "BrokenPipeError" in err
