"""The primitives that take one tensor of equal shape on every rank.

Ranks in arguments are ranks of the world. Gradients are those of the sum of all ranks' losses,
except where upstream decides otherwise, which the class then says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unisono.core.arguments import equal_rows
from unisono.core.groups import Group
from unisono.mindspore._arguments import ReduceOp, check_integer, operator
from unisono.mindspore._groups import resolve_root
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops._primitive import (
    WORLD,
    CommunicationPrimitive,
    CompositePrimitive,
    OperatorPrimitive,
)

__all__ = [
    "AllGather",
    "AllReduce",
    "Backward",
    "Barrier",
    "BarrierPoint",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "Reduce",
    "ReduceScatter",
    "TensorBroadcast",
    "backward_of_reduction",
    "divided",
    "joined",
]

Backward = Callable[..., tuple[Any, ...]]


class AllReduce(OperatorPrimitive):
    """Combine a tensor over the group; every rank gets the result.

    >>> unisono.spawn(lambda: ops.AllReduce()(np.full(2, dist.get_rank())).tolist(), 3)
    [[3, 3], [3, 3], [3, 3]]
    """

    def __init__(self, op: str = "sum", group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        operator(op)
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return the combined tensor."""
        return comm_func.all_reduce(input_x, self.op, self.group)[0]

    def backward(self) -> Backward:
        """The sum of all gradients; for max and min, only where this rank holds the result."""
        total = self.like(AllReduce, ReduceOp.SUM, self.group)
        return backward_of_reduction(self.op, self.size, total, _itself)


class AllGather(OperatorPrimitive):
    """Join every rank's tensor along the first dimension, on every rank.

    >>> unisono.spawn(lambda: ops.AllGather()(np.full(1, dist.get_rank())).tolist(), 2)
    [[0, 1], [0, 1]]
    """

    def __init__(self, group: str | Group | None = WORLD) -> None:
        super().__init__(group)

    def __call__(self, input_x: Any) -> Any:
        """Return the joined tensor."""
        return comm_func.all_gather_into_tensor(input_x, self.group)[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """Every rank's rows."""
        return joined(shapes[0], self.size())

    def backward(self) -> Backward:
        """Each rank's rows of the sum of all gradients."""
        scatter = self.like(ReduceScatter, ReduceOp.SUM, self.group)

        def of_gather(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (scatter(gradient).reshape(operand.shape),)

        return of_gather


class ReduceScatter(OperatorPrimitive):
    """Combine a tensor over the group; each rank gets its part of the rows.

    >>> unisono.spawn(lambda: ops.ReduceScatter()(np.array([10, 20])).tolist(), 2)
    [[20], [40]]
    """

    def __init__(self, op: str = "sum", group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        operator(op)
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return this rank's part."""
        return comm_func.reduce_scatter_tensor(input_x, self.op, self.group)[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """One part of the rows."""
        return divided(shapes[0], self.size())

    def backward(self) -> Backward:
        """Every rank's gradient, joined."""
        gather = self.like(AllGather, self.group)
        return backward_of_reduction(self.op, self.size, gather, gather)


class Broadcast(CompositePrimitive):
    """Copy the tensors of world rank `root_rank` to every rank.

    >>> unisono.spawn(lambda: ops.Broadcast(1)(np.full(2, dist.get_rank())).tolist(), 2)
    [[1, 1], [1, 1]]
    """

    def __init__(self, root_rank: int, group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        check_integer(root_rank, "root_rank")
        self.root_rank = root_rank

    def __call__(self, input_x: Any) -> Any:
        """Return a tuple for a tuple or list of tensors, and a tensor for a tensor."""
        if isinstance(input_x, (list, tuple)):
            copies: Any = ()
            for tensor in input_x:
                copies += (comm_func.broadcast(tensor, self.root_rank, self.group),)
            return copies
        return comm_func.broadcast(input_x, self.root_rank, self.group)


class TensorBroadcast(CommunicationPrimitive):
    """`Broadcast` of one tensor.

    As upstream, every rank's gradient passes through unchanged: it is not added up at the root.
    """

    def __init__(self, root_rank: int, group: str | Group | None) -> None:
        super().__init__(group)
        self.root_rank = root_rank

    def __call__(self, input_x: Any) -> Any:
        """Return the tensor of the root."""
        return comm_func.broadcast(input_x, self.root_rank, self.group)

    def backward(self) -> Backward:
        """The gradient itself."""

        def unchanged(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (gradient,)

        return unchanged


class Reduce(OperatorPrimitive):
    """Combine a tensor over the group for world rank `dest_rank`.

    >>> unisono.spawn(lambda: ops.Reduce(1)(np.full(2, dist.get_rank())).tolist(), 3)
    [[0, 0], [3, 3], [0, 0]]
    """

    def __init__(self, dest_rank: int, op: str = "sum", group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        check_integer(dest_rank, "dest_rank")
        operator(op)
        self.dest_rank = dest_rank
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return the combined tensor on `dest_rank`, and zeros of its shape elsewhere."""
        return comm_func.reduce(input_x, self.dest_rank, self.op, self.group)

    def backward(self) -> Backward:
        """The gradient of `dest_rank`."""
        copy = self.like(TensorBroadcast, self.dest_rank, self.group)
        return backward_of_reduction(self.op, self.size, copy, copy)


class CollectiveGather(OperatorPrimitive):
    """Join every rank's tensor along the first dimension on world rank `dest_rank`.

    >>> unisono.spawn(lambda: ops.CollectiveGather(0)(np.full(1, dist.get_rank())).tolist(), 2)
    [[0, 1], [0]]
    """

    def __init__(self, dest_rank: int, group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        check_integer(dest_rank, "dest_rank")
        self.dest_rank = dest_rank

    def __call__(self, input_x: Any) -> Any:
        """Return the joined tensor on `dest_rank`, and meaningless zeros elsewhere."""
        return comm_func.gather_into_tensor(input_x, self.dest_rank, self.group)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """Every rank's rows on `dest_rank`, this rank's elsewhere."""
        members, root = resolve_root(self.group, self.dest_rank, "dest_rank")
        return joined(shapes[0], members.size) if members.rank == root else shapes[0]

    def backward(self) -> Backward:
        """This rank's rows of the gradient of `dest_rank`."""
        scatter = self.like(CollectiveScatter, self.dest_rank, self.group)
        members, root = resolve_root(self.group, self.dest_rank, "dest_rank")
        at_root, size = members.rank == root, int(members.size)

        def of_root(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (scatter(gradient).reshape(operand.shape),)

        def of_others(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            # Only the shape matters of what these ranks pass to the scatter.
            whole = gradient.reshape((-1,)).tile((size,))
            rows = operand.reshape((1,)).shape if operand.ndim == 0 else operand.shape
            whole = whole.reshape((size * rows[0],) + rows[1:])  # noqa: RUF005  (for the compiler)
            return (scatter(whole).reshape(operand.shape),)

        return of_root if at_root else of_others


class CollectiveScatter(OperatorPrimitive):
    """Distribute the rows of the tensor of world rank `src_rank`, in equal parts.

    >>> unisono.spawn(lambda: ops.CollectiveScatter(0)(np.array([10, 20])).tolist(), 2)
    [[10], [20]]
    """

    def __init__(self, src_rank: int = 0, group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        check_integer(src_rank, "src_rank")
        self.src_rank = src_rank

    def __call__(self, input_x: Any) -> Any:
        """Return this rank's part; every rank passes a tensor of the full shape."""
        return comm_func.scatter_tensor(input_x, self.src_rank, self.group)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """One part of the rows."""
        return divided(shapes[0], self.size())

    def backward(self) -> Backward:
        """Every rank's gradient, joined on `src_rank`; zeros elsewhere."""
        gather = self.like(CollectiveGather, self.src_rank, self.group)
        members, root = resolve_root(self.group, self.src_rank, "src_rank")
        size = int(members.size)

        def of_root(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (gather(gradient),)

        def of_others(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            # The gather gives zeros here. As they depend on it, the compiler keeps the call in a
            # second order too.
            zeros = gather(gradient).reshape((-1,)).tile((size,))
            return (zeros.reshape(operand.shape),)

        return of_root if members.rank == root else of_others


class Barrier(CompositePrimitive):
    """Wait until every rank of the group has called this.

    >>> unisono.spawn(lambda: ops.Barrier()(), 2)
    [None, None]
    """

    def __init__(self, group: str | Group | None = WORLD) -> None:
        super().__init__(group)

    def __call__(self) -> None:
        """Return when all ranks have called it."""
        return comm_func.barrier(self.group)


class BarrierPoint(CommunicationPrimitive):
    """`Barrier` as an operator of a graph, which needs a result."""

    def __call__(self) -> Any:
        """Return a meaningless zero when all ranks have called it."""
        comm_func.barrier(self.group)
        return np.zeros((), np.float32)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """No dimensions."""
        return ()

    def result_dtypes(self, *dtypes: Any) -> Any:
        """That of the zero."""
        return sys.modules["mindspore"].float32

    def backward(self) -> Backward:
        """Nothing: there is no operand."""

        def of_nothing(result: Any, gradient: Any) -> tuple[Any, ...]:
            return ()

        return of_nothing


def joined(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """The shape of `size` such tensors, one after the other; one without dimensions is a row."""
    return (shape[0] * size, *shape[1:]) if shape else (size,)


def divided(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """The shape of one of `size` equal parts of the rows."""
    return (equal_rows(shape, size, "input_x"), *shape[1:])


# ---- backwards of reductions ---------------------------------------------------------------------


def backward_of_reduction(
    op: str, count: Callable[[], int], spread: Callable[[Any], Any], whole: Callable[[Any], Any]
) -> Backward:
    """The gradient that reaches this operand, times how much the result depends on it.

    `spread` brings the gradient to every rank whose operand had a part in the result, added up, and
    `whole` brings the result there. `count` says how many ranks there are.
    """
    size = count() if op == ReduceOp.AVG else 1

    def of_sum(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
        return (spread(gradient),)

    def of_average(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
        return (spread(gradient / size),)

    def of_extreme(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
        holds = operand == whole(result)
        return (spread(gradient) * holds.astype(gradient.dtype),)

    def of_product(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
        return (spread(gradient) * whole(result) / operand,)

    formulas = {
        ReduceOp.SUM: of_sum,
        ReduceOp.AVG: of_average,
        ReduceOp.MAX: of_extreme,
        ReduceOp.MIN: of_extreme,
        ReduceOp.PROD: of_product,
    }
    return formulas[op]


def _itself(result: Any) -> Any:
    """The result of a reduction that every rank has."""
    return result
