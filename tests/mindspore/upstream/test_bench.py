"""`unisono bench faces` measures MindSpore tensors too, where MindSpore is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from unisono.tools.bench import faces

BENCH = ("-m", "unisono", "bench", "faces", "--json", "--rounds", "2", "--seconds", "0.01")


@pytest.mark.thorough
@pytest.mark.parametrize("engine_name", ["shm", "threads"])
def test_mindspore_tensors(engine_name):
    pytest.importorskip("mindspore")
    done = subprocess.run(
        [sys.executable, *BENCH, "--engine", engine_name],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ways = [way for way in faces.WAYS if "backend" not in way]
    assert list(found["microseconds"]["numpy"]) == ways
    assert list(found["microseconds"]["mindspore"]) == ways
    assert ("torch" in found["microseconds"]) == (find_spec("torch") is not None)
    for times in found["rounds"]["mindspore"].values():
        assert len(times) == 2 and min(times) > 0
