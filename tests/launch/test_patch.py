"""`--patch` and `unisono.patch` without a framework.

With one, see tests/torch/test_patch.py and tests/mindspore/upstream/test_patch.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import unisono
from unisono.launch.patch import patch_variables

WITHOUT_MINDSPORE = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is not None, reason="MindSpore is installed"
)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unisono", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "arguments",
    [("run", "-n", "1", "--patch", "numpy", __file__), ("patch", "numpy", "true")],
    ids=["run", "patch"],
)
def test_only_known_frameworks(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr == "unisono: cannot patch 'numpy'; there are mindspore, torch\n"


def test_only_known_frameworks_in_a_program() -> None:
    with pytest.raises(
        unisono.ArgumentError, match="cannot patch 'numpy'; there are mindspore, torch"
    ):
        unisono.patch("numpy")


@WITHOUT_MINDSPORE
@pytest.mark.parametrize(
    "arguments",
    [("run", "-n", "2", "--patch", "mindspore", __file__), ("patch", "mindspore", "true")],
    ids=["run", "patch"],
)
def test_a_framework_that_is_not_installed(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"unisono: cannot patch mindspore: mindspore is not installed in {sys.executable}\n"
    )


@WITHOUT_MINDSPORE
def test_a_framework_that_is_not_installed_in_a_program() -> None:
    with pytest.raises(unisono.LaunchError, match="No module named 'mindspore'"):
        unisono.patch("mindspore")


def test_nothing_to_run() -> None:
    done = command("patch", "mindspore")
    assert done.returncode == 2
    assert "nothing to run" in done.stderr


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["one", "two"]))
    variables = patch_variables("mindspore")
    assert variables["UNISONO_PATCH"] == "mindspore"
    folder, *others = variables["PYTHONPATH"].split(os.pathsep)
    assert (Path(folder) / "sitecustomize.py").exists()
    assert others == ["one", "two"]


def test_a_python_that_cannot_patch_does_not_go_on() -> None:
    variables = {**patch_variables("mindspore"), "UNISONO_PATCH": "nonsense"}
    done = subprocess.run(
        [sys.executable, "-c", "print('reached')"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot patch 'nonsense'" in done.stderr
