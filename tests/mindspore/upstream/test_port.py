"""The statements that `unisono port` writes do on MindSpore's tensors what they do on torch's."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func


def copies() -> list[Any]:
    """As in tests/port/cases/torch/mindspore_comm_func: other names must see each result."""
    mindspore = pytest.importorskip("mindspore")
    rank, size = comm.get_rank(), comm.get_group_size()
    total = mindspore.Tensor(np.full(2, rank + 1.0, np.float32))
    alias = total
    total[...] = comm_func.all_reduce(total)[0]
    parts = [mindspore.Tensor(np.zeros(2, np.float32)) for _ in range(size)]
    first = parts[0]
    pieces = comm_func.all_gather_into_tensor(total)[0].chunk(len(parts))
    for part, piece in zip(parts, pieces, strict=True):
        part[...] = piece
    rows = mindspore.Tensor(np.zeros((size, 2), np.float32))
    same = rows
    rows[...] = comm_func.all_gather_into_tensor(total)[0].reshape(rows.shape)
    scalar = mindspore.Tensor(np.float32(0))
    number = scalar
    scalar[...] = comm_func.all_reduce(mindspore.Tensor(np.array([2.0], np.float32)))[0]
    return [alias.tolist(), first.tolist(), same.tolist(), number.tolist()]


def test_results_are_copied_back() -> None:
    pytest.importorskip("mindspore")
    expected = [[3.0, 3.0], [3.0, 3.0], [[3.0, 3.0], [3.0, 3.0]], 4.0]
    assert unisono.spawn(copies, 2, timeout=60) == [expected, expected]


def test_primitives_on_tensors_of_mindspore() -> None:
    """Ported to primitives, a layer computes what torch's calls would."""
    pytest.importorskip("mindspore")
    path = Path(__file__).parents[2] / "port/cases/upstream/mindspore_ops/layer.py"
    source = path.read_text()
    for old in ("from mindspore import ops", "import mindspore.communication"):
        assert old in source
        source = source.replace(old, old.replace(" mindspore", " unisono.mindspore", 1))
    module = types.ModuleType("program")
    exec(compile(source, str(path), "exec"), module.__dict__)
    first, second = unisono.spawn(module.main, 2, timeout=60)
    assert first == [[6.0, 6.0], [4.0, 4.0], [4.0] * 4, [8.0, 8.0], [8.0, 8.0]]
    assert second == [[3.0, 3.0], [4.0, 4.0], [4.0] * 4, [60.0, 60.0], [8.0, 8.0]]
