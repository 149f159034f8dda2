"""The MindSpore face: collectives that leave their input alone and return `(result, handle)`.

The handle is None unless `async_op` is true; then the result is there once `handle.wait()` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch, groups, lists
from unisono.core.engine import ReduceOp as _Operator
from unisono.core.engine import Work
from unisono.errors import ArgumentTypeError

__all__ = [
    "CommHandle",
    "GlobalComm",
    "ReduceOp",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_with_output_shape",
    "barrier",
    "reduce",
    "reduce_scatter_tensor",
]


class GlobalComm:
    """Names that hold for the whole world."""

    WORLD_COMM_GROUP = "hccl_world_group"


class ReduceOp:
    """Operators are plain strings in this dialect."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


_OPERATORS = {
    "sum": _Operator.SUM,
    "max": _Operator.MAX,
    "min": _Operator.MIN,
    "prod": _Operator.PRODUCT,
}


class CommHandle:
    """What an asynchronous call returns beside its result."""

    def __init__(self, work: Work | None = None) -> None:
        self.handle = work

    def wait(self) -> None:
        """Return when the result is in its place."""
        if self.handle is not None:
            self.handle.wait()


def all_reduce(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group into a new tensor on every rank."""
    out = buffers.empty_like(tensor)
    work = dispatch.start(
        "all_reduce",
        groups.find(group),
        not async_op,
        buffers.view(tensor),
        buffers.view(out),
        _operator(op),
    )
    return out, _handle(work, async_op)


def reduce(
    tensor: Any, dst: int, op: str = ReduceOp.SUM, group: str = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Combine `tensor` over the group into a new tensor on world rank `dst`; zeros elsewhere."""
    members = groups.find(group)
    out = buffers.empty_like(tensor)
    target = buffers.view(out)
    root = members.ranks.index(dst) if dst in members.ranks else dst
    if members.rank != root:
        target.array[:] = np.zeros((), target.dtype.numpy)
    dispatch.start("reduce", members, True, buffers.view(tensor), target, _operator(op), root)
    return out


def all_gather_into_tensor(
    tensor: Any, group: str = GlobalComm.WORLD_COMM_GROUP, async_op: bool = False
) -> tuple[Any, CommHandle | None]:
    """Join every rank's tensor along the first dimension in a new tensor on every rank."""
    members = groups.find(group)
    shape = tuple(tensor.shape) or (1,)
    out = buffers.empty_like(tensor, (shape[0] * members.size, *shape[1:]))
    work = dispatch.start(
        "all_gather", members, not async_op, buffers.view(tensor), buffers.view(out), None
    )
    return out, _handle(work, async_op)


def reduce_scatter_tensor(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group; each rank gets its part, cut along the first dimension."""
    members = groups.find(group)
    shape = tuple(tensor.shape)
    if not shape or shape[0] % members.size:
        raise ValueError(
            f"the first dimension of {shape} must be a multiple of the {members.size} ranks"
        )
    out = buffers.empty_like(tensor, (shape[0] // members.size, *shape[1:]))
    work = dispatch.start(
        "reduce_scatter",
        members,
        not async_op,
        buffers.view(tensor),
        buffers.view(out),
        _operator(op),
        None,
    )
    return out, _handle(work, async_op)


def all_to_all_with_output_shape(
    output_shape_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | None = None,
    async_op: bool = False,
) -> tuple[tuple[Any, ...], CommHandle | None]:
    """Send entry j to rank j; the shapes (or tensors that have them) say what comes from each."""
    members = groups.resolve(group)
    source, sends = lists.join(input_tensor_list)
    shapes = [getattr(entry, "shape", entry) for entry in output_shape_list]
    outs = tuple(buffers.empty_like(input_tensor_list[0], shape) for shape in shapes)
    landing, receives = lists.land(outs)
    work = dispatch.start("all_to_all", members, not async_op, source, landing, sends, receives)
    return outs, _handle(work, async_op)


def barrier(group: str = GlobalComm.WORLD_COMM_GROUP) -> None:
    """Wait until every rank of the group has come here."""
    dispatch.start("barrier", groups.find(group), True)


def _handle(work: Work, async_op: bool) -> CommHandle | None:
    return CommHandle(work) if async_op else None


def _operator(op: str) -> _Operator:
    if op not in _OPERATORS:
        raise ArgumentTypeError(f"op must be one of {', '.join(_OPERATORS)}, got {op!r}")
    return _OPERATORS[op]
