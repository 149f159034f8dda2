"""`unisono bench ddp` measures steps of real DDP next to Gloo, and finds wrong gradients."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono import cli

pytestmark = pytest.mark.thorough

# A backend that does not add: every rank gets its own gradients back.
LAZY = """
import torch.distributed as dist
from torch.futures import Future
from unisono.tools.bench.ddp_rank import Training

class Done(dist.Work):
    def __init__(self, tensors):
        super().__init__()
        self.future = Future()
        self.future.set_result(tensors)
    def wait(self, timeout=None):
        return True
    def get_future(self):
        return self.future

class Lazy(dist.ProcessGroup):
    def allreduce(self, tensors, opts=None):
        return Done(tensors)
    def broadcast(self, tensors, opts=None):
        return Done(tensors)
    def allgather(self, outputs, inputs, opts=None):
        for output in outputs[0]:
            output.copy_(inputs[0])
        return Done(inputs)
    def setGroupName(self, name):
        pass

dist.Backend.register_backend(
    "lazy", lambda o, _: Lazy(o.group_rank, o.group_size), extended_api=True, devices=["cpu"]
)
dist.init_process_group("lazy")
Training(2000, dist.get_rank(), dist.get_world_size()).check()
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    short = ["--rounds", "2", "--seconds", "0.01", "--parameters", "2K,0.1M"]
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", "ddp", *short, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_table() -> None:
    pytest.importorskip("torch")
    done = call()
    assert done.returncode == 0, done.stderr
    title, legend, heads, *rows, _blank, load = done.stdout.splitlines()
    assert "other programs used" in load
    assert legend == "share: the part of the step that is communication"
    assert title.startswith("a step of DistributedDataParallel, 2 ranks, 32 samples each, float32")
    heads = heads.replace("no sync", "floor").split()
    assert heads == ["parameters", "floor", "unisono", "share", "gloo", "share", "gloo/unisono"]
    assert [row.split()[0] for row in rows] == ["2K", "0.1M"]
    for row in rows:
        assert row.count("%") == 2 and row.endswith("x")


def test_json_without_a_peer() -> None:
    pytest.importorskip("torch")
    done = call("--against", "", "-n", "3", "--parameters", "5000", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["batch"]) == (3, 32)
    (cell,) = found["cells"]
    assert cell["parameters"] == 5000
    assert list(cell["seconds"]) == ["no sync", "unisono"]
    assert all(0 < value < 10 for value in cell["seconds"].values())
    floor, step = cell["seconds"].values()
    assert cell["share"] == {"unisono": pytest.approx((step - floor) / step)}
    assert [len(times) for times in cell["rounds"]["unisono"].values()] == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "0"], "the number of ranks is 0"),
        (["--rounds", "0"], "the number of rounds is 0"),
        (["--against", "nobody"], "no peer 'nobody'; there are gloo"),
        (["--parameters", "999"], "'999' is not a number of parameters, 1000 or more; write 50K"),
        (["--parameters", "many"], "'many' is not a number of parameters"),
        (["--engine", "shm"], "`bench ddp` has no --engine; leave it out, or use"),
        (["--plot", "x.png"], "`bench ddp` has no --plot"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str) -> None:
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["bench", "ddp"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "needs torch: pip install 'torch>=" in shown.err


def test_a_backend_that_is_wrong_is_found(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "lazy.py"
    script.write_text(LAZY)
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "run", "-n", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "the gradient of 0.weight of step 0 is wrong on rank 0" in done.stderr
