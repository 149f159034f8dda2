"""`unisono.mindspore.mint.distributed`: every function, in place, on each engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core import groups
from unisono.core.groups import Group
from unisono.mindspore.mint import distributed as dist

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
libraries = pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch)])
World = Callable[..., list[Any]]


def make(library: str, values: Any, dtype: str = "float32") -> Any:
    if library == "numpy":
        return np.array(values, dtype)
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


def run(world: World, n: int, function: Any, library: str) -> list[Any]:
    return world(n, _call, function, library)


def _call(_: Group, function: Any, library: str) -> Any:
    return function(library)


# ---- collectives of tensors ----------------------------------------------------------------------


def reductions(library: str) -> dict[str, Any]:
    rank = dist.get_rank()
    seen = {}
    for op in ("sum", "prod", "min", "max", "avg"):
        x = make(library, [rank + 1.0, 2.0 - rank])
        assert dist.all_reduce(x, op) is None
        seen[op] = x.tolist()
    x = make(library, [[rank, 1.0]])
    handle = dist.all_reduce(x, async_op=True)
    assert handle.wait() is None and handle.is_completed()
    assert handle.result() is x
    seen["later"] = x.tolist()
    x = make(library, [float(rank)])
    assert dist.reduce(x, 2) is None
    seen["reduce"] = x.tolist()
    x = make(library, [float(rank)])
    dist.reduce(x, 0, "max", async_op=True).wait()
    seen["reduce later"] = x.tolist()
    x = make(library, [rank, 7 + rank], "int64")
    assert dist.broadcast(x, 1) is None
    seen["broadcast"] = x.tolist()
    return seen


@libraries
def test_reductions_and_broadcast(world: World, library: str) -> None:
    ranks = run(world, 3, reductions, library)
    for rank, seen in enumerate(ranks):
        assert seen["sum"] == [6, 3]
        assert seen["prod"] == [6, 0]
        assert seen["min"] == [1, 0]
        assert seen["max"] == [3, 2]
        assert seen["avg"] == [2, 1]
        assert seen["later"] == [[3, 3]]
        assert seen["reduce"] == ([3] if rank == 2 else [rank])  # others keep their tensor
        assert seen["reduce later"] == ([2] if rank == 0 else [rank])
        assert seen["broadcast"] == [1, 8]


def whole_tensors(library: str) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = {}
    out = make(library, [[0.0, 0.0]] * 2 * size)
    given = make(library, [[rank, 0.0], [rank, 1.0]])
    assert dist.all_gather_into_tensor(out, given) is None
    seen["all_gather"] = out.tolist()
    out = make(library, [0.0] * size)
    dist.all_gather_into_tensor(out, make(library, float(rank)), async_op=True).wait()
    seen["all_gather 0-d"] = out.tolist()
    sizes = [1, 0, 2]
    out = make(library, [0.0] * 3)
    dist.all_gather_into_tensor_uneven(out, make(library, [float(rank)] * sizes[rank]), sizes)
    seen["uneven"] = out.tolist()
    out = make(library, [[0.0]])
    given = make(library, [[10.0 * row + rank] for row in range(size)])
    dist.reduce_scatter_tensor(out, given)
    seen["reduce_scatter"] = out.tolist()
    out = make(library, [0.0] * sizes[rank])
    given = make(library, [1.0 + rank, 2.0 + rank, 3.0 + rank])
    dist.reduce_scatter_tensor_uneven(out, given, sizes, "max")
    seen["reduce_scatter uneven"] = out.tolist()
    return seen


@libraries
def test_whole_tensors(world: World, library: str) -> None:
    for rank, seen in enumerate(run(world, 3, whole_tensors, library)):
        assert seen["all_gather"] == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
        assert seen["all_gather 0-d"] == [0, 1, 2]
        assert seen["uneven"] == [0, 2, 2]
        assert seen["reduce_scatter"] == [[30 * rank + 3]]
        assert seen["reduce_scatter uneven"] == [[3], [], [4, 5]][rank]


def tensor_lists(library: str) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = {}
    into = [make(library, [0.0] * (other + 1)) for other in range(size)]
    assert dist.all_gather(into, make(library, [float(rank)] * (rank + 1))) is None
    seen["all_gather"] = [entry.tolist() for entry in into]
    out = make(library, [0.0] * (rank + 1))
    parts = [make(library, [float(rank + other)] * (other + 1)) for other in range(size)]
    dist.reduce_scatter(out, parts, "sum")
    seen["reduce_scatter"] = out.tolist()
    into = [make(library, [-1.0]) for _ in range(size)]
    dist.gather(make(library, [float(rank)]), into, 1)
    seen["gather"] = [entry.tolist() for entry in into]
    out = make(library, [-1.0])
    parts = [make(library, [10.0 * rank + other]) for other in range(size)]
    dist.scatter(out, parts, 2, async_op=True).wait()
    seen["scatter"] = out.tolist()
    into = [make(library, [0.0] * (other + 1)) for other in range(size)]
    given = [make(library, [10.0 * rank + other] * (rank + 1)) for other in range(size)]
    assert dist.all_to_all(into, given) is None
    seen["all_to_all"] = [entry.tolist() for entry in into]
    return seen


@libraries
def test_tensor_lists(world: World, library: str) -> None:
    for rank, seen in enumerate(run(world, 3, tensor_lists, library)):
        assert seen["all_gather"] == [[0], [1, 1], [2, 2, 2]]
        assert seen["reduce_scatter"] == [3 * rank + 3] * (rank + 1)
        assert seen["gather"] == ([[0], [1], [2]] if rank == 1 else [[-1]] * 3)
        assert seen["scatter"] == [20 + rank]
        assert seen["all_to_all"] == [[10 * other + rank] * (other + 1) for other in range(3)]


def exchanges(library: str) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = {}
    given = make(library, [[rank, other] for other in range(size)], "int32")
    out = make(library, [[0, 0]] * size, "int32")
    assert dist.all_to_all_single(out, given) is None
    seen["equal"] = out.tolist()
    # Rank r sends j + 1 rows to rank j.
    given = make(library, [10 * rank + other for other in range(size) for _ in range(other + 1)])
    out = make(library, [0.0] * size * (rank + 1))
    handle = dist.all_to_all_single(out, given, [rank + 1] * size, [1, 2, 3], async_op=True)
    handle.wait()
    seen["uneven"] = out.tolist()
    assert dist.barrier() is None
    dist.barrier(async_op=True, device_ids=[0]).wait()
    return seen


@libraries
def test_exchanges(world: World, library: str) -> None:
    for rank, seen in enumerate(run(world, 3, exchanges, library)):
        assert seen["equal"] == [[other, rank] for other in range(3)]
        assert seen["uneven"] == [10 * other + rank for other in range(3) for _ in range(rank + 1)]


def strided(library: str) -> list[Any]:
    whole = make(library, [[float(dist.get_rank()), 9.0], [1.0, 9.0]])
    dist.all_reduce(whole[:, 0])
    return whole.tolist()


@libraries
def test_a_strided_view_is_written(world: World, library: str) -> None:
    assert run(world, 2, strided, library) == [[[1, 9], [2, 9]]] * 2


# ---- messages and objects ------------------------------------------------------------------------


def messages(library: str) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    seen: dict[str, Any] = {}
    if rank == 0:
        assert dist.send(make(library, [1.0, 2.0]), 1, tag=5) is None
        dist.isend(make(library, [3.0]), 1).wait()
    elif rank == 1:
        x = make(library, [0.0, 0.0])
        seen["returns"] = dist.recv(x, 0, tag=5)
        y = make(library, [0.0])
        dist.irecv(y, 0).wait()
        seen["received"] = [x.tolist(), y.tolist()]
    following, previous = (rank + 1) % size, (rank - 1) % size
    x = make(library, [-1.0])
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, make(library, [float(rank)]), following),
            dist.P2POp("irecv", x, previous),
        ]
    )
    seen["handles"] = len(handles)
    handles[0].wait()
    seen["ring"] = x.tolist()
    return seen


@libraries
def test_messages(world: World, library: str) -> None:
    ranks = run(world, 3, messages, library)
    assert ranks[1]["returns"] == 0
    assert ranks[1]["received"] == [[1, 2], [3]]
    for rank, seen in enumerate(ranks):
        assert seen["handles"] == 1
        assert seen["ring"] == [(rank - 1) % 3]


def objects_of_any_kind(library: str) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    seen: dict[str, Any] = {}
    into: list[Any] = [None] * size
    dist.all_gather_object(into, {"rank": rank})
    seen["all_gather"] = into
    into = ["a", rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(into, 1)
    seen["broadcast"] = into
    into = [None] * size
    dist.gather_object("x" * rank, into if rank == 2 else None, 2)
    seen["gather"] = into
    into = [None]
    dist.scatter_object_list(into, [f"for {other}" for other in range(size)] if not rank else None)
    seen["scatter"] = into
    if rank == 0:
        dist.send_object_list([1, "two"], 1)
    elif rank == 1:
        into = [None, None]
        seen["returns"] = dist.recv_object_list(into)
        seen["received"] = into
    return seen


def test_objects(world: World) -> None:
    ranks = run(world, 3, objects_of_any_kind, "numpy")
    assert (ranks[1]["returns"], ranks[1]["received"]) == (0, [1, "two"])
    for rank, seen in enumerate(ranks):
        assert seen["all_gather"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert seen["broadcast"] == ["a", 1]
        assert seen["gather"] == (["", "x", "xx"] if rank == 2 else [None] * 3)
        assert seen["scatter"] == [f"for {rank}"]


# ---- groups --------------------------------------------------------------------------------------


def subgroups(library: str) -> dict[str, Any]:
    rank = dist.get_rank()
    name = dist.new_group([2, 1])
    seen: dict[str, Any] = {"name": name, "rank": dist.get_rank(name)}
    if rank == 0:
        return seen
    assert dist.new_group([1, 2]) == name  # the same ranks, the same group
    seen["size"] = dist.get_world_size(name)
    seen["ranks"] = dist.get_process_group_ranks(name)
    seen["translated"] = (dist.get_group_rank(name, 2), dist.get_global_rank(name, 0))
    x = make(library, [float(rank)])
    dist.broadcast(x, 2, name)  # roots are world ranks in a group as well
    seen["broadcast"] = x.tolist()
    x = make(library, [float(rank)])
    dist.reduce(x, 1, group=name)
    seen["reduce"] = x.tolist()
    other = 3 - rank
    x = make(library, [0.0])
    handle = dist.irecv(x, other, name)
    dist.send(make(library, [float(rank)]), other, name)
    handle.wait()
    seen["from other"] = x.tolist()
    dist.barrier(name)  # no rank leaves while another still works
    dist.destroy_process_group(name)
    seen["after"] = dist.get_rank(name)
    with pytest.raises(KeyError):
        dist.destroy_process_group(name)
    return seen


@libraries
def test_subgroups(world: World, library: str) -> None:
    outside, first, second = run(world, 3, subgroups, library)
    assert outside == {"name": "", "rank": -1}
    digest = hashlib.sha1(b"1_2").hexdigest()
    for index, seen in enumerate((first, second)):
        assert seen["name"] == f"hccl_2_{digest}"
        assert (seen["rank"], seen["size"], seen["ranks"]) == (index, 2, [1, 2])
        assert seen["translated"] == (1, 1)
        assert seen["broadcast"] == [2]
        assert seen["reduce"] == ([3] if index == 0 else [2])
        assert seen["from other"] == [2 - index]
        assert seen["after"] == -1


def outsider() -> str:
    groups.world().split([0], "solo")  # as the PyTorch face makes a group: every rank calls it
    if dist.get_rank() == 0:
        dist.all_reduce(np.ones(1), group="solo")
        return "member"
    with pytest.raises(RuntimeError, match="not in group 'solo'"):
        dist.all_gather([np.ones(1)], np.ones(1), "solo")
    return f"outside {dist.get_rank('solo')}"


def test_a_rank_outside_the_group_gets_an_error() -> None:
    assert unisono.spawn(outsider, 2) == ["member", "outside -1"]


def the_world() -> list[Any]:
    dist.init_process_group()  # the world exists already, so this does nothing
    dist.init_process_group("mccl", world_size=2, timeout=timedelta(seconds=9))
    answers = [dist.is_available(), dist.is_initialized(), dist.get_backend()]
    answers += [dist.get_backend("mccl_2_x"), dist.new_group(), dist.get_process_group_ranks()]
    answers += [dist.get_rank("hccl_world_group"), dist.get_world_size("nowhere")]
    dist.destroy_process_group()
    return [*answers, dist.is_initialized()]


def test_the_world() -> None:
    for rank, seen in enumerate(unisono.spawn(the_world, 2)):
        known = [True, True, "hccl", "mccl", "hccl_world_group", [0, 1]]
        assert seen == [*known, rank, -1, False]


def test_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "3")
    monkeypatch.setenv("RANK_SIZE", "5")
    assert not dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (3, 5)


# ---- names ---------------------------------------------------------------------------------------


def test_names() -> None:
    assert len(dist.__all__) == 37
    for name, nearest in [("monitored_barrier", "barrier"), ("all_reducer", "all_reduce")]:
        assert not hasattr(dist, name)
        with pytest.raises(AttributeError, match=f"nearest: {nearest}$"):
            getattr(dist, name)
