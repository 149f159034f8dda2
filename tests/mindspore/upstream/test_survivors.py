"""Survivors of a lost rank under `unisono run --patch mindspore`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mindspore")

from tests.helpers.launcher import run
from tests.helpers.thorough import essential

LOSS = """
import os, signal
import numpy as np
import mindspore as ms
import mindspore.communication as comm
from mindspore.communication.comm_func import all_reduce
comm.init()
x = ms.Tensor(np.ones(4, np.float32))
for step in range(1000):
    if step == 20 and comm.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce(x)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("again", essential(1, range(4)))
def test_survivors_can_tell(again: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOSS)
    done = run("-n", "3", "--patch", "mindspore", str(script), timeout=120)
    assert done.returncode == 137
    assert "PeerLost: rank 1 (pid " in done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "unisono: failed as well: ranks 0, 2 (exit code 1)",
        "unisono: rank 1 of 3 failed: killed by SIGKILL",
    ]
