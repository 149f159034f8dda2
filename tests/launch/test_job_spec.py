"""`unisono run A : B`: several programs in one job, each with any interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.processes import DEADLINE
from unisono.launch import job_spec

UNISONO = [sys.executable, "-m", "unisono", "run"]

PREAMBLE = """
import os, sys, time
import numpy as np
rank = int(os.environ["RANK"])
"""

SUMMING = """
import unisono.torch.distributed as dist
dist.init_process_group()
x = np.full(2, 10.0 ** rank)
dist.all_reduce(x)
print("{name}", dist.get_rank(), "of", dist.get_world_size(), x[0])
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a script of this name that knows its rank, and return its path."""

    def write(name: str, body: str) -> str:
        path = tmp_path / name
        path.write_text(PREAMBLE + body)
        return str(path)

    return write


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, *arguments], capture_output=True, text=True, timeout=DEADLINE, **options
    )


def other_interpreter(folder: Path) -> str:
    """Make a program that is this interpreter under another name, and says so to the script."""
    path = folder / "other-python"
    path.write_text(f'#!/bin/sh\nMARK=other exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


# ---- one job -------------------------------------------------------------------------------------


def test_two_programs_make_one_world(script: Callable[[str, str], str]) -> None:
    first = script("first.py", SUMMING.format(name="first"))
    second = script("second.py", SUMMING.format(name="second"))
    done = run("-n", "1", first, ":", "-n", "2", second)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] first 0 of 3 111.0",
        "[1] second 1 of 3 111.0",
        "[2] second 2 of 3 111.0",
    ]


def test_each_program_has_its_own_arguments(script: Callable[[str, str], str]) -> None:
    path = script("script.py", "print(sys.argv[1:])")
    done = run("-n", "1", path, "a:b", "--flag", ":", "-n", "1", path, "--", "-n", ":", "-n1", path)
    assert sorted(done.stdout.splitlines()) == [
        "[0] ['a:b', '--flag']",
        "[1] ['--', '-n']",
        "[2] []",
    ]


def test_a_program_may_be_a_module(script: Callable[[str, str], str], tmp_path: Path) -> None:
    script("some_module.py", "print(__name__, rank, sys.argv[1:])")
    path = script("script.py", "print('script', rank)")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = run("-n", "1", "-m", "some_module", "x", ":", "-n", "1", path, env=variables)
    assert sorted(done.stdout.splitlines()) == ["[0] __main__ 0 ['x']", "[1] script 1"]


def test_options_of_the_job_are_for_every_program(
    script: Callable[[str, str], str], tmp_path: Path
) -> None:
    path = script("script.py", "print(os.environ['UNISONO_ENGINE'], os.environ['UNISONO_TIMEOUT'])")
    logs = tmp_path / "logs"
    options = ["--engine", "shm", "--timeout", "7", "--log-dir", str(logs)]
    done = run("-n", "1", *options, path, ":", "-n", "1", path)
    assert sorted(done.stdout.splitlines()) == ["[0] shm 7.0", "[1] shm 7.0"]
    assert [(logs / f"rank-{rank}.out").read_text() for rank in (0, 1)] == ["shm 7.0\n"] * 2


def test_cores_are_shared_among_all_programs(script: Callable[[str, str], str]) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    path = script("script.py", "print(sorted(os.sched_getaffinity(0)))")
    lines = run("-n", "1", path, ":", "-n", "1", path).stdout.splitlines()
    assert len({line.partition(" ")[2] for line in lines}) == 2


# ---- failures ------------------------------------------------------------------------------------


def test_a_failing_program_ends_the_other(script: Callable[[str, str], str]) -> None:
    waiting = script("waiting.py", "time.sleep(600)")
    failing = script("failing.py", "print('the cause', file=sys.stderr); sys.exit(7)")
    done = run("-n", "1", "--grace", "0.5", waiting, ":", "-n", "1", failing)
    assert done.returncode == 7
    assert done.stderr == "[1] the cause\nunisono: rank 1 of 2 failed: exit code 7\n"


def test_nothing_starts_if_a_program_is_wrong(
    script: Callable[[str, str], str], tmp_path: Path
) -> None:
    path = script("script.py", f"open({str(tmp_path / 'started')!r}, 'w')")
    done = run("-n", "1", path, ":", "-n", "1", str(tmp_path / "nowhere.py"))
    assert done.returncode == 2
    assert "there is no script" in done.stderr and "nowhere.py" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ([], "required: -n"),
        (["-n", "1"], "nothing to run"),
        (["-n", "0", "SCRIPT"], "the number of ranks is 0"),
        (["-n", "1", "--engine", "shm", "SCRIPT"], "--engine is for the whole job"),
        (["-n", "1", "--timeout", "0", "SCRIPT"], "--timeout is for the whole job"),
        (["-n", "1", "--log-dir", "x", "SCRIPT"], "--log-dir is for the whole job"),
        (["-n", "1", "--bind", "core", "SCRIPT"], "--bind is for the whole job"),
        (["-n", "1", "--python", "no-such-python", "SCRIPT"], "no program 'no-such-python'"),
    ],
)
def test_wrong_arguments(script: Callable[[str, str], str], second: list[str], text: str) -> None:
    path = script("script.py", "print('started')")
    done = run("-n", "1", path, ":", *(path if one == "SCRIPT" else one for one in second))
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


# ---- interpreters --------------------------------------------------------------------------------


def test_a_program_may_have_its_own_interpreter(
    script: Callable[[str, str], str], tmp_path: Path
) -> None:
    path = script("script.py", "print(os.environ.get('MARK', 'this'), rank)")
    other = other_interpreter(tmp_path)
    done = run("-n", "1", path, ":", "-n", "2", "--python", other, path, ":", "-n", "1", path)
    assert sorted(done.stdout.splitlines()) == [
        "[0] this 0",
        "[1] other 1",
        "[2] other 2",
        "[3] this 3",
    ]


def test_the_first_program_may_too(script: Callable[[str, str], str], tmp_path: Path) -> None:
    path = script("script.py", "print(os.environ.get('MARK', 'this'))")
    done = run("--python", other_interpreter(tmp_path), "-n", "1", path)
    assert done.stdout == "[0] other\n"


def test_an_interpreter_is_found_by_name(script: Callable[[str, str], str], tmp_path: Path) -> None:
    path = script("script.py", "print(os.environ.get('MARK', 'this'))")
    other_interpreter(tmp_path)
    variables = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = run("-n", "1", "--python", "other-python", path, env=variables)
    assert done.stdout == "[0] other\n"


# ---- reading the arguments -----------------------------------------------------------------------


def test_commands_are_in_rank_order() -> None:
    two = [
        job_spec.ProgramSpec(["a.py", "x"], 2, "one"),
        job_spec.ProgramSpec(["-m", "b"], 1, "two"),
    ]
    assert list(job_spec.command_lines(two)) == [
        ["one", "a.py", "x"],
        ["one", "a.py", "x"],
        ["two", "-m", "b"],
    ]


def test_only_a_lone_colon_divides() -> None:
    assert job_spec.split_at_colons(["a", "b:", ":c", "::"]) == [["a", "b:", ":c", "::"]]
    assert job_spec.split_at_colons(["a", ":", ":"]) == [["a"], [], []]
