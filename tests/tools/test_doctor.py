"""`unisono doctor`: what it finds, as JSON, as a table in a pipe and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib.metadata import version

import pytest

MAIN = "from unisono.cli import main; sys.exit(main())"
UNISONO = [sys.executable, "-c", f"import sys; {MAIN}"]
#: The same where mpi4py is not installed.
WITHOUT_MPI = [sys.executable, "-c", f"import sys; sys.modules['mpi4py'] = None; {MAIN}"]


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **variables},
    )


def test_doctor_json() -> None:
    done = call("doctor", "--json")
    findings = json.loads(done.stdout)
    assert findings["unisono"] == version("unisono")
    assert findings["frameworks"]["numpy"] == version("numpy")
    assert findings["engines"]["threads"] == {"runs": True, "reason": None, "gaps": []}
    assert findings["engines"]["hybrid"]["gaps"][0].keys() == {"what", "reason"}
    assert findings["host"]["cores"] == len(os.sched_getaffinity(0))
    assert findings["host"]["memory_available"] > 0
    shm = findings["engines"]["shm"]
    assert shm["runs"] == (shm["reason"] is None)
    assert done.returncode == (0 if shm["runs"] else 1)


def test_doctor_table() -> None:
    done = call("doctor")
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert ["engine", "threads", "runs"] in lines
    assert ["framework", "numpy", version("numpy")] in lines
    assert done.stderr == ""


def test_doctor_tells_which_launcher_it_sees() -> None:
    variables = {"UNISONO_RANK": "1", "UNISONO_SIZE": "3", "UNISONO_JOB": "job"}
    launcher = json.loads(call("doctor", "--json", **variables).stdout)["launcher"]
    assert launcher == {"source": "unisono", "rank": 1, "size": 3, "error": None}
    broken = json.loads(call("doctor", "--json", RANK="x", WORLD_SIZE="2").stdout)["launcher"]
    assert broken["source"] is None
    assert "RANK is 'x'" in broken["error"]


def test_doctor_imports_no_framework() -> None:
    program = (
        "import sys; from unisono.tools.doctor import command; command.examine()\n"
        "print({'torch', 'mindspore', 'jax', 'cupy', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "set()\n"


# ---- people read it ------------------------------------------------------------------------------


def on_a_terminal(command: list[str], columns: int) -> str:
    """What a command prints on a terminal of this width."""
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        env={**os.environ, "COLUMNS": str(columns)},
    ) as process:
        os.close(secondary)
        seen = b""
        try:
            while part := os.read(primary, 65536):
                seen += part
        except OSError:  # how Linux says that the other side is closed
            pass
        process.wait(30)
    os.close(primary)
    return seen.decode().replace("\r\n", "\n")


def test_a_hint_is_whole_on_a_terminal() -> None:
    shown = on_a_terminal([*WITHOUT_MPI, "doctor"], 150)
    assert "pip install 'mpi4py>=4' mpich" in shown


@pytest.mark.parametrize("columns", [60, 100])
def test_lines_fit_the_terminal(columns: int) -> None:
    lines = on_a_terminal([*UNISONO, "doctor"], columns).splitlines()
    assert any(line.startswith("engine  ") for line in lines)
    assert max(map(len, lines)) <= columns


def test_each_finding_is_one_line_in_a_pipe() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [*UNISONO, "doctor"], capture_output=True, text=True, timeout=30, env=variables
    )
    kinds = {"version", "engine", "gap", "framework", "host", "launcher"}
    assert {line.split()[0] for line in done.stdout.splitlines()} == kinds
