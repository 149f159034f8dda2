"""The primitives, `ops.communication` and `mint.distributed` beside those of real MindSpore."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import ops as real_ops  # noqa: E402  (after the check for MindSpore)
from mindspore.mint import distributed as real_mint  # noqa: E402
from mindspore.ops import communication as real_communication  # noqa: E402

import unisono  # noqa: E402
from tests.helpers.mindspore_jobs import MINDSPORE_ALONE, run_job  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import get_rank  # noqa: E402
from unisono.mindspore.mint import distributed as mint  # noqa: E402
from unisono.mindspore.ops import communication  # noqa: E402

engines = pytest.mark.parametrize("kind", ["threads", "shm"])

# ---- signatures ----------------------------------------------------------------------------------

PRIMITIVES = [name for name in ops.__all__ if name not in ("communication", "ReduceOp")]


def parameters(thing: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults in order; annotations are ours alone."""
    signature = inspect.signature(thing)
    return [(entry.name, entry.kind, entry.default) for entry in signature.parameters.values()]


@pytest.mark.parametrize("name", PRIMITIVES)
def test_signature_of_a_primitive(name: str) -> None:
    assert parameters(getattr(ops, name)) == parameters(getattr(real_ops, name))


@pytest.mark.parametrize("name", communication.__all__)
def test_signature_in_ops_communication(name: str) -> None:
    assert parameters(getattr(communication, name)) == parameters(getattr(real_communication, name))


@pytest.mark.parametrize("name", mint.__all__)
def test_signature_in_mint(name: str) -> None:
    assert parameters(getattr(mint, name)) == parameters(getattr(real_mint, name))


def test_the_same_names() -> None:
    assert sorted(communication.__all__) == sorted(real_communication.__all__)
    assert sorted(mint.__all__) == sorted(real_mint.__all__)
    assert hasattr(real_mint, "TCPStore") and mint.TCPStore is communication.TCPStore
    values = {name: getattr(real_ops.ReduceOp, name) for name in ("SUM", "MAX", "MIN", "PROD")}
    assert {name: getattr(ops.ReduceOp, name) for name in values} == values


def test_the_same_functions_can_be_switched() -> None:
    from mindspore.ops.function import comm_func as upstream

    for name in upstream.comm_funcs:
        communication.set_comm_ops_inplace(True, [name])  # an unknown name would be an error
    for name in ("get_rank", "P2POp", "new_group"):
        for switch in (upstream.set_comm_ops_inplace, communication.set_comm_ops_inplace):
            with pytest.raises(ValueError, match=name):
                switch(True, [name])


# ---- real tensors --------------------------------------------------------------------------------


def given(rank: int, dtype: Any = np.float32) -> Any:
    return mindspore.Tensor(np.arange(6).reshape(2, 3).astype(dtype) * (rank + 1) + 1)


def real_tensors() -> dict[str, Any]:
    rank = get_rank()
    x = given(rank)
    seen = {
        "AllReduce": ops.AllReduce()(x),
        "AllGather": ops.AllGather()(x),
        "Broadcast": ops.Broadcast(1)(x),
        "Broadcast tuple": ops.Broadcast(1)((x,))[0],
        "ReduceScatter": ops.ReduceScatter("max")(x),
        "Reduce": ops.Reduce(0)(x),
        "AlltoAll": ops.AlltoAll(2, 0, 1)(x),
    }
    assert all(isinstance(result, mindspore.Tensor) for result in seen.values())
    assert x.asnumpy().tolist() == given(rank).asnumpy().tolist()
    if rank == 0:
        ops.Send(0, 1)(x)
    else:
        seen["Receive"] = ops.Receive(0, 0, [2, 3], mindspore.float32)()
        assert isinstance(seen["Receive"], mindspore.Tensor)
    for op in ("sum", "prod", "min", "max", "avg"):
        total = given(rank)
        assert mint.all_reduce(total, op) is None
        seen[f"mint {op}"] = total
    half = given(rank, np.float32).astype(mindspore.bfloat16)
    mint.all_reduce(half, async_op=True).wait()
    seen["mint bfloat16"] = half.astype(mindspore.float32)
    into = [mindspore.ops.zeros((2, 3), mindspore.float32) for _ in range(2)]
    mint.all_gather(into, x)
    seen["mint all_gather"] = mindspore.ops.concat(into)
    copied = given(rank)
    communication.broadcast(copied, 1)
    seen["mint broadcast"] = copied
    return {name: result.asnumpy().tolist() for name, result in seen.items()}


@engines
def test_real_tensors(kind: str) -> None:
    # MindSpore may abort if two threads run its very first operator at the same time.
    mindspore.mint.empty((1,), dtype=mindspore.float32).data_ptr()
    inputs = [np.arange(6).reshape(2, 3) * (rank + 1) + 1 for rank in range(2)]
    total = np.sum(inputs, axis=0)
    for rank, seen in enumerate(unisono.spawn(real_tensors, 2, engine=kind, timeout=120)):
        assert seen["AllReduce"] == seen["mint sum"] == seen["mint bfloat16"] == total.tolist()
        assert seen["mint avg"] == (total / 2).tolist()
        assert seen["mint prod"] == np.prod(inputs, axis=0).tolist()
        assert seen["mint min"] == inputs[0].tolist()
        assert seen["mint max"] == inputs[1].tolist()
        joined = np.concatenate(inputs).tolist()
        assert seen["AllGather"] == seen["mint all_gather"] == joined
        from_one = [seen[name] for name in ("Broadcast", "Broadcast tuple", "mint broadcast")]
        assert from_one == [inputs[1].tolist()] * 3
        assert seen["ReduceScatter"] == [inputs[1].tolist()[rank]]
        assert seen["Reduce"] == (total.tolist() if rank == 0 else np.zeros((2, 3)).tolist())
        rows = np.concatenate([x[rank : rank + 1] for x in inputs], axis=1)
        assert seen["AlltoAll"] == rows.tolist()
        if rank == 1:
            assert seen["Receive"] == inputs[0].tolist()


# ---- the same program, with the prefix and without it --------------------------------------------

PROGRAM = """
import json, sys
import numpy as np
from mindspore import Tensor
from {prefix}mindspore import ops
from {prefix}mindspore.communication import init, get_rank
from {prefix}mindspore.mint import distributed as dist

init("mccl")
rank = get_rank()
values = np.array([[0.1, -2.5, 3.0], [1e-3, 7.0, 0.0]], np.float32)
def given():
    return Tensor(values * np.float32(rank + 1.3))
seen = {{}}
seen["AllReduce"] = ops.AllReduce()(given())
seen["AllGather"] = ops.AllGather()(given())
seen["Broadcast"] = ops.Broadcast(1)((given(),))[0]
for op in ("sum", "max", "min", "prod", "avg"):
    x = given()
    assert dist.all_reduce(x, op) is None
    seen["mint " + op] = x
into = [Tensor(np.zeros((2, 3), np.float32)) for _ in range(2)]
assert dist.all_gather(into, given()) is None
seen["mint all_gather 0"], seen["mint all_gather 1"] = into
x = given()
assert dist.broadcast(x, 1) is None
seen["mint broadcast"] = x
with open(sys.argv[1] + str(rank), "w") as file:
    json.dump({{name: result.asnumpy().tolist() for name, result in seen.items()}}, file)
"""


@pytest.mark.thorough
def test_the_same_program_gives_the_same_bits(tmp_path: Path) -> None:
    real = run_job(PROGRAM.format(prefix=""), tmp_path / "real", MINDSPORE_ALONE)
    ours = run_job(PROGRAM.format(prefix="unisono."), tmp_path / "ours")
    assert len(real[0]) == 11
    assert ours == real
