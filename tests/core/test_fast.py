"""Hot calls in native code: the same results and errors as the general way, and that they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import worlds
from tests.helpers.ways import general_way
from unisono.core import groups
from unisono.core.groups import Group
from unisono.errors import ArgumentError, MismatchError, Unsupported
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.torch import distributed as dist

without_torch = pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
KINDS = ["numpy", pytest.param("torch", marks=without_torch)]
#: What differs from call to call in an error: its number, its line, the name of the trace file.
NUMBERS = re.compile(r"call \d+|:\d+|-[0-9a-f]{16}")
DTYPES = ["float32", "float64", "int64", "uint8", "bool", "float16", "bfloat16", "complex64"]


def tensors(kind: str, dtype: str) -> Callable[..., Any]:
    """What makes a tensor with values that depend on the rank."""

    def make(rank: int, *shape: int) -> Any:
        count = int(np.prod(shape))
        values = (np.arange(count).reshape(shape) + rank) % 3 + 1
        array = values.astype(getattr(ml_dtypes, dtype, dtype))
        if kind == "numpy":
            return array
        import torch

        return torch.tensor(values).to(getattr(torch, dtype))

    return make


def listed(tensor: Any) -> list[float]:
    """Any tensor as plain numbers."""
    if isinstance(tensor, list | tuple):
        return [number for part in tensor if part is not None for number in listed(part)]
    array = tensor if isinstance(tensor, np.ndarray) else tensor.to(_plain(tensor)).numpy()
    return [complex(value) for value in array.astype(np.complex128).ravel()]


def _plain(tensor: Any) -> Any:
    import torch

    return torch.complex128 if tensor.is_complex() else torch.float64


# Each takes (make, rank, size) and returns what it wrote or returned.
CALLS: dict[str, Callable[[Callable[..., Any], int, int], Any]] = {}


def call(function: Callable[[Callable[..., Any], int, int], Any]) -> Any:
    """Add a case."""
    CALLS[function.__name__] = function
    return function


@call
def all_reduce(make: Any, rank: int, size: int) -> Any:
    x = make(rank, 5)
    assert dist.all_reduce(x) is None
    return x


@call
def all_reduce_later(make: Any, rank: int, size: int) -> Any:
    x = make(rank, 2, 3)
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    assert work.wait()
    assert work.result() == [x] or work.result()[0] is x
    return x


@call
def reduce(make: Any, rank: int, size: int) -> Any:
    x = make(rank, 5)
    dist.reduce(x, 1)
    return x


@call
def broadcast(make: Any, rank: int, size: int) -> Any:
    x = make(rank, 4)
    dist.broadcast(x, group_src=1)
    return x


@call
def all_gather_into_tensor(make: Any, rank: int, size: int) -> Any:
    x = make(0, size * 2, 3)
    dist.all_gather_into_tensor(x, make(rank, 2, 3))
    return x


@call
def all_gather_in_place(make: Any, rank: int, size: int) -> Any:
    x = make(rank, size, 3)
    dist.all_gather_into_tensor(x, x[rank : rank + 1])
    return x


@call
def reduce_scatter_tensor(make: Any, rank: int, size: int) -> Any:
    x = make(0, 3)
    dist.reduce_scatter_tensor(x, make(rank, size * 3))
    return x


@call
def all_to_all_single(make: Any, rank: int, size: int) -> Any:
    x = make(0, size * 2)
    dist.all_to_all_single(x, make(rank, size * 2))
    return x


@call
def all_gather(make: Any, rank: int, size: int) -> Any:
    parts = [make(0, 2, 2) for _ in range(size)]
    dist.all_gather(parts, make(rank, 2, 2))
    return parts


@call
def all_to_all(make: Any, rank: int, size: int) -> Any:
    parts = [make(0, 3) for _ in range(size)]
    dist.all_to_all(parts, [make(rank + peer, 3) for peer in range(size)])
    return parts


@call
def gather(make: Any, rank: int, size: int) -> Any:
    parts = [make(0, 2) for _ in range(size)] if rank == 1 else None
    dist.gather(make(rank, 2), parts, 1)
    return parts or []


@call
def scatter(make: Any, rank: int, size: int) -> Any:
    x = make(0, 2)
    parts = [make(peer, 2) for peer in range(size)] if rank == 0 else None
    dist.scatter(x, parts, 0)
    return x


@call
def barrier(make: Any, rank: int, size: int) -> Any:
    dist.barrier()
    return []


@call
def functions_of_mindspore(make: Any, rank: int, size: int) -> Any:
    return [
        comm_func.all_reduce(make(rank, 2, 2))[0],
        comm_func.all_gather_into_tensor(make(rank, 2, 2))[0],
        comm_func.reduce_scatter_tensor(make(rank, size * 2, 2))[0],
        comm_func.broadcast(make(rank, 3), 1),
    ]


@call
def mint_in_place(make: Any, rank: int, size: int) -> Any:
    x, y, z = make(rank, 2), make(rank, 3), make(rank, 4)
    mint.all_reduce(x)
    mint.broadcast(y, 1)
    mint.reduce(z, 0)
    mint.barrier()
    whole, part, exchanged = make(0, size * 2, 2), make(rank, 2, 2), make(0, size)
    mint.all_gather_into_tensor(whole, part)
    mint.reduce_scatter_tensor(part, make(rank, size * 2, 2))
    mint.all_to_all_single(exchanged, make(rank, size))
    return [x, y, z, whole, part, exchanged]


@call
def messages(make: Any, rank: int, size: int) -> Any:
    x = make(rank, 3)
    if rank == 0:
        dist.send(x, 1, tag=3)
    elif rank == 1:
        assert dist.recv(x, 0, tag=3) == 0
    if rank == 0:
        work = dist.isend(x, 1)
    elif rank == 1:
        work = dist.irecv(x)
    else:
        return x
    assert work is not None
    work.wait()
    assert rank == 0 or work.source == 0
    return x


def both_ways(world: Group, kind: str, dtype: str) -> None:
    """Make each call in native code and in Python, and compare."""
    make = tensors(kind, dtype)
    dist.all_reduce(make(0, 1))  # so that tensors of torch are known
    for name, case in CALLS.items():
        before = world.engine.fast_calls() if world.engine is not None else 0
        found = listed(case(make, world.rank, world.size))
        assert world.engine is not None
        made = world.engine.fast_calls() - before
        assert made > 0 or name == "messages", f"{name} did not run in native code"
        with general_way():
            expected = listed(case(make, world.rank, world.size))
            assert world.engine.fast_calls() == before + made
        assert found == expected, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_give_the_same(all_worlds: worlds.Worlds, kind: str, dtype: str) -> None:
    all_worlds.run("shm", 3, both_ways, kind, dtype)


def one_each(world: Group) -> None:
    """Ranks that go different ways meet."""
    make = tensors("numpy", "float64")
    for case in CALLS.values():
        expected = listed(case(make, world.rank, world.size))
        if world.rank == 0:
            with general_way():
                found = listed(case(make, world.rank, world.size))
        else:
            found = listed(case(make, world.rank, world.size))
        assert found == expected


def test_ranks_may_go_different_ways(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 3, one_each)


def not_ordinary(world: Group) -> list[str]:
    """Calls that native code leaves to Python, with results or errors."""
    size, rank = world.size, world.rank
    strided = np.ones((4, 4))[:, ::2]
    frozen = np.ones(3)
    frozen.flags.writeable = False
    whole = np.arange(4.0 * size)
    cases: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(strided),
        lambda: dist.all_reduce(np.ones(3, ">f8")),
        lambda: dist.all_reduce(frozen),
        lambda: dist.all_reduce(np.ones(3, "datetime64[s]")),
        lambda: dist.all_reduce(np.ones(3), op=dist.ReduceOp.BAND),
        lambda: dist.all_reduce(np.ones(3, np.complex64), op=dist.ReduceOp.MAX),
        lambda: dist.all_reduce(np.ones(3), "sum of all"),
        lambda: dist.all_reduce([1, 2]),
        lambda: dist.all_reduce(np.ones(3), async_op=np.ones(2)),
        lambda: dist.all_reduce(np.ones(3), group="no such group"),
        lambda: dist.broadcast(np.ones(3), 77),
        lambda: dist.broadcast(np.ones(3)),
        lambda: dist.broadcast(np.ones(3), 0, group_src=0),
        lambda: dist.broadcast(np.ones(3), True),
        lambda: dist.all_gather_into_tensor(np.ones(size), np.ones(2)),
        lambda: dist.all_gather_into_tensor(whole, whole[1:5]),
        lambda: dist.reduce_scatter_tensor(np.ones(2, np.float32), np.ones(2 * size)),
        lambda: dist.all_to_all_single(np.ones(size + 1), np.ones(size + 1)),
        lambda: dist.all_to_all_single(np.ones(()), np.ones(())),
        lambda: dist.all_gather([np.ones(2)], np.ones(2)),
        lambda: dist.all_gather([np.ones(2)] * size, np.ones((2, 1))),
        lambda: dist.gather(np.ones(2), [np.ones(2)] * size, (rank + 1) % size),
        lambda: dist.send(np.ones(2), rank),
        lambda: dist.send(np.ones(2), 0, tag=1 << 70),
        lambda: comm_func.all_reduce(np.ones(2), "product"),
        lambda: comm_func.reduce_scatter_tensor(np.ones((size + 1, 2))),
        lambda: comm_func.broadcast(np.ones(2), "0"),
        lambda: mint.all_reduce(np.ones(2), group=3),
        lambda: mint.all_reduce(np.ones(2), dist.ReduceOp.SUM),
        lambda: dist.all_reduce(np.ones(2), "sum"),
        lambda: mint.all_gather_into_tensor(np.ones((2, size)), np.ones(2)),
        lambda: mint.reduce_scatter_tensor(np.ones(2), np.ones((2, size))),
    ]
    seen = []
    for case in cases:
        try:
            seen.append(repr(case()))
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", ()))
            seen.append(f"{type(error).__name__}: {error} {notes}")
    return [*seen, repr(strided.tolist())]


def errors_both_ways(world: Group) -> None:
    """Both ways refuse the same, in the same words."""
    first = [NUMBERS.sub("", text) for text in not_ordinary(world)]
    with general_way():
        assert [NUMBERS.sub("", text) for text in not_ordinary(world)] == first


def test_errors_are_those_of_the_general_way(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 3, errors_both_ways)


#: Calls of which ranks disagree, because each has tensors of length `n`.
MISMATCHES: dict[str, Callable[[int, int, int], Any]] = {
    "all_reduce": lambda n, rank, size: dist.all_reduce(np.ones(n)),
    "all_gather": lambda n, rank, size: dist.all_gather(ones(n, size), np.ones(n)),
    "all_to_all": lambda n, rank, size: dist.all_to_all(ones(n, size), ones(n, size)),
    "gather": lambda n, rank, size: dist.gather(
        np.ones(n), ones(n, size) if rank == 0 else None, 0
    ),
    "scatter": lambda n, rank, size: dist.scatter(
        np.ones(n), ones(n, size) if rank == 0 else None, 0
    ),
    "reduce_scatter": lambda n, rank, size: dist.reduce_scatter(np.ones(n), ones(n, size)),
    "all_gather of mint": lambda n, rank, size: mint.all_gather(ones(n, size), np.ones(n)),
}


def ones(length: int, size: int) -> list[Any]:
    return [np.ones(length) for _ in range(size)]


def mismatch(world: Group, name: str) -> tuple[str, str]:
    """The error of ranks that disagree, in native code and in Python."""
    texts = []
    for way in (nullcontext, general_way):
        with way(), pytest.raises(MismatchError) as caught:
            MISMATCHES[name](2 + world.rank, world.rank, world.size)
        texts.append(f"{caught.value} {caught.value.__notes__}")
    return texts[0], texts[1]


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_says_the_same(all_worlds: worlds.Worlds, name: str) -> None:
    verb = name.partition(" ")[0]
    for fast, general in all_worlds.run("shm", 2, mismatch, name):
        assert f"in {verb} (call " in fast
        assert f"{verb} float64 x 2" in fast and f"{verb} float64 x 3" in fast
        assert NUMBERS.sub("", fast) == NUMBERS.sub("", general)


def equal_beside_uneven(world: Group) -> list[list[float]]:
    """Rank 0's counts are all two; ranks 1 and 2 exchange more and less between each other."""
    counts = [[2, 2, 2], [2, 0, 5], [2, 1, 3]]
    sends, receives = counts[world.rank], [row[world.rank] for row in counts]
    found = []
    for way in (nullcontext, general_way):
        inputs = [np.full(count, 10.0 * world.rank + to) for to, count in enumerate(sends)]
        outputs = [np.empty(count) for count in receives]
        with way():
            dist.all_to_all(outputs, inputs)
        found.append(listed(outputs))
    expected = [10 * source + world.rank for source, n in enumerate(receives) for _ in range(n)]
    assert found == [expected, expected]
    return found


def test_equal_counts_meet_uneven_ones(all_worlds: worlds.Worlds) -> None:
    assert len(all_worlds.run("shm", 3, equal_beside_uneven)) == 3


def names_of_separate_worlds(world: Group) -> None:
    """A name means a group of the process's world, whatever other worlds call theirs."""
    assert world.engine is not None
    groups.add_world_names("everybody")
    part = world.split([0, 1], "part")
    engine = world.engine.split([1, 0], "other")
    other = groups.separate_world(engine, "world", [1, 0])
    groups.separate_world(engine, "part", [1, 0])
    for name, group in (("world", world), ("everybody", world), ("part", part)):
        before = [each.calls for each in (world, part, other)]
        for way in (nullcontext, general_way):
            with way():
                x = np.full(1, world.rank)
                dist.all_gather_into_tensor(whole := np.zeros(2, int), x, group=name)
                assert whole.tolist() == [0, 1]
        made = [each.calls - old for each, old in zip((world, part, other), before, strict=True)]
        assert made == [2 * (group is each) for each in (world, part, other)]
    groups.separate_world(engine, "other", [1, 0])
    for way in (nullcontext, general_way):
        with way(), pytest.raises(ArgumentError, match="there is no group 'other'"):
            dist.all_reduce(np.ones(1), group="other")


def test_names_of_groups_in_separate_worlds(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 2, names_of_separate_worlds)


class Inner:
    """Stands for a class of unisono or torch that makes a call while it is made."""

    made = compile("def __init__(self): dist.barrier()", dist.__file__, "exec")
    exec(made, {"dist": dist}, locals())  # the function is one of the file of the face


def calls_in_constructors(world: Group) -> list[str | None]:
    assert world.engine is not None
    for _ in range(30):  # the interpreter has a short way for calls that come often
        Inner()
    records = world.engine.records()[world.rank].calls[-30:]
    return [record.call_site for record in records]


def test_the_line_of_a_call_in_a_constructor(all_worlds: worlds.Worlds) -> None:
    """It is that of the user, with no frame of Python's own between."""
    for sites in all_worlds.run("shm", 2, calls_in_constructors):
        assert len(set(sites)) == 1, set(sites)
        assert re.search(r"test_fast\.py:\d+$", sites[0] or "")


def no_new_tensor(world: Group) -> None:
    """Where torch makes no real tensor for a result, both ways say the same."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    comm_func.all_reduce(torch.ones(3))  # native code knows torch
    seen = []
    for way in (nullcontext, general_way):
        x = torch.ones(3)
        with way(), FakeTensorMode(), pytest.raises(Unsupported) as caught:
            comm_func.all_reduce(x)
        seen.append(str(caught.value))
    assert seen[0] == seen[1]


@without_torch
def test_an_error_of_a_new_tensor_is_that_of_the_general_way(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 2, no_new_tensor)
