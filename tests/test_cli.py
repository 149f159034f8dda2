"""The command line, each call in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **variables},
    )


def test_version() -> None:
    done = call("--version")
    assert (done.returncode, done.stdout) == (0, f"unisono {version('unisono')}\n")


def test_help_names_the_commands_and_loads_none() -> None:
    program = (
        "import sys; from unisono.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'unisono.launch.run', 'unisono.tools'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.endswith("set()\n")
    for command in ("run", "demo", "bench", "doctor"):
        assert f"\n    {command} " in done.stdout


def test_the_installed_command() -> None:
    command = Path(sys.executable).parent / "unisono"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"unisono {version('unisono')}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "required: command"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["run", "script.py"], "required: -n"),
        (["run", "-n", "two", "script.py"], "argument -n: invalid int value: 'two'"),
        (["run", "-n", "2"], "unisono: nothing to run"),
        (["run", "-n", "2", "-m"], "unisono: nothing to run"),
        (["run", "-n", "0", "script.py"], "unisono: the number of ranks is 0"),
        (["run", "-n", "2", "missing.py"], "unisono: there is no script 'missing.py'"),
        (["run", "-n", "2", "--eng", "shm", "missing.py"], "unrecognized arguments: --eng"),
        (["run", "-n", "2", "--engine", "none", __file__], "unisono: no engine 'none'; there are"),
        (["run", "-n", "2", "--timeout", "-1", __file__], "unisono: timeout is -1.0"),
        (["doctor", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert text in done.stderr
    assert "Traceback" not in done.stderr


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


def test_doctor_shows_which_launcher_started_it() -> None:
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


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    pipe = subprocess.Popen(
        [*UNISONO, "diff", "groups"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert pipe.stdout is not None and pipe.stderr is not None
    pipe.stdout.close()
    err = pipe.stderr.read()
    pipe.stderr.close()
    assert (pipe.wait(30), err) == (141, "")
