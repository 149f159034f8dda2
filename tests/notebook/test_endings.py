"""No rank outlives the object or the program that it belongs to."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import unisono
from tests.helpers.processes import DEADLINE, is_running, wait_until


def rank_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("unisono rank")}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_ranks_that_nobody_refers_to_end() -> None:
    before = rank_threads()
    ranks = unisono.ranks(2)
    assert len(rank_threads() - before) == 2
    del ranks
    gc.collect()
    wait_until(lambda: not rank_threads() - before)


def test_processes_that_nobody_refers_to_end() -> None:
    ranks = unisono.ranks(2, engine="shm")
    pids = ranks(os.getpid)
    files = open_files()
    assert all(map(is_running, pids))
    del ranks
    gc.collect()
    wait_until(lambda: not any(map(is_running, pids)))
    assert open_files() < files


PROGRAM = """
import os, sys, time, unisono
ranks = unisono.ranks(2, engine="shm")  # a script needs no guard
print(*ranks(os.getpid), flush=True)
if sys.argv[1] == "fork":
    if os.fork() == 0:
        try:
            ranks(os.getpid)
        except unisono.NotReady as error:
            print("the child:", error, flush=True)
        sys.exit()
    os.wait()
    print(ranks(lambda: len("alive")), flush=True)
if sys.argv[1] == "kill":
    ranks.execute("import time; print('busy'); time.sleep(600)")
"""


@pytest.mark.parametrize("how", ["end", "fork", "kill"])
def test_processes_end_with_the_program(tmp_path: Path, how: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    job = subprocess.Popen(
        [sys.executable, path, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    pids = [int(word) for word in job.stdout.readline().split()]
    if how == "kill":
        assert {job.stdout.readline(), job.stdout.readline()} == {"[0] busy\n", "[1] busy\n"}
        job.kill()
    out, err = job.communicate(timeout=DEADLINE)
    assert (job.returncode, err) == (-signal.SIGKILL if how == "kill" else 0, "")
    if how == "fork":
        assert out.startswith("the child: these ranks belong to the process that this one was")
        assert out.endswith("\n[5, 5]\n")
    wait_until(lambda: not any(map(is_running, pids)))
