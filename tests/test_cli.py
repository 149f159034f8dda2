"""The command line, each call in a separate process."""

from __future__ import annotations

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
        (
            ["run", "-n", "2", "--eng", "shm", "missing.py"],
            "unisono run: unrecognized arguments: --eng; see unisono run --help",
        ),
        (["run", "-n", "2", "--engine", "none", __file__], "unisono: no engine 'none'; there are"),
        (["run", "-n", "2", "--timeout", "-1", __file__], "unisono: timeout is -1.0"),
        (["run", "-n", "1", __file__, ":", "-n", "1", "--eng"], "unisono run: unrecognized"),
        (["doctor", "--nonsense"], "unisono doctor: unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    pipe = subprocess.Popen(
        [*UNISONO, "diff", "groups"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert pipe.stdout is not None and pipe.stderr is not None
    pipe.stdout.close()
    err = pipe.stderr.read()
    pipe.stderr.close()
    assert (pipe.wait(30), err) == (141, "")


@pytest.mark.parametrize("arguments", ["diff groups", "run -n 2 -m this"])
def test_without_standard_output(arguments: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m unisono {arguments} >&-', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_standard_error() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m unisono run -n 2 -m this 2>&-', sys.executable],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout.count("The Zen of Python") == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*UNISONO, "diff", "groups"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    expected = "unisono: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_for_the_output_of_ranks() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*UNISONO, "run", "-n", "2", "-m", "this"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert "unisono: cannot write the output of the ranks: No space left" in done.stderr
