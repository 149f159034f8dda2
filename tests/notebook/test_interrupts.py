"""Ctrl-C while ranks run: the call ends, the ranks stay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import DEADLINE
from unisono.notebook.interrupts import Interrupts

PROGRAM = """
import signal, sys, unisono
ranks = unisono.ranks(2, engine=sys.argv[1])
ranks.execute("import signal, time, numpy as np, unisono.torch.distributed as dist")
ranks.execute("mine = dist.get_rank()")
for line in sys.stdin:
    try:
        ranks.execute("print('ready', flush=True)\\n" + eval(line))
    except KeyboardInterrupt as error:
        print("interrupted:", *error.__notes__, sep=" | ", flush=True)
    try:
        values = ranks.execute("one = np.ones(1)\\ndist.all_reduce(one)\\nfloat(one[0]) + mine")
        print("after:", values, flush=True)
    except unisono.PeerLost as error:
        print("after:", error, flush=True)
"""
LOOP = "while True:\n    time.sleep(0.01)"


class Program:
    """A program with two ranks that gets source code line by line."""

    def __init__(self, folder: Path, engine: str) -> None:
        path = folder / "program.py"
        path.write_text(PROGRAM)
        self.job = subprocess.Popen(
            [sys.executable, path, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._guard = threading.Timer(DEADLINE, self.job.kill)
        self._guard.start()

    def start(self, source: str) -> None:
        """Let the ranks run the source, and wait until both do."""
        assert self.job.stdin is not None
        self.job.stdin.write(f"{source!r}\n")
        self.job.stdin.flush()
        assert {self.line(), self.line()} == {"[0] ready", "[1] ready"}

    def press(self) -> None:
        """Do what a terminal does at Ctrl-C: a signal to the whole process group."""
        os.killpg(self.job.pid, signal.SIGINT)

    def line(self) -> str:
        assert self.job.stdout is not None
        return self.job.stdout.readline().rstrip("\n")

    def close(self) -> None:
        self.job.communicate()
        self._guard.cancel()


@pytest.fixture(scope="module", params=["threads", "shm"])
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    made = Program(tmp_path_factory.mktemp("interrupts"), request.param)
    yield made
    made.close()


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        "if mine:\n    dist.barrier()\n" + LOOP,
        "if mine:\n    dist.barrier()\nelse:\n    dist.recv(one, 1)",
        "if mine:\n    dist.barrier(async_op=True).wait()\n" + LOOP,
        "try:\n    if mine: dist.barrier()\n    while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n    pass",
    ],
    ids=["loop", "collective", "message", "handle", "caught"],
)
def test_the_call_ends_and_the_ranks_stay(program: Program, source: str) -> None:
    program.start(source)
    time.sleep(0.1)  # by now they are where they wait, but for a slow machine
    program.press()
    said = program.line()
    assert said.startswith("interrupted:")
    if "except" not in source:
        assert re.search(r"rank \d was at ranks source \d+:\d+", said)
    assert "the ranks keep their variables, and the next call has a new world" in said
    assert program.line() == "after: [2.0, 3.0]"


@pytest.mark.thorough
def test_sleep(program: Program) -> None:
    """A thread cannot be woken: its rank goes on in another one."""
    program.start("time.sleep(3)\n'too late'")
    program.press()
    said = program.line()
    if "unisono:" in said:
        assert "ranks 0, 1 cannot be interrupted in this call" in said
        said = program.line()
    assert said.startswith("interrupted:")
    assert program.line() == "after: [2.0, 3.0]"
    program.start("time.sleep(2)")  # meanwhile the old threads come to their end
    assert program.line() == "after: [2.0, 3.0]"


@pytest.mark.thorough
def test_a_second_interrupt_ends_processes_that_do_not_react(tmp_path: Path) -> None:
    program = Program(tmp_path, "shm")
    program.start("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])")
    assert program.line() == "after: [2.0, 3.0]"
    program.start("time.sleep(600)")
    program.press()
    assert "did not react to the interrupt yet; interrupt again to end all ranks" in program.line()
    program.press()
    assert "restart() starts new ranks" in program.line()
    assert re.search("ranks? .* of 2 ended", program.line())
    program.close()
    assert program.job.returncode == 0


def test_an_interrupt_that_comes_too_late_is_not_lost() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.take()
            assert not interrupts.take()
        with pytest.raises(KeyboardInterrupt), Interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
