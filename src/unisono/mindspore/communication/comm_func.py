"""The MindSpore face: collectives that do not change their input and return new tensors.

Those with `async_op` return `(result, handle)`. The handle is None unless `async_op` is true; then
the result is complete when `handle.wait()` returns. Roots and peers are ranks of the world.
"""

from __future__ import annotations

from typing import Any

from unisono.core import buffers, dispatch
from unisono.core.arguments import equal_rows, shape_of
from unisono.core.groups import Group
from unisono.mindspore._arguments import ReduceOp, check_bool, operator, zeros_like
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


@differentiable("unisono.mindspore.ops._collectives:AllReduce")
def all_reduce(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group into a new tensor on every rank."""
    check_bool(async_op, "async_op")
    out = buffers.output_like(tensor)
    source, combine = buffers.view(tensor), operator(op)
    members = resolve_group(group)
    work = dispatch.all_reduce(members, source, out.buffer, combine, blocking=not async_op)
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


@differentiable("unisono.mindspore.ops._collectives:AllGather")
def all_gather_into_tensor(
    tensor: Any,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Join every rank's tensor along the first dimension in a new tensor on every rank."""
    check_bool(async_op, "async_op")
    shape = shape_of(tensor)
    members = resolve_group(group)
    out = buffers.output_like(tensor, _joined(shape, members.size))
    work = dispatch.all_gather(members, buffers.view(tensor), out.buffer, blocking=not async_op)
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


@differentiable("unisono.mindspore.ops._collectives:ReduceScatter")
def reduce_scatter_tensor(
    tensor: Any,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Combine `tensor` over the group; each rank gets its part of the rows."""
    check_bool(async_op, "async_op")
    shape, combine = shape_of(tensor), operator(op)
    members = resolve_group(group)
    out = buffers.output_like(tensor, (equal_rows(shape, members.size), *shape[1:]))
    source = buffers.view(tensor)
    work = dispatch.reduce_scatter(members, source, out.buffer, combine, blocking=not async_op)
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


@differentiable("unisono.mindspore.ops._collectives:Reduce")
def reduce(
    tensor: Any,
    dst: int,
    op: str = ReduceOp.SUM,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
) -> Any:
    """Combine `tensor` over the group into a new tensor on world rank `dst`; zeros elsewhere."""
    source, combine = buffers.view(tensor), operator(op)
    members, root = resolve_root(group, dst, "dst")
    if members.rank != root:
        placeholder = zeros_like(tensor)
        dispatch.reduce(members, source, None, combine, root)
        return placeholder
    out = buffers.output_like(tensor)
    dispatch.reduce(members, source, out.buffer, combine, root)
    return out.finish()


@differentiable("unisono.mindspore.ops._collectives:TensorBroadcast")
def broadcast(
    tensor: Any, src: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Return what world rank `src` passed; the others pass a tensor of its shape and dtype."""
    out = buffers.output_like(tensor)
    members, root = resolve_root(group, src, "src")
    source = buffers.view(tensor) if members.rank == root else None
    dispatch.broadcast(members, source, out.buffer, root)
    return out.finish()


@differentiable("unisono.mindspore.ops._collectives:CollectiveScatter")
def scatter_tensor(
    tensor: Any, src: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Return this rank's part of the rows of what world rank `src` passed.

    Every rank passes a tensor of the full shape; only the values of `src` matter.
    """
    shape = shape_of(tensor)
    members, root = resolve_root(group, src, "src")
    out = buffers.output_like(tensor, (equal_rows(shape, members.size), *shape[1:]))
    source = buffers.view(tensor) if members.rank == root else None
    dispatch.scatter(members, source, out.buffer, root)
    return out.finish()


@differentiable("unisono.mindspore.ops._collectives:CollectiveGather")
def gather_into_tensor(
    tensor: Any, dst: int = 0, group: str | Group | None = GlobalComm.WORLD_COMM_GROUP
) -> Any:
    """Join every rank's tensor along the first dimension on world rank `dst`; zeros elsewhere."""
    shape, source = shape_of(tensor), buffers.view(tensor)
    members, root = resolve_root(group, dst, "dst")
    if members.rank != root:
        placeholder = zeros_like(tensor)
        dispatch.gather(members, source, None, root)
        return placeholder
    out = buffers.output_like(tensor, _joined(shape, members.size))
    dispatch.gather(members, source, out.buffer, root)
    return out.finish()


def barrier(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> None:
    """Wait until every rank of the group has called this."""
    dispatch.barrier(resolve_group(group))


def _joined(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The shape of `size` such tensors, one after the other; one without dimensions is a row."""
    return (shape[0] * size, *shape[1:]) if shape else (size,)
