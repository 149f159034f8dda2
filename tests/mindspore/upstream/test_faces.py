"""Real MindSpore tensors through both faces: the result is of the kind that was given."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.thorough import essential

mindspore = pytest.importorskip("mindspore")

import unisono  # noqa: E402  (after the check for MindSpore)
import unisono.torch.distributed as dist  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402


def given(rank: int) -> object:
    return mindspore.Tensor(np.arange(4, dtype=np.float32) + 10 * rank)


def functional() -> list:
    x = given(dist.get_rank())
    total, handle = comm_func.all_reduce(x)
    assert handle is None and isinstance(total, mindspore.Tensor)
    assert x.asnumpy().tolist() == given(dist.get_rank()).asnumpy().tolist()
    later, handle = comm_func.all_reduce(x, "max", async_op=True)
    handle.wait()
    gathered, _ = comm_func.all_gather_into_tensor(x)
    part, _ = comm_func.reduce_scatter_tensor(x)
    root = comm_func.reduce(x, 0)
    return [t.asnumpy().tolist() for t in (total, later, gathered, part, root)]


def in_place() -> list:
    x = given(dist.get_rank())
    dist.all_reduce(x)
    return x.asnumpy().tolist()


@pytest.mark.parametrize("kind", essential(1, ["threads", "shm"]))
def test_functional_face(kind: str) -> None:
    first, second = unisono.spawn(functional, 2, engine=kind, timeout=60)
    total = [10, 12, 14, 16]
    assert first == [total, [10, 11, 12, 13], [0, 1, 2, 3, 10, 11, 12, 13], [10, 12], total]
    assert second[3:] == [[14, 16], [0, 0, 0, 0]]


@pytest.mark.parametrize("kind", essential(1, ["threads", "shm"]))
def test_in_place_face(kind: str) -> None:
    assert unisono.spawn(in_place, 2, engine=kind, timeout=60) == [[10, 12, 14, 16]] * 2
