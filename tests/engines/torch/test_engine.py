"""The torch engine beside the user's own torch.distributed, over other backends, and on a GPU.

What it computes is compared by the conformance suite, which runs on it as on every engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import unisono  # noqa: E402  (comes after the check that torch is there)
import unisono.torch.distributed as ours  # noqa: E402
from unisono.core import registry  # noqa: E402
from unisono.errors import ArgumentError, LaunchError, Unsupported  # noqa: E402

DEADLINE = 90
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def run(tmp_path: Path, code: str, n: int = 2) -> list[str]:
    """The line that each of n ranks prints."""
    script = tmp_path / "job.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "run", "-n", str(n), str(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition(" ")[2] for line in sorted(done.stdout.splitlines())]


USES_THE_GROUP_THAT_IS_THERE = """
import torch
import torch.distributed as dist
import unisono.torch.distributed as ours
from unisono.core import groups

dist.init_process_group("gloo")
ours.init_process_group("torch")
assert groups.world().engine._group is dist.group.WORLD
x, y = torch.ones(3) * dist.get_rank(), torch.ones(2)
ours.all_reduce(x)
dist.all_reduce(y)  # the user's own calls go on
half = ours.new_group([0])
ours.destroy_process_group()
dist.barrier()  # and so does the group
dist.destroy_process_group()  # Gloo's threads may abort a process that ends before them
print(x.tolist(), y.tolist())
"""

STANDS_BESIDE_TORCH = """
import torch
import torch.distributed as dist
import unisono.torch.distributed as ours

ours.init_process_group("torch:gloo")
x, y = torch.ones(3), torch.ones(2)
ours.all_reduce(x)
assert not dist.is_initialized()
dist.init_process_group("gloo")
dist.all_reduce(y)
ours.all_reduce(x)
dist.destroy_process_group()
ours.all_reduce(x)
print(x.tolist(), y.tolist())
"""

OVER_A_BACKEND_OF_A_THIRD_PARTY = """
import numpy as np
import unisono.torch.backend
import unisono.torch.distributed as ours

ours.init_process_group("torch:unisono")
x = np.arange(4) * (1 + ours.get_rank())
ours.all_reduce(x)
y = np.zeros(2, np.int64)
ours.reduce_scatter_tensor(y, x)
print(x.tolist(), y.tolist())
"""


@pytest.mark.thorough
def test_uses_the_default_group_if_there_is_one(tmp_path):
    assert run(tmp_path, USES_THE_GROUP_THAT_IS_THERE) == ["[1.0, 1.0, 1.0] [2.0, 2.0]"] * 2


@pytest.mark.thorough
def test_stands_beside_what_the_user_does_with_torch(tmp_path):
    assert run(tmp_path, STANDS_BESIDE_TORCH) == ["[8.0, 8.0, 8.0] [2.0, 2.0]"] * 2


@pytest.mark.thorough
def test_runs_over_a_registered_backend(tmp_path):
    lines = run(tmp_path, OVER_A_BACKEND_OF_A_THIRD_PARTY)
    assert lines == ["[0, 3, 6, 9] [0, 6]", "[0, 3, 6, 9] [12, 18]"]


def test_backends_that_are_not_there_are_refused_with_those_that_are():
    reason = registry.load("torch:nonsense").unavailable()
    assert "no backend 'nonsense'" in reason and "gloo" in reason
    with pytest.raises(ArgumentError, match="torch:gloo"):
        registry.load("torch:")


def test_several_ranks_need_an_address(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UNISONO_RANK", "0")
    monkeypatch.setenv("UNISONO_SIZE", "2")
    monkeypatch.setenv("UNISONO_JOB", "somewhere")
    with pytest.raises(LaunchError, match="MASTER_ADDR and MASTER_PORT must be set"):
        ours.init_process_group("torch:gloo")


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def alone_on_a_gpu():
    ours.init_process_group("torch:nccl")  # one GPU is one rank for nccl
    yield torch.device("cuda", 0)
    ours.destroy_process_group()


@GPU
def test_tensors_stay_on_the_gpu(alone_on_a_gpu):
    x = torch.arange(6.0, device=alone_on_a_gpu)
    place = x.data_ptr()
    ours.all_reduce(x)
    ours.all_reduce(x[::2], op=ours.ReduceOp.MAX)  # not contiguous
    ours.broadcast(x, 0)
    ours.reduce(x, 0)
    work = ours.all_reduce(x, async_op=True)
    work.wait()
    assert x.data_ptr() == place and x.tolist() == [0, 1, 2, 3, 4, 5]


@GPU
def test_every_collective_has_its_result_on_the_gpu(alone_on_a_gpu):
    x = torch.arange(4, device=alone_on_a_gpu, dtype=torch.int32)

    def room():
        return torch.zeros_like(x)

    outputs = [room() for _ in range(7)]
    ours.all_gather_into_tensor(outputs[0], x)
    ours.all_gather([outputs[1]], x)
    ours.reduce_scatter_tensor(outputs[2], x)
    ours.all_to_all_single(outputs[3], x)
    ours.all_to_all([outputs[4]], [x])
    ours.gather(x, [outputs[5]], dst=0)
    ours.scatter(outputs[6], [x], src=0)
    for index, output in enumerate(outputs):
        assert output.is_cuda and output.tolist() == [0, 1, 2, 3], index
    ours.barrier()


@GPU
@pytest.mark.parametrize("make", ["Stream", "default_stream"])
@pytest.mark.parametrize("async_op", [False, True])
def test_calls_follow_the_stream_of_the_caller(alone_on_a_gpu, async_op, make):
    with torch.cuda.stream(getattr(torch.cuda, make)(alone_on_a_gpu)):
        x = torch.zeros(1 << 20, device=alone_on_a_gpu)
        output = torch.empty_like(x)
        torch.cuda._sleep(1 << 28)  # cycles: about a tenth of a second
        x.fill_(3)
        work = ours.all_gather_into_tensor(output, x, async_op=async_op)
    if async_op:
        work.wait()
    assert bool((output == 3).all())  # in the default stream


@GPU
def test_engines_of_the_host_refuse_tensors_of_a_gpu(alone_on_a_gpu):
    def total() -> None:
        with pytest.raises(Unsupported, match="reaches memory of cpu only"):
            ours.all_reduce(torch.ones(2, device=alone_on_a_gpu))

    unisono.spawn(total, 1)
    with pytest.raises(Unsupported, match="reaches memory of cuda only"):
        ours.all_reduce(np.ones(2))
