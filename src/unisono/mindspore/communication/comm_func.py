"""The MindSpore face: collectives that do not change their input and return new tensors.

Those with `async_op` return `(result, handle)`. The handle is None unless `async_op` is true; then
the result is complete when `handle.wait()` returns. Roots and peers are ranks of the world.
"""

from __future__ import annotations

from typing import Any

from unisono.core import buffers, dispatch, fast
from unisono.core.arguments import equal_rows, shape_of
from unisono.core.groups import Group
from unisono.mindspore._arguments import (
    ReduceOp,
    blocking,
    known_operator,
    operator,
    view,
    zeros_like,
)
from unisono.mindspore._gradients import differentiable
from unisono.mindspore._groups import resolve_group, resolve_root
from unisono.mindspore._handles import CommHandle, handle_of
from unisono.mindspore.communication._all_to_all import (
    all_to_all_single_with_output_shape,
    all_to_all_v_c,
    all_to_all_with_output_shape,
)
from unisono.mindspore.communication._point_to_point import (
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
)
from unisono.mindspore.communication.management import GlobalComm

__all__ = [
    "CommHandle",
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "reduce",
    "all_to_all_with_output_shape",
    "all_to_all_single_with_output_shape",
    "all_to_all_v_c",
    "broadcast",
    "barrier",
    "scatter_tensor",
    "gather_into_tensor",
    "send",
    "recv",
    "isend",
    "irecv",
    "P2POp",
    "batch_isend_irecv",
]

_NAMES = ("tensor", "the result")  # what the caller calls source and destination


def all_reduce(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group into a new tensor on every rank.

    >>> def total():
    ...     x = np.full(2, dist.get_rank())
    ...     y, _ = comm_func.all_reduce(x)
    ...     return x.tolist(), y.tolist()
    >>> unisono.spawn(total, 2)
    [([0, 0], [1, 1]), ([1, 1], [1, 1])]
    """
    done = fast.all_reduce_new(tensor, known_operator(op), group, async_op)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    return _all_reduce(tensor, op, group, async_op)


@differentiable("unisono.mindspore.ops._collectives:AllReduce")
def _all_reduce(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    source, combine, waits = view(tensor, "tensor"), operator(op), blocking(async_op)
    members = resolve_group(group)
    out = buffers.output_like(tensor)
    work = dispatch.all_reduce(members, source, out.buffer, combine, blocking=waits, names=_NAMES)
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


def all_gather_into_tensor(
    tensor: Any,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Join every rank's tensor along the first dimension in a new tensor on every rank.

    >>> def everyone():
    ...     y, _ = comm_func.all_gather_into_tensor(np.full(2, dist.get_rank()))
    ...     return y.tolist()
    >>> unisono.spawn(everyone, 2)
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    done = fast.all_gather_new(tensor, group, async_op)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    return _all_gather_into_tensor(tensor, group, async_op)


@differentiable("unisono.mindspore.ops._collectives:AllGather")
def _all_gather_into_tensor(
    tensor: Any,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    source, waits = view(tensor, "tensor"), blocking(async_op)
    members = resolve_group(group)
    out = buffers.output_like(tensor, _joined(shape_of(tensor), members.size))
    work = dispatch.all_gather(members, source, out.buffer, blocking=waits, names=_NAMES)
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


def reduce_scatter_tensor(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group; each rank gets its part of the rows.

    >>> def part():
    ...     y, _ = comm_func.reduce_scatter_tensor(np.array([10, 20]))
    ...     return y.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    done = fast.reduce_scatter_new(tensor, known_operator(op), group, async_op)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    return _reduce_scatter_tensor(tensor, op, group, async_op)


@differentiable("unisono.mindspore.ops._collectives:ReduceScatter")
def _reduce_scatter_tensor(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    source, combine, waits = view(tensor, "tensor"), operator(op), blocking(async_op)
    members = resolve_group(group)
    out = buffers.output_like(tensor, _divided(shape_of(tensor), members.size))
    work = dispatch.reduce_scatter(
        members, source, out.buffer, combine, blocking=waits, names=_NAMES
    )
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


@differentiable("unisono.mindspore.ops._collectives:Reduce")
def reduce(
    tensor: Any,
    dst: int,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
) -> Any:
    """Combine `tensor` over the group into a new tensor on world rank `dst`; zeros elsewhere.

    >>> def total_on_rank_1():
    ...     return comm_func.reduce(np.full(2, dist.get_rank()), dst=1).tolist()
    >>> unisono.spawn(total_on_rank_1, 3)
    [[0, 0], [3, 3], [0, 0]]
    """
    source, combine = view(tensor, "tensor"), operator(op)
    members, root = resolve_root(group, dst, "dst")
    if members.rank != root:
        placeholder = zeros_like(tensor)
        dispatch.reduce(members, source, None, combine, root, names=_NAMES)
        return placeholder
    out = buffers.output_like(tensor)
    dispatch.reduce(members, source, out.buffer, combine, root, names=_NAMES)
    return out.finish()


def broadcast(
    tensor: Any, src: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Return what world rank `src` passed; the others pass a tensor of its shape and dtype.

    >>> def of_rank_1():
    ...     return comm_func.broadcast(np.full(2, dist.get_rank()), src=1).tolist()
    >>> unisono.spawn(of_rank_1, 2)
    [[1, 1], [1, 1]]
    """
    done = fast.broadcast_new(tensor, src, group)
    if done is not NotImplemented:
        return done
    return _broadcast(tensor, src, group)


@differentiable("unisono.mindspore.ops._collectives:TensorBroadcast")
def _broadcast(
    tensor: Any, src: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    source = view(tensor, "tensor")
    members, root = resolve_root(group, src, "src")
    out = buffers.output_like(tensor)
    given = source if members.rank == root else None
    dispatch.broadcast(members, given, out.buffer, root, names=_NAMES)
    return out.finish()


@differentiable("unisono.mindspore.ops._collectives:CollectiveScatter")
def scatter_tensor(
    tensor: Any, src: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Return this rank's part of the rows of what world rank `src` passed.

    Every rank passes a tensor of the full shape; only the values of `src` matter.

    >>> def part():
    ...     return comm_func.scatter_tensor(np.array([10, 20]), src=0).tolist()
    >>> unisono.spawn(part, 2)
    [[10], [20]]
    """
    source = view(tensor, "tensor")
    members, root = resolve_root(group, src, "src")
    out = buffers.output_like(tensor, _divided(shape_of(tensor), members.size))
    given = source if members.rank == root else None
    dispatch.scatter(members, given, out.buffer, root, names=_NAMES)
    return out.finish()


@differentiable("unisono.mindspore.ops._collectives:CollectiveGather")
def gather_into_tensor(
    tensor: Any, dst: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Join every rank's tensor along the first dimension on world rank `dst`; zeros elsewhere.

    >>> def on_rank_0():
    ...     return comm_func.gather_into_tensor(np.full(1, dist.get_rank()), dst=0).tolist()
    >>> unisono.spawn(on_rank_0, 2)
    [[0, 1], [0]]
    """
    source = view(tensor, "tensor")
    members, root = resolve_root(group, dst, "dst")
    if members.rank != root:
        placeholder = zeros_like(tensor)
        dispatch.gather(members, source, None, root, names=_NAMES)
        return placeholder
    out = buffers.output_like(tensor, _joined(shape_of(tensor), members.size))
    dispatch.gather(members, source, out.buffer, root, names=_NAMES)
    return out.finish()


def barrier(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> None:
    """Wait until every rank of the group has called this.

    >>> unisono.spawn(lambda: comm_func.barrier(), 2)
    [None, None]
    """
    if fast.barrier(group, False) is None:
        return
    dispatch.barrier(resolve_group(group))


def _joined(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of `size` such tensors, one after the other; one without dimensions is a row."""
    return (shape[0] * size, *shape[1:]) if shape else (size,)


def _divided(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of one of `size` equal parts of the rows."""
    return (equal_rows(shape, size, "tensor"), *shape[1:])
