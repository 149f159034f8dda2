"""Gradients of a ported program, by their formulas: those of the sum of all ranks' losses."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import unisono

torch = pytest.importorskip("torch")
pytest.importorskip("libcst")

from unisono.port.port import port_source  # noqa: E402

RANKS = 3
LAYER = """
from mindspore import ops
{size}

class Layer:
    def __init__(self):
        self.call = {built}

    def construct(self, x):
        return self.call(x)
"""
FUNCTION = """
from mindspore.communication import comm_func


class Layer:
    def construct(self, x):
        out, _ = comm_func.{function}(x)
        return out
"""
SIZE = "from mindspore.communication import get_group_size\n"
#: Each primitive, the function that does the same, and the gradient of rank r's operand, where
#: `losses` are the gradients of all ranks' results.
CASES = {
    "all_reduce": ("ops.AllReduce()", lambda losses, rank: sum(losses)),
    "all_gather_into_tensor": (
        "ops.AllGather()",
        lambda losses, rank: sum(np.split(each, RANKS)[rank] for each in losses),
    ),
    "reduce_scatter_tensor": ("ops.ReduceScatter()", lambda losses, rank: np.concatenate(losses)),
    "all_to_all": (
        "ops.AlltoAll(get_group_size(), 0, 0)",
        lambda losses, rank: np.concatenate([np.split(each, RANKS)[rank] for each in losses]),
    ),
}


def weights(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.arange(1.0, count + 1) * (rank + 2) ** 2


def gradient_of(name: str, source: str) -> list[tuple[list[float], list[float]]]:
    """Each rank's gradient, and that of its result, from a backward of the ported program."""
    built = CASES[name][0]
    size = SIZE if "size" in built else ""
    module = types.ModuleType("program")
    ported = port_source(
        port_source(source.format(built=built, function=name, size=size), "torch"), "unisono"
    )
    exec(compile(ported, "program.py", "exec"), module.__dict__)

    def differentiate() -> tuple[list[float], list[float]]:
        import unisono.torch.distributed as dist

        x = torch.arange(float(2 * RANKS), dtype=torch.float64, requires_grad=True)
        out = module.Layer().construct(x * 1)
        given = weights(dist.get_rank(), out.numel())
        (out * torch.from_numpy(given)).sum().backward()
        assert x.grad is not None
        return x.grad.tolist(), given.tolist()

    return unisono.spawn(differentiate, RANKS)


@pytest.mark.parametrize(
    ("name", "source"),
    [(name, LAYER) for name in CASES] + [(name, FUNCTION) for name in list(CASES)[:3]],
)
def test_gradients_pass(name: str, source: str) -> None:
    found = gradient_of(name, source)
    losses = [np.array(given) for _, given in found]
    for rank, (gradient, _) in enumerate(found):
        np.testing.assert_allclose(gradient, CASES[name][1](losses, rank))
