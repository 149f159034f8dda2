"""One job, two environments: a torch tensor on rank 0, a MindSpore tensor on rank 1."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.paths import mindspore_python

TORCH = """
import torch
import unisono.torch.distributed as dist

dist.init_process_group()
x = torch.arange(4, dtype=torch.float32)
dist.all_reduce(x)
print("sum", type(x).__module__, x.tolist())
y = torch.full((2, 2), 3.0)
dist.broadcast(y, 0)
parts = [torch.empty(2), torch.empty(2)]
dist.all_gather(parts, torch.tensor([0.5, 1.5]))
print("gathered", [part.tolist() for part in parts])
dist.destroy_process_group()
"""

MINDSPORE = """
import mindspore
import numpy as np
from mindspore import Tensor
from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func

communication.init()
given = Tensor(np.full(4, 10, np.float32))
x, _ = comm_func.all_reduce(given)
print("sum", type(x).__module__.partition(".")[0], x.asnumpy().tolist())
y = comm_func.broadcast(Tensor(np.zeros((2, 2), np.float32)), 0)
print("received", y.asnumpy().tolist(), given.asnumpy().tolist())
parts, _ = comm_func.all_gather_into_tensor(Tensor(np.array([2.5, 3.5], np.float32)))
print("gathered", parts.asnumpy().tolist())
communication.release()
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the two ranks print, sorted."""
    pytest.importorskip("torch")
    python = mindspore_python()
    folder = tmp_path_factory.mktemp("two environments")
    (folder / "a.py").write_text(TORCH)
    (folder / "b.py").write_text(MINDSPORE)
    done = subprocess.run(
        [
            *[sys.executable, "-m", "unisono", "run", "--timeout", "100", "-n", "1"],
            *[str(folder / "a.py"), ":", "-n", "1", "--python", python, str(folder / "b.py")],
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_a_torch_tensor_and_a_mindspore_tensor_are_summed(lines: list[str]) -> None:
    assert "[0] sum torch [10.0, 11.0, 12.0, 13.0]" in lines
    assert "[1] sum mindspore [10.0, 11.0, 12.0, 13.0]" in lines


@pytest.mark.thorough
def test_the_mindspore_input_does_not_change(lines: list[str]) -> None:
    assert "[1] received [[3.0, 3.0], [3.0, 3.0]] [10.0, 10.0, 10.0, 10.0]" in lines


@pytest.mark.thorough
def test_one_gather_fills_a_list_in_torch_and_a_tensor_in_mindspore(lines: list[str]) -> None:
    assert "[0] gathered [[0.5, 1.5], [2.5, 3.5]]" in lines
    assert "[1] gathered [0.5, 1.5, 2.5, 3.5]" in lines
