"""What travels to ranks that are processes, with and without cloudpickle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import DEADLINE
from unisono.errors import ArgumentTypeError
from unisono.notebook import transfer

PROGRAM = """
import os, sys
if sys.argv[1] == "without":
    sys.modules["cloudpickle"] = None  # as if it were not installed
import unisono

factor = 3

def scaled(value):
    return factor * value

with unisono.ranks(2, engine="shm") as ranks:
    print(len(set(ranks(os.getpid))), flush=True)
    for function in (scaled, lambda value: value + factor):
        try:
            print(ranks(function, 5))
        except unisono.ArgumentTypeError as error:
            print(error)
"""


@pytest.mark.parametrize("how", ["with", "without"])
def test_functions_of_a_script_without_a_guard(tmp_path: Path, how: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, path, how], capture_output=True, text=True, timeout=DEADLINE
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "2"
    if how == "with":
        assert lines[1:] == ["[15, 15]", "[8, 8]"]
    else:
        assert "scaled is defined in __main__; install cloudpickle" in lines[1]
        assert "pip install 'cloudpickle" in lines[1]
        assert "<lambda> is defined in __main__" in lines[2]


def test_what_has_no_name_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert transfer.loads(transfer.pack(os.getpid, "a function")) is os.getpid
    with pytest.raises(ArgumentTypeError, match="inside a function; install cloudpickle"):
        transfer.pack(lambda: None, "a function")
