"""CuPy arrays through both faces, where there is a GPU: they travel through host memory."""

from __future__ import annotations

import pytest

cupy = pytest.importorskip("cupy")

import unisono  # noqa: E402  (comes after the check that CuPy is there)
import unisono.torch.distributed as dist  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402


def run_all() -> list:
    rank = dist.get_rank()
    x = cupy.arange(4, dtype=cupy.float32) + 10 * rank
    y, _ = comm_func.all_reduce(x)
    z, handle = comm_func.all_reduce(x, "max", async_op=True)
    handle.wait()
    gathered, _ = comm_func.all_gather_into_tensor(x[::2])
    assert all(isinstance(result, cupy.ndarray) for result in (y, z, gathered))
    assert x.tolist() == [10 * rank + i for i in range(4)]
    dist.all_reduce(x)
    strided = cupy.zeros((2, 4), cupy.int64) + rank
    dist.broadcast(strided[:, 1], 1)
    return [result.tolist() for result in (x, y, z, gathered, strided)]


def test_both_faces() -> None:
    first, second = unisono.spawn(run_all, 2)
    total = [10, 12, 14, 16]
    expected = [total, total, [10, 11, 12, 13], [0, 2, 10, 12]]
    assert first == [*expected, [[0, 1, 0, 0]] * 2]
    assert second == [*expected, [[1, 1, 1, 1]] * 2]
