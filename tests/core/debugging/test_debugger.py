"""Debugging any rank of a job at its terminal, with a real terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO, Terminal
from tests.helpers.processes import DEADLINE


def job(folder: Path, text: str, *options: str) -> Terminal:
    script = folder / "script.py"
    script.write_text(text)
    return Terminal(*UNISONO, "run", "-n", "3", *options, str(script), cwd=folder)


FACE = """
import numpy as np
import unisono.torch.distributed as dist
dist.init_process_group()
x = np.ones(1)
"""


def test_breakpoint_on_any_rank(tmp_path: Path) -> None:
    text = """
import os
rank = int(os.environ["RANK"])
if rank == 1:
    breakpoint()
    rank += 10
print("rank is", rank)
"""
    with job(tmp_path, text) as terminal:
        if sys.version_info >= (3, 13):  # since then pdb stops before the next line
            terminal.wait_for("-> breakpoint()")
            terminal.type("n\n")
        terminal.wait_for("-> rank += 10")
        terminal.wait_for("(rank 1) ")
        terminal.type("n\n")
        terminal.wait_for('-> print("rank is", rank)')
        terminal.type("p rank * 2\n")
        terminal.wait_for("22")
        terminal.type("c\n")
        assert terminal.end() == 0
        assert "rank is 11" in terminal.all


def test_one_rank_at_a_time_has_the_terminal(tmp_path: Path) -> None:
    text = "import os\nname = 'I am ' + os.environ['RANK']\nbreakpoint()\nprint(name, 'done')\n"
    with job(tmp_path, text) as terminal:
        for _ in range(3):
            terminal.wait_for("(rank ")
            terminal.wait_for(") ")
            rank = terminal.all.rpartition("(rank ")[2][0]
            terminal.type("p name\n")
            terminal.wait_for(f"'I am {rank}'")
            terminal.wait_for(f"(rank {rank}) ")
            terminal.type("c\n")
        assert terminal.end() == 0
        assert terminal.all.count(" done") == 3


def test_the_others_wait_without_a_deadline(tmp_path: Path) -> None:
    """Longer than any call may wait."""
    text = (
        FACE
        + """
value = 40 + dist.get_rank()
for turn in range(2):
    dist.breakpoint(2, skip=1, timeout_s=60)
    value += 1
dist.all_reduce(x)
print("sum", x[0], value)
"""
    )
    with job(tmp_path, text, "--timeout", "1") as terminal:
        terminal.wait_for("-> dist.breakpoint(2, skip=1, timeout_s=60)")
        terminal.wait_for("(rank 2) ")
        time.sleep(2.5)
        terminal.type("value = 100\n")
        terminal.wait_for("(rank 2) ")
        terminal.type("n\n")  # the others go on, and we step
        terminal.wait_for("-> value += 1")
        terminal.type("c\n")
        assert terminal.end() == 0
        for line in ("sum 3.0 42", "sum 3.0 43", "sum 3.0 101"):
            assert line in terminal.all


def test_a_breakpoint_set_in_the_debugger_is_met(tmp_path: Path) -> None:
    text = FACE + "dist.breakpoint(0)\nx += 1\nx += 2\nprint('x is', x[0])\n"
    with job(tmp_path, text) as terminal:
        terminal.wait_for("(rank 0) ")
        terminal.type("b 8\n")
        terminal.wait_for("(rank 0) ")
        terminal.type("c\n")
        terminal.wait_for("-> x += 2")
        terminal.type("c\n")
        assert terminal.end() == 0
        assert terminal.all.count("x is 4.0") == 3


def test_quitting_ends_the_job(tmp_path: Path) -> None:
    with job(tmp_path, FACE + "dist.breakpoint(1)\n") as terminal:
        terminal.wait_for("(rank 1) ")
        terminal.type("q\n")
        assert terminal.end() == 1
        assert "BdbQuit" in terminal.all


def test_a_rank_that_does_not_exist(tmp_path: Path) -> None:
    with job(tmp_path, FACE + "dist.breakpoint(3)\n") as terminal:
        assert terminal.end() == 1
        assert "rank is 3, and group 'world' has 3 ranks" in terminal.all


def test_without_a_terminal_it_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1': breakpoint()\n")
    done = subprocess.run(
        [*UNISONO, "run", "-n", "2", str(script)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        start_new_session=True,
    )
    assert done.returncode == 1
    assert (
        "no terminal for a debugger; start the job in one with `unisono run --tty 1`"
        in (done.stderr.splitlines()[-1])
    )


BACKEND = """
import torch
import torch.distributed as dist
dist.init_process_group("unisono")
value = 40 + dist.get_rank()
{call}
dist.barrier()
print("passed", value)
"""


@pytest.mark.parametrize(
    ("call", "options", "prompt", "before"),
    [
        ("dist.group.WORLD.breakpoint(1)", [], "(rank 1) ", []),
        pytest.param(
            "dist.breakpoint(1)", ["--tty", "1"], "(Pdb) ", ["up"], marks=pytest.mark.thorough
        ),
    ],
    ids=["ours", "torch's"],
)
def test_the_backend_of_torch(
    call: str, options: list[str], prompt: str, before: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    with job(tmp_path, BACKEND.format(call=call), *options) as terminal:
        for command in [*before, "p value"]:
            terminal.wait_for(prompt)
            terminal.type(f"{command}\n")
        terminal.wait_for("41")
        terminal.type("c\n")
        assert terminal.end() == 0
        assert terminal.all.count("passed") >= 3


@pytest.mark.parametrize("tty", ["-1", "3"])
def test_a_terminal_for_a_rank_that_does_not_exist(tty: str, tmp_path: Path) -> None:
    with job(tmp_path, "print('ran')", "--tty", tty) as terminal:
        assert terminal.end() == 2
        assert f"--tty is {tty}; give a rank from 0 to 2" in terminal.all
