"""`unisono.shared_arrays` in the NumPy that MindSpore needs, which is older than the tests' own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.array_cases import NUMPY
from tests.helpers.jobs import Ranks

COMM_FUNC = """
import unisono
from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func
communication.init()
with unisono.shared_arrays():
    given = np.full(100_000, rank + 1.0)
    total, _ = comm_func.all_reduce(given)
assert (total == 3).all() and (given == rank + 1).all()
whole = unisono.empty(50_000, np.float16)
whole[:] = rank
parts, _ = comm_func.all_gather_into_tensor(whole)
say(right=parts.reshape(2, -1).mean(axis=1).tolist())
"""


def test_numpys_own_allocator() -> None:
    pytest.importorskip("mindspore")
    with Ranks(1, NUMPY) as job:
        assert job[0].read() == {"done": np.__version__}


def test_the_other_dialect() -> None:
    with Ranks(2, COMM_FUNC, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"right": [0.0, 1.0]}] * 2
