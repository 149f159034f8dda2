"""Lines of ranks as they come, on a terminal and in pipes, with real jobs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.helpers.launcher import UNISONO, Terminal, run, screen_of
from tests.helpers.processes import DEADLINE

PREAMBLE = """
import os, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
def wait(name):
    while not Path(name).exists():
        time.sleep(0.01)
"""


def write(folder: Path, body: str) -> str:
    path = folder / "script.py"
    path.write_text(PREAMBLE + body)
    return str(path)


def test_a_prompt_is_there_before_the_answer(tmp_path: Path) -> None:
    body = "if rank == 0:\n  print('hello', input('your name? '))"
    with Terminal(*UNISONO, "run", "-n", "2", write(tmp_path, body)) as terminal:
        terminal.wait_for("your name? ")
        terminal.type("Ada\n")
        assert terminal.end() == 0
        shown = screen_of(terminal.all)
    assert shown == ["[0] your name? Ada", "hello Ada", ""]


def test_each_rank_has_a_live_line(tmp_path: Path) -> None:
    """Bars are rewritten in place, finished lines stay above them."""
    body = """
for step in range(4):
    sys.stderr.write(f"\\rrank {rank}: step {step}")
    time.sleep(0.3)
    if step == 2 and rank == 0:
        print("three steps")
        Path("told").touch()
    if step == 2:
        wait("told")
        wait("seen")
sys.stderr.write(" done\\n")
"""
    with Terminal(*UNISONO, "run", "-n", "2", write(tmp_path, body), cwd=tmp_path) as terminal:
        terminal.wait_for("three steps")
        terminal.wait_for("step 2")
        terminal.wait_for("step 2")
        middle = screen_of(terminal.all)
        (tmp_path / "seen").touch()
        assert terminal.end() == 0
        end = screen_of(terminal.all)
    assert middle == ["[0] three steps", "[1] rank 1: step 2", "[0] rank 0: step 2"]
    assert end[0] == "[0] three steps" and end[3:] == [""]
    assert sorted(end[1:3]) == ["[0] rank 0: step 3 done", "[1] rank 1: step 3 done"]


def test_a_live_line_takes_one_line_of_the_terminal(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"sys.stderr.write('x' * 100); wait({str(seen)!r}); sys.stderr.write('y\\n')"
    with Terminal(*UNISONO, "run", "-n", "2", write(tmp_path, body), size=(24, 40)) as terminal:
        terminal.wait_for("x" * 35)
        terminal.wait_for("x" * 35)
        terminal.wait_for("x" * 35)
        live = screen_of(terminal.all)
        seen.touch()
        terminal.end()
    assert sorted(live) == [f"[{rank}] {'x' * 35}" for rank in (0, 1)]


def test_a_line_without_an_end_reaches_a_pipe(tmp_path: Path) -> None:
    body = "sys.stdout.write('ready?')\nwait('seen')\nprint(' yes')"
    job = subprocess.Popen(
        [*UNISONO, "run", "-n", "1", write(tmp_path, body)], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert job.stdout is not None
    assert job.stdout.read(10) == b"[0] ready?"
    (tmp_path / "seen").touch()
    assert job.communicate(timeout=DEADLINE)[0] == b" yes\n"


def test_in_a_pipe_a_line_is_not_lost_when_another_rank_writes(tmp_path: Path) -> None:
    body = """
if rank == 0:
    sys.stdout.write("waiting ")
    wait("told")
    print("no more")
else:
    time.sleep(1)
    print("here")
    time.sleep(1)
    Path("told").touch()
"""
    out = run("-n", "2", write(tmp_path, body), cwd=tmp_path).stdout
    assert out == "[0] waiting \n[1] here\n[0] waiting no more\n"


def test_what_a_carriage_return_overwrites_is_not_in_the_lines(tmp_path: Path) -> None:
    """In a pipe a few versions of a bar may be seen, but the last one is whole; logs have all."""
    body = "for i in range(50): sys.stderr.write(f'\\r{i} of 49')\nsys.stderr.write('\\r\\n')"
    logs = tmp_path / "logs"
    err = run("-n", "1", "--log-dir", str(logs), write(tmp_path, body)).stderr
    assert re.split(r"[\r\n]", err)[-2] == "[0] 49 of 49"
    assert (logs / "rank-0.err").read_bytes().count(b"\r") == 51


def test_with_a_terminal_for_one_rank_nothing_moves_the_cursor(tmp_path: Path) -> None:
    body = """
if rank == 1:
    assert os.isatty(0) and os.isatty(1) and os.isatty(2)
    print("hello", input("your name? "))
else:
    sys.stderr.write("\\rone"); time.sleep(0.3); sys.stderr.write("\\rtwo\\n")
"""
    with Terminal(*UNISONO, "run", "-n", "3", "--tty", "1", write(tmp_path, body)) as terminal:
        terminal.wait_for("your name? ")
        terminal.type("Ada\n")
        terminal.wait_for("hello Ada")
        assert terminal.end() == 0
        assert "A" not in re.findall(r"\x1b\[[0-9;]*([A-Za-z])", terminal.all)
