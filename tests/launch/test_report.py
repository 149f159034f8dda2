"""What ranks of every kind report about their error, with real programs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.processes import DEADLINE
from unisono.launch.outcome import Blame, ErrorSummary
from unisono.launch.report import VARIABLE, ErrorReports

LOST = ErrorSummary("PeerLost", Blame.LOST_A_PEER, "rank 0 is gone", (0,))


@pytest.fixture
def reports() -> Iterator[ErrorReports]:
    with contextlib.closing(ErrorReports(2)) as made:
        yield made


def run(reports: ErrorReports, *arguments: str, cwd: Path | None = None) -> str:
    """Run a Python program as rank 1 and return what it wrote to stderr."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, VARIABLE: reports.destination(1)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    ).stderr


FAILING = "from unisono.errors import PeerLost\nraise PeerLost('rank 0 is gone', [0])\n"


def test_a_script_a_module_and_a_command(reports: ErrorReports, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FAILING)
    for arguments in (["program.py"], ["-m", "program"], ["-c", FAILING]):
        with contextlib.closing(ErrorReports(2)) as fresh:
            err = run(fresh, *arguments, cwd=tmp_path)
            assert err.endswith("unisono.errors.PeerLost: rank 0 is gone\n")
            site = "" if arguments[0] == "-c" else "program.py:2"
            assert fresh.read(1) == replace(LOST, site=site), arguments
            assert fresh.read(0) is None


def test_any_error_after_the_import(reports: ErrorReports) -> None:
    run(reports, "-c", "import unisono; {}['missing']")
    assert reports.read(1) == ErrorSummary("KeyError", Blame.FAILED, "'missing'")


def test_a_hook_of_the_user_is_left_alone(reports: ErrorReports) -> None:
    program = "import sys\nsys.excepthook = lambda *_: sys.stderr.write('mine')\n" + FAILING
    assert run(reports, "-c", program) == "mine"
    assert reports.read(1) == LOST
    after = "import unisono, sys; print(sys.excepthook is sys.__excepthook__, file=sys.stderr)"
    assert run(reports, "-c", after) == "True\n"


@pytest.mark.thorough
def test_a_test_that_pytest_runs(reports: ErrorReports, tmp_path: Path) -> None:
    """As in `unisono run -n 2 -m pytest`: pytest catches the error, and remembers it."""
    (tmp_path / "test_it.py").write_text(
        "from unisono.errors import PeerLost\ndef test_it(): raise PeerLost('gone')\n"
    )
    run(reports, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py", cwd=tmp_path)
    assert reports.read(1) == ErrorSummary(
        "PeerLost", Blame.LOST_A_PEER, "gone", site="test_it.py:2"
    )


def test_a_rank_tells_whom_it_has_left_behind(reports: ErrorReports) -> None:
    program = "from unisono.core.environment import tell_supervisor\n"
    program += "tell_supervisor({'left_behind': [0]}); tell_supervisor({'left_behind': [2, 3]})\n"
    run(reports, "-c", program + FAILING)
    assert reports.left_behind(1) == {0, 2, 3}
    assert reports.left_behind(0) == set()
    assert reports.read(1) == LOST


@pytest.mark.parametrize(
    "program",
    [
        "import unisono",
        "import unisono, sys; sys.exit(3)",
        "import unisono, os; os._exit(3)",
        "import unisono, os; os.kill(os.getpid(), 9)",
        "raise ValueError('unisono was not imported')",
        "try:\n    " + FAILING.replace("\n", "\n    ") + "\nexcept RuntimeError: pass",
        "import unisono, os, sys\nif os.fork() == 0: raise ValueError\nos.wait()",
    ],
    ids=["fine", "exit", "quick exit", "killed", "no unisono", "handled", "forked child"],
)
def test_nothing_is_reported(reports: ErrorReports, program: str) -> None:
    run(reports, "-c", program)
    assert reports.read(1) is None


def failing(destination: str) -> str:
    """Let a rank fail that has to report there, and return what it wrote to stderr."""
    environment = {**os.environ, VARIABLE: destination}
    done = subprocess.run(
        [sys.executable, "-c", FAILING], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr


def test_a_supervisor_that_is_gone_is_no_further_error(reports: ErrorReports) -> None:
    gone = reports.destination(1)
    reports.close()
    assert failing(gone).endswith("unisono.errors.PeerLost: rank 0 is gone\n")


def test_a_file_of_another_program_is_left_alone(reports: ErrorReports, tmp_path: Path) -> None:
    """As in a container, where the number of the supervisor is that of another process."""
    path = tmp_path / "precious"
    path.write_text("data")
    with path.open() as stream:
        name = reports.destination(1).partition(" ")[2]
        err = failing(f"/proc/{os.getpid()}/fd/{stream.fileno()} {name}")
    assert err.endswith("unisono.errors.PeerLost: rank 0 is gone\n")
    assert path.read_text() == "data"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"type": "X"}', "\0", '{"error": 7}', '{"left_behind": [[]]}']
)
def test_a_report_that_was_cut_short_is_none(reports: ErrorReports, text: str) -> None:
    Path(reports.destination(0).partition(" ")[0]).write_text(text)
    assert reports.read(0) is None
    assert reports.left_behind(0) == set()


def test_outside_a_job_nothing_is_registered() -> None:
    program = (
        "import atexit; before = atexit._ncallbacks(); import unisono\n"
        "print(atexit._ncallbacks() - before)"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "0\n"
