"""`unisono.mindspore.ops` (primitives) and `ops.communication` (in place, or not)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core import groups
from unisono.core.groups import Group
from unisono.mindspore import ops
from unisono.mindspore.communication import create_group, destroy_group, get_rank
from unisono.mindspore.ops import communication as comm

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
libraries = pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch)])
World = Callable[..., list[Any]]


def make(library: str, values: Any, dtype: str = "float32") -> Any:
    if library == "numpy":
        return np.array(values, dtype)
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


def dtype_of(library: str, name: str) -> Any:
    return make(library, [], name).dtype


def run(world: World, n: int, function: Any, library: str) -> list[Any]:
    return world(n, _call, function, library)


def _call(_: Group, function: Any, library: str) -> Any:
    return function(library)


# ---- primitives ----------------------------------------------------------------------------------

# Built before there is a world, and shared by ranks that are threads.
SUM, GATHER, SCATTERED = ops.AllReduce(), ops.AllGather(), ops.ReduceScatter("max")
FROM_TWO, TO_ONE, BARRIER = ops.Broadcast(2), ops.Reduce(1, "prod"), ops.Barrier()
JOINED, DISTRIBUTED = ops.CollectiveGather(1), ops.CollectiveScatter(2)


def primitives(library: str) -> dict[str, Any]:
    rank = get_rank()
    x = make(library, [[rank + 1.0, 5.0], [0.0, 1.0], [rank, 2.0]])
    before = x.tolist()
    seen = {
        "AllReduce": SUM(x),
        "again": SUM(x),
        "avg": ops.AllReduce("avg")(x),
        "AllGather": GATHER(x),
        "ReduceScatter": SCATTERED(x),
        "Broadcast": FROM_TWO(x),
        "Reduce": TO_ONE(x),
        "CollectiveGather": JOINED(x),
        "CollectiveScatter": DISTRIBUTED(x),
    }
    one, two = FROM_TWO((x, make(library, [rank], "int32")))
    seen["Broadcast one"], seen["Broadcast two"] = one, two
    assert x.tolist() == before  # primitives do not change their input
    assert BARRIER() is None
    assert all(type(result) is type(x) for result in seen.values())
    return {name: result.tolist() for name, result in seen.items()}


@libraries
def test_primitives(world: World, library: str) -> None:
    given = [[[r + 1, 5], [0, 1], [r, 2]] for r in range(3)]
    total = np.sum(given, axis=0).tolist()
    joined = np.concatenate(given).tolist()
    for rank, seen in enumerate(run(world, 3, primitives, library)):
        assert seen["AllReduce"] == seen["again"] == total
        assert np.allclose(seen["avg"], np.mean(given, axis=0))
        assert seen["AllGather"] == joined
        assert seen["ReduceScatter"] == [np.max(given, axis=0).tolist()[rank]]
        assert seen["Broadcast"] == seen["Broadcast one"] == given[2]
        assert seen["Broadcast two"] == [2]
        zeros = np.zeros((3, 2)).tolist()
        assert seen["Reduce"] == (np.prod(given, axis=0).tolist() if rank == 1 else zeros)
        assert seen["CollectiveGather"] == (joined if rank == 1 else zeros)
        assert seen["CollectiveScatter"] == [given[2][rank]]


def exchanges(library: str) -> dict[str, Any]:
    rank = get_rank()
    x = make(library, np.arange(24).reshape(2, 4, 3) + 100 * rank, "int32")
    results = {
        (split, concat): ops.AlltoAll(2, split, concat)(x)
        for split, concat in [(0, 0), (0, 2), (1, 0), (1, 1), (-2, -1)]
    }
    sends, receives = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
    flat = make(library, [3.0 * rank, 3.0 * rank + 1, 3.0 * rank + 2])
    results["v"] = ops.AlltoAllV()(flat, sends, receives)
    counts = make(library, sends, "int64")
    wide = make(library, [float(rank)] * 6)
    results["blocks"] = ops.AlltoAllV(block_size=2)(wide, counts, receives)
    results["nothing"] = ops.AlltoAllV()(make(library, []), [0, 0], (0, 0))
    return {key: result.tolist() for key, result in results.items()}


@libraries
def test_exchanges(world: World, library: str) -> None:
    given = [np.arange(24).reshape(2, 4, 3) + 100 * rank for rank in range(2)]
    for rank, seen in enumerate(run(world, 2, exchanges, library)):
        for split, concat in [(0, 0), (0, 2), (1, 0), (1, 1), (-2, -1)]:
            blocks = [np.split(x, 2, axis=split)[rank] for x in given]
            assert seen[split, concat] == np.concatenate(blocks, axis=concat).tolist()
        # Rank 0 keeps its first element and gets two of rank 1; rank 1 gets the rest.
        assert seen["v"] == [[0, 3, 4], [1, 2, 5]][rank]
        assert seen["blocks"] == [[0] * 2 + [1] * 4, [0] * 4 + [1] * 2][rank]
        assert seen["nothing"] == []


def messages(library: str) -> dict[str, Any]:
    rank = get_rank()
    seen: dict[str, Any] = {}
    if rank == 0:
        x = make(library, [[1.0, 2.0]])
        assert ops.Send(0, 1)(x) is x
        ops.Send(sr_tag=1, dest_rank=1)(make(library, [7], "int64"))
    elif rank == 1:
        received = ops.Receive(0, 0, [1, 2], dtype_of(library, "float32"))()
        number = ops.Receive(1, 0, (1,), dtype_of(library, "int64"))()
        seen["types"] = [type(received) is type(make(library, [0])), str(number.dtype)]
        seen["received"] = [received.tolist(), number.tolist()]
    batch = ops.BatchISendIRecv(
        ("isend", "irecv"), [1 - rank, 1 - rank], [(2,)], (dtype_of(library, "float32"),)
    )
    sent, received = batch([make(library, [float(rank), 9.0])])
    seen["batch"] = [list(sent.shape), received.tolist()]
    return seen


@libraries
def test_messages(world: World, library: str) -> None:
    zero, one = run(world, 2, messages, library)
    prefix = "torch." if library == "torch" else ""
    assert one["types"] == [True, f"{prefix}int64"]
    assert one["received"] == [[[1, 2]], [7]]
    assert (zero["batch"], one["batch"]) == ([[], [1, 9]], [[], [0, 9]])


def in_a_group(library: str) -> dict[str, Any] | None:
    rank = get_rank()
    if rank == 1:
        return None
    create_group("ends", [2, 0])
    x = make(library, [float(rank), 4.0])
    results = {
        "sum": ops.AllReduce(group="ends")(x),
        "gather": ops.AllGather("ends")(x),
        "broadcast": ops.Broadcast(2, "ends")(x),
        "reduce": ops.Reduce(2, group="ends")(x),
        "scatter": ops.CollectiveScatter(0, "ends")(x),
        "exchange": ops.AlltoAll(2, 0, 0, "ends")(x),
    }
    comm.all_reduce(x, "max", "ends")
    results["in place"] = x
    ops.Barrier("ends")()  # no rank leaves while another still works
    destroy_group("ends")
    return {name: result.tolist() for name, result in results.items()}


@libraries
def test_a_group_keeps_its_order_and_world_ranks(world: World, library: str) -> None:
    zero, outside, two = run(world, 3, in_a_group, library)
    assert outside is None
    for seen in (zero, two):
        assert seen["sum"] == [2, 8]
        assert seen["gather"] == [2, 4, 0, 4]  # world rank 2 is first, as in create_group
        assert seen["broadcast"] == [2, 4]
        assert seen["in place"] == [2, 4]
    assert (zero["reduce"], two["reduce"]) == ([0, 0], [2, 8])
    assert (zero["scatter"], two["scatter"]) == ([4], [0])
    assert (zero["exchange"], two["exchange"]) == ([4, 4], [2, 0])


def test_attributes_of_a_primitive() -> None:
    primitive = ops.AllReduce(ops.ReduceOp.MAX).add_prim_attr("fusion", 1)
    assert (primitive.op, primitive.group, primitive.name) == (
        "max",
        "hccl_world_group",
        "AllReduce",
    )
    assert primitive.attrs == {"fusion": 1}
    operators = ops.ReduceOp
    assert [operators.SUM, operators.MAX, operators.MIN, operators.PROD] == [
        "sum",
        "max",
        "min",
        "prod",
    ]


X = np.zeros((2, 3), np.float32)
BAD_PRIMITIVES: dict[str, tuple[type[Exception], Any]] = {
    "op is no string": (TypeError, lambda: ops.AllReduce(1)),
    "op is unknown": (TypeError, lambda: ops.ReduceScatter("mean")),
    "group is no name": (TypeError, lambda: ops.AllGather(3)),
    "root is no int": (TypeError, lambda: ops.Broadcast("0")),
    "split_count is no int": (TypeError, lambda: ops.AlltoAll(2.0, 0, 0)),
    "block_size is no int": (TypeError, lambda: ops.AlltoAllV(block_size=1.5)),
    "dtype is none": (TypeError, lambda: ops.Receive(0, 0, [1], "what")),
    "src_rank is no int": (TypeError, lambda: ops.Receive(0, None, [1], np.float32)),
    "op_types is no list": (TypeError, lambda: ops.BatchISendIRecv("isend", [0])),
    "op_types is unknown": (ValueError, lambda: ops.BatchISendIRecv(["send"], [0])),
    "ranks for others": (ValueError, lambda: ops.BatchISendIRecv(["isend"], [])),
    "shapes without dtypes": (ValueError, lambda: ops.BatchISendIRecv(["irecv"], [0], [(1,)])),
    "irecv without shape": (ValueError, lambda: ops.BatchISendIRecv(["irecv"], [0])),
    "not a tensor": (TypeError, lambda: ops.AllReduce()([1.0])),
    "unknown group": (RuntimeError, lambda: ops.AllReduce(group="nowhere")(X)),
    "root outside": (RuntimeError, lambda: ops.Broadcast(2)(X)),
    "rows do not divide": (ValueError, lambda: ops.ReduceScatter()(np.zeros(3))),
    "split_count is another": (ValueError, lambda: ops.AlltoAll(3, 1, 0)(X)),
    "columns do not divide": (ValueError, lambda: ops.AlltoAll(2, 1, 0)(X)),
    "no such dimension": (ValueError, lambda: ops.AlltoAll(2, 2, 0)(X)),
    "tensor is not flat": (ValueError, lambda: ops.AlltoAllV()(X, [3, 3], [3, 3])),
    "counts do not add up": (ValueError, lambda: ops.AlltoAllV()(X[0], [1, 1], [1, 1])),
    "matrix is no list": (unisono.ArgumentTypeError, lambda: ops.AlltoAllVC()(X[0], object())),
    "nothing to send": (RuntimeError, lambda: ops.BatchISendIRecv(["isend"], [0])()),
}


def refused(cases: str, case: str) -> bool:
    error, call = (BAD_PRIMITIVES if cases == "primitives" else BAD)[case]
    with pytest.raises(error):
        call()
    comm.barrier()  # nothing was left in progress
    return True


@pytest.mark.parametrize("case", BAD_PRIMITIVES)
def test_bad_primitives(case: str) -> None:
    assert unisono.spawn(refused, 2, "primitives", case, timeout=30) == [True, True]


# ---- ops.communication ---------------------------------------------------------------------------


def in_place(library: str) -> dict[str, Any]:
    rank, size = comm.get_rank(), comm.get_world_size()
    seen: dict[str, Any] = {}
    x = make(library, [float(rank)])
    assert comm.all_reduce(x) is None
    seen["all_reduce"] = x
    out = make(library, [0.0] * size)
    comm.all_gather_into_tensor(out, make(library, [float(rank)]), async_op=True).wait()
    seen["all_gather_into_tensor"] = out
    out = make(library, [-1.0] * size)
    assert comm.gather_into_tensor(out, make(library, [float(rank)]), 1) is None
    seen["gather_into_tensor"] = out
    out = make(library, [-1.0])
    comm.scatter_tensor(out, make(library, [rank, rank + 0.5]), 1, async_op=True).wait()
    seen["scatter_tensor"] = out
    # Row i of the matrix says what rank i sends: rank 0 sends (1, 2), rank 1 sends (0, 1).
    given = make(library, [[1.0], [2.0], [3.0]] if rank == 0 else [[9.0]])
    out = make(library, [[0.0]] if rank == 0 else [[0.0]] * 3)
    assert comm.all_to_all_v_c(out, given, [1, 2, 0, 1]) is None
    seen["all_to_all_v_c"] = out
    x = make(library, [float(rank)])
    comm.broadcast(x, 1)
    seen["broadcast"] = x
    x = make(library, [0.0])
    ours = comm.P2POp(comm.isend, make(library, [float(rank)]), 1 - rank)
    comm.batch_isend_irecv([ours, comm.P2POp(comm.irecv, x, 1 - rank)])[0].wait()
    seen["batch"] = x
    into = [make(library, [0.0]) for _ in range(size)]
    comm.all_to_all(into, [make(library, [10.0 * rank + other]) for other in range(size)])
    seen["all_to_all"], seen["second"] = into
    return {name: result.tolist() for name, result in seen.items()}


@libraries
def test_in_place(world: World, library: str) -> None:
    for rank, seen in enumerate(run(world, 2, in_place, library)):
        assert seen["all_reduce"] == [1]
        assert seen["all_gather_into_tensor"] == [0, 1]
        assert seen["gather_into_tensor"] == ([0, 1] if rank == 1 else [-1, -1])
        assert seen["scatter_tensor"] == [1 + 0.5 * rank]
        assert seen["all_to_all_v_c"] == ([[1]] if rank == 0 else [[2], [3], [9]])
        assert seen["broadcast"] == [1]
        assert seen["batch"] == [1 - rank]
        assert (seen["all_to_all"], seen["second"]) == ([rank], [10 + rank])


def not_in_place(library: str) -> dict[str, Any]:
    rank, size = comm.get_rank(), comm.get_world_size()
    comm.set_comm_ops_inplace(False)
    seen: dict[str, Any] = {}
    x = make(library, [rank + 1.0, 4.0])
    seen["all_reduce"], handle = comm.all_reduce(x, "avg")
    assert handle is None
    seen["all_gather_into_tensor"], handle = comm.all_gather_into_tensor(None, x, async_op=True)
    handle.wait()
    seen["reduce_scatter_tensor"], _ = comm.reduce_scatter_tensor(None, x)
    parts, _ = comm.all_to_all([(1, 1), make(library, [0.0])], [x[:1], x[1:]])
    seen["all_to_all"], seen["second"] = parts
    seen["all_to_all_single"], _ = comm.all_to_all_single(None, x)
    comm.set_comm_ops_inplace(True, ["send", "isend"])
    if rank == 0:
        comm.send(x, 1)
        comm.isend(x, 1).wait()
    else:
        seen["recv"] = comm.recv(x, 0)
        seen["irecv"], handle = comm.irecv(x, 0)
        handle.wait()
    assert x.tolist() == [rank + 1, 4]  # never written
    for call in (lambda: comm.broadcast(x, 0), lambda: comm.all_gather([x] * size, x)):
        with pytest.raises(ValueError, match="in place only"):
            call()
    comm.set_comm_ops_inplace(True)
    comm.all_reduce(x)
    seen["in place again"] = x
    return {name: result.tolist() for name, result in seen.items()}


@libraries
def test_not_in_place(world: World, library: str) -> None:
    zero, one = run(world, 2, not_in_place, library)
    for rank, seen in enumerate((zero, one)):
        assert seen["all_reduce"] == [1.5, 4]
        assert seen["all_gather_into_tensor"] == [1, 4, 2, 4]
        assert seen["reduce_scatter_tensor"] == [[3], [8]][rank]
        assert (seen["all_to_all"], seen["second"]) == [([[1]], [2]), ([[4]], [4])][rank]
        assert seen["all_to_all_single"] == [[1, 2], [4, 4]][rank]
        assert seen["in place again"] == [3, 8]
    assert one["recv"] == one["irecv"] == [1, 4]


def switch_on_one_rank() -> bool:
    if groups.world().rank == 0:
        comm.set_comm_ops_inplace(False, ("all_reduce",))
    comm.barrier()
    result = comm.all_reduce(np.ones(1))
    return result is None


def test_ranks_that_are_threads_switch_for_themselves() -> None:
    assert unisono.spawn(switch_on_one_rank, 2) == [False, True]
    assert unisono.spawn(switch_on_one_rank, 2) == [
        False,
        True,
    ]  # a new world has none set


Y = np.zeros(2)
BAD: dict[str, tuple[type[Exception], Any]] = {
    "switch is no bool": (TypeError, lambda: comm.set_comm_ops_inplace(1)),
    "names are no list": (TypeError, lambda: comm.set_comm_ops_inplace(False, "all_reduce")),
    "name is unknown": (ValueError, lambda: comm.set_comm_ops_inplace(False, ["get_rank"])),
    "output is missing": (TypeError, lambda: comm.all_gather_into_tensor(None, Y)),
    "output is a shape": (TypeError, lambda: comm.all_to_all([(1,), (1,)], [Y, Y])),
    "gather output": (TypeError, lambda: comm.gather_into_tensor(None, Y)),
    "gather dst": (TypeError, lambda: comm.gather_into_tensor(np.zeros(4), Y, None)),
    "scatter shape": (ValueError, lambda: comm.scatter_tensor(Y, Y)),
    "scatter dtype": (ValueError, lambda: comm.scatter_tensor(np.zeros(1, "f4"), Y)),
    "matrix is no list": (TypeError, lambda: comm.all_to_all_v_c(Y, Y, (1, 1, 1, 1))),
    "matrix too short": (TypeError, lambda: comm.all_to_all_v_c(Y, Y, [1, 1])),
    "matrix too large": (RuntimeError, lambda: comm.all_to_all_v_c(Y, Y, [3, 3, 3, 3])),
    "rows differ": (ValueError, lambda: comm.all_to_all_v_c(Y.reshape(1, 2), Y, [1, 1, 1, 1])),
    "op is unknown": (TypeError, lambda: comm.all_reduce(Y, "mean")),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    assert unisono.spawn(refused, 2, "functions", case, timeout=30) == [True, True]


# ---- names ---------------------------------------------------------------------------------------


def test_names() -> None:
    assert len(comm.__all__) == 42
    assert ops.communication is comm
    for module, name, nearest in [
        (comm, "all_to_all_single_with_output_shape", "all_to_all_single"),
        (comm, "all_reduces", "all_reduce"),
        (ops, "AllGathers", "AllGather"),
    ]:
        assert not hasattr(module, name)
        with pytest.raises(AttributeError, match=f"nearest: {nearest}(;|$)"):
            getattr(module, name)
