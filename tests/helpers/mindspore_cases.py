"""Differentiable uses of MindSpore's collectives, by name, for tests on ranks that have MindSpore.

A case is a function of one tensor that MindSpore can call, differentiate and compile.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn

from unisono.core import dispatch
from unisono.core.groups import Group
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func, create_group, get_rank, init

__all__ = [
    "CASES",
    "AsCell",
    "MODES",
    "SCALARS",
    "Case",
    "Loss",
    "Place",
    "in_mode",
    "operand",
    "place_of",
]

#: How MindSpore runs a function: call by call, as a graph by its mode, as a graph by decorator.
MODES = ("PyNative", "graph", "jit")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this rank is in the group of a case."""

    group: str
    members: tuple[int, ...]  # world ranks, in the order of the group
    position: int  # of this rank in the group

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def root(self) -> int:
        """A world rank that is not the first of the group."""
        return self.members[-1]

    @property
    def rows(self) -> tuple[int, int]:
        """A shape whose first length is a multiple of the size."""
        return (2 * self.size, 3)

    @property
    def matrix(self) -> list[int]:
        """Entry i * N + j: how much rank i sends to j. No row is a column, and one entry is 0."""
        return [(2 * i + j) % 4 for i in range(self.size) for j in range(self.size)]

    @property
    def sends(self) -> list[int]:
        return self.matrix[self.position * self.size : (self.position + 1) * self.size]

    @property
    def receives(self) -> list[int]:
        return self.matrix[self.position :: self.size]

    @property
    def lengths(self) -> list[int]:
        """A length for each rank."""
        return [3 + i for i in range(self.size)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One function, and what this rank passes to it."""

    call: Callable[[Any], Any]
    shape: tuple[int, ...]
    #: False where the loss may not depend on the result's values: it is there for its gradient.
    weighs: bool = True


def place_of(world: Group, members: Sequence[int] | None = None) -> Place | None:
    """This rank's place in the world, or in a group of these world ranks; None outside it."""
    # Where the compiler writes about what it refuses: not into the folder of the repository.
    os.environ["MS_OM_PATH"] = os.environ["UNISONO_TRACE"]
    init()
    rank = get_rank()
    if members is None:
        return Place("hccl_world_group", tuple(range(world.size)), rank)
    if rank not in members:
        return None
    name = "group " + " ".join(map(str, members))
    if name not in _made:
        create_group(name, list(members))
        _made.add(name)
    return Place(name, tuple(members), list(members).index(rank))


_made: set[str] = set()


def operand(place: Place, shape: Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """This rank's numbers: no two are the same on any rank, and none is near 0."""
    generator = np.random.default_rng([place.position, *shape])
    return (generator.uniform(0.5, 1.5, tuple(shape))).astype(dtype)


class Loss(nn.Cell):
    """The sum of what a case makes of squares, each number weighted differently on each rank."""

    def __init__(self, case: Case, place: Place, dtype: Any = np.float64) -> None:
        super().__init__()
        self.call = case.call
        shape = self.call(Tensor(operand(place, case.shape, dtype))).shape
        generator = np.random.default_rng([7, place.position])
        weights = generator.normal(size=shape) if case.weighs else np.zeros(shape)
        self.weights = Tensor(weights.astype(dtype))

    def construct(self, x: Any) -> Any:
        return (self.call(x * x) * self.weights).sum()


def in_mode(mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as this mode runs it; GRAPH mode compiles cells, and gradients, only."""
    call = mindspore.jit(function) if mode == "jit" else function

    def run(*args: Any) -> Any:
        graph = mindspore.GRAPH_MODE if mode == "graph" else mindspore.PYNATIVE_MODE
        mindspore.set_context(mode=graph)
        try:
            result = call(*args)
            _wait(result)  # an error of a graph appears where its result is read
            return result
        finally:
            mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    return run


def with_delays(run: Callable[[], Any]) -> Any:
    """Run it while each collective in a graph or a backward starts a little late, at random."""
    in_pass = dispatch.in_pass

    def late(*, backward: bool) -> Any:
        time.sleep(random.uniform(0, 0.003))
        return in_pass(backward=backward)

    try:
        dispatch.in_pass = late  # type: ignore[assignment]
        return run()
    finally:
        dispatch.in_pass = in_pass


def _wait(result: Any) -> None:
    for part in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(part, Tensor):
            part.asnumpy()
        else:
            _wait(part)


class AsCell(nn.Cell):
    """A function as a cell."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def construct(self, *args: Any) -> Any:
        return self.function(*args)


# ---- cases that need more than a primitive -------------------------------------------------------


def _send_and_receive(place: Place) -> Case:
    """The first rank sends to the last, in whose loss it is; the others only compute."""
    first, last = place.members[0], place.members[-1]
    if place.position == 0:
        return Case(ops.Send(3, last, place.group, place.group), place.rows, weighs=False)
    if place.position == place.size - 1:
        receive = ops.Receive(3, first, place.rows, mindspore.float64, place.group, place.group)
        return Case(receive, place.rows)
    return Case(_itself, place.rows)


def _neighbor_exchange(place: Place) -> Case:
    """To the next rank of the group, from the one before: two different parts of the operand."""
    after, before = (place.position + 1) % place.size, (place.position - 1) % place.size
    ranks = [after, before] if place.size > 2 else [after]
    shapes = [[2, 3], [1, 3]][: len(ranks)]
    back = [*shapes[1:], shapes[0]] if len(ranks) > 1 else shapes
    exchange = ops.NeighborExchange(ranks, ranks, back, shapes, mindspore.float64, place.group)

    def call(x: Any) -> Any:
        parts = exchange((x[:2], x[2:3])[: len(ranks)])
        return parts[0] * 2 if len(ranks) == 1 else mindspore.ops.cat((parts[0], parts[1]))

    return Case(call, place.rows)


def _borders(place: Place) -> Case:
    """A column of images, one on each rank, which get a row from above and two from below."""
    above = place.position - 1
    below = place.position + 1 if place.position + 1 < place.size else -1
    ranks = [above, -1, -1, -1, below, -1, -1, -1]
    sent = [2 if above >= 0 else 0, 1 if below >= 0 else 0, 0, 0]
    received = [1 if above >= 0 else 0, 2 if below >= 0 else 0, 0, 0]
    return Case(
        ops.NeighborExchangeV2(ranks, sent, ranks, received, "NCHW", place.group), (1, 2, 3, 2)
    )


def _itself(x: Any) -> Any:
    return x


def _with_counts(primitive: Any, shape: tuple[int, ...], *counts: Any) -> Case:
    def call(x: Any) -> Any:
        return primitive(x, *counts)

    return Case(call, shape)


def _broadcast_of_tuple(place: Place) -> Case:
    copy = ops.Broadcast(place.root, place.group)

    def call(x: Any) -> Any:
        both = copy((x, 2 * x))
        return both[0] + both[1]

    return Case(call, place.rows)


def _list_exchange(place: Place) -> Case:
    sends, shapes = [count + 1 for count in place.sends], [(n + 1,) for n in place.receives]
    ends = np.cumsum(sends).tolist()
    group = place.group

    def call(x: Any) -> Any:
        parts = [x[end - count : end] for end, count in zip(ends, sends)]  # noqa: B905
        return mindspore.ops.cat(comm_func.all_to_all_with_output_shape(shapes, parts, group)[0])

    return Case(call, (sum(sends),))


def _row_exchange(place: Place, splits: bool) -> Case:
    group = place.group
    receives, sends = (place.receives, place.sends) if splits else (None, None)
    rows = (sum(place.sends), 2) if splits else place.rows
    shape = (sum(place.receives), 2) if splits else place.rows

    def call(x: Any) -> Any:
        return comm_func.all_to_all_single_with_output_shape(shape, x, receives, sends, group)[0]

    return Case(call, rows)


def _function(function: Callable[..., Any], place: Place, *args: Any, first: bool = False) -> Case:
    """A function of comm_func; `first` takes the first of what it returns."""
    group = place.group
    if first:

        def call(x: Any) -> Any:
            return function(x, *args, group)[0]
    else:

        def call(x: Any) -> Any:
            return function(x, *args, group)

    return Case(call, place.rows)


_OPERATORS = ("sum", "max", "min", "prod", "avg")

#: What makes the case of each name for a place.
CASES: dict[str, Callable[[Place], Case]] = {
    **{
        f"AllReduce {op}": lambda p, op=op: Case(ops.AllReduce(op, p.group), p.rows)
        for op in _OPERATORS
    },
    **{
        f"ReduceScatter {op}": lambda p, op=op: Case(ops.ReduceScatter(op, p.group), p.rows)
        for op in _OPERATORS
    },
    **{
        f"Reduce {op}": lambda p, op=op: Case(ops.Reduce(p.root, op, p.group), p.rows)
        for op in _OPERATORS
    },
    "AllGather": lambda p: Case(ops.AllGather(p.group), p.rows),
    "Broadcast": lambda p: Case(ops.Broadcast(p.root, p.group), p.rows),
    "Broadcast of a tuple": _broadcast_of_tuple,
    "CollectiveGather": lambda p: Case(ops.CollectiveGather(p.root, p.group), p.rows),
    "CollectiveScatter": lambda p: Case(ops.CollectiveScatter(p.root, p.group), p.rows),
    **{
        f"AlltoAll {split} {concat}": lambda p, split=split, concat=concat: Case(
            ops.AlltoAll(p.size, split, concat, p.group), (2 * p.size, 3 * p.size, p.size)
        )
        for split, concat in ((0, 0), (0, 1), (1, 0), (2, 1), (-1, 0))
    },
    "AlltoAllV": lambda p: _with_counts(
        ops.AlltoAllV(p.group), (sum(p.sends),), p.sends, p.receives
    ),
    "AlltoAllV in blocks": lambda p: _with_counts(
        ops.AlltoAllV(p.group, 2), (2 * sum(p.sends),), p.sends, p.receives
    ),
    "AlltoAllVC": lambda p: _with_counts(ops.AlltoAllVC(p.group), (sum(p.sends),), p.matrix),
    "AlltoAllVC transposed": lambda p: _with_counts(
        ops.AlltoAllVC(p.group, 2, True), (2 * sum(p.receives),), p.matrix
    ),
    "AllGatherV": lambda p: _with_counts(
        ops.AllGatherV(p.group), (p.lengths[p.position],), p.lengths
    ),
    "ReduceScatterV sum": lambda p: _with_counts(
        ops.ReduceScatterV("sum", p.group), (sum(p.lengths),), p.lengths
    ),
    "ReduceScatterV avg": lambda p: _with_counts(
        ops.ReduceScatterV("avg", p.group), (sum(p.lengths),), p.lengths
    ),
    "NeighborExchange": _neighbor_exchange,
    "NeighborExchangeV2": _borders,
    "ReduceScatterV max": lambda p: _with_counts(
        ops.ReduceScatterV("max", p.group), (sum(p.lengths),), p.lengths
    ),
    "Send and Receive": _send_and_receive,
    "all_reduce": lambda p: _function(comm_func.all_reduce, p, "sum", first=True),
    "all_reduce max": lambda p: _function(comm_func.all_reduce, p, "max", first=True),
    "all_gather_into_tensor": lambda p: _function(comm_func.all_gather_into_tensor, p, first=True),
    "reduce_scatter_tensor": lambda p: _function(
        comm_func.reduce_scatter_tensor, p, "avg", first=True
    ),
    "reduce": lambda p: _function(comm_func.reduce, p, p.root, "prod"),
    "broadcast": lambda p: _function(comm_func.broadcast, p, p.root),
    "scatter_tensor": lambda p: _function(comm_func.scatter_tensor, p, p.root),
    "gather_into_tensor": lambda p: _function(comm_func.gather_into_tensor, p, p.root),
    "all_to_all_with_output_shape": _list_exchange,
    "all_to_all_single_with_output_shape": lambda p: _row_exchange(p, False),
    "all_to_all_single_with_output_shape with splits": lambda p: _row_exchange(p, True),
}

#: Those that take a tensor without dimensions.
SCALARS = (
    "AllReduce sum",
    "AllReduce max",
    "AllGather",
    "Broadcast",
    "Reduce sum",
    "CollectiveGather",
)
