"""What a process runs, told from outside: real processes, also those of multiprocessing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import DEADLINE
from unisono.tools.program import program_of, script_name

CHILD = """
import multiprocessing, sys
def wait(): print("ready", flush=True); sys.stdin.read()
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    child = multiprocessing.Process(target=wait)
    child.start()
    print(child.pid, flush=True)
    child.join()
"""


def test_a_process_of_multiprocessing_runs_the_script_of_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "train it.py"
    script.write_text(CHILD)
    before = time.time()
    with subprocess.Popen(
        [sys.executable, "-u", script, "--layers", "8"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = sorted(process.stdout.readline().strip() for _ in range(2))
        for pid in (process.pid, int(lines[0])):
            program = program_of(pid)
            assert program.script == "train it.py"
            # The kernel counts hundredths of a second.
            assert before - 1 < program.started < before + DEADLINE
        process.communicate(timeout=DEADLINE)


def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert program_of(process.pid).script == ""
    assert program_of(os.getpid()).script != ""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train.py"),
        (["/opt/bin/python3.11", "-uB", "-W", "error", "-X", "dev", "a/b.py", "c.py"], "b.py"),
        (["python3", "-u", "-m", "torch.distributed.run", "train.py"], "-m torch.distributed.run"),
        (["python3", "-c", "import this", "train.py"], "-c"),
        (["python3"], "python3"),
        (["/usr/local/bin/solver", "--fast"], "solver"),
        ([], ""),
    ],
)
def test_the_script_in_a_command(command: list[str], name: str) -> None:
    assert script_name(command) == name
