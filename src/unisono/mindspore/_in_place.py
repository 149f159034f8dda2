"""Collectives that write into tensors of the caller, as mint and ops.communication have them.

Groups are names, None means the world, and every `src` or `dst` is a rank of the world. A call
returns None, or a handle where `async_op` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import (
    check_length,
    check_list,
    check_one_dtype,
    check_shape,
    split_counts,
)
from unisono.core.buffers import Buffer
from unisono.errors import ArgumentTypeError
from unisono.mindspore._arguments import blocking, operator
from unisono.mindspore._groups import resolve_group, resolve_root
from unisono.mindspore._handles import CommHandle, handle_of

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_uneven",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_uneven",
    "scatter",
    "scatter_tensor",
]


# ---- one tensor, or two of one shape -------------------------------------------------------------


def all_reduce(
    tensor: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group, in place, so that every rank holds the result."""
    buffer = buffers.view(tensor)
    members = resolve_group(group)
    work = dispatch.all_reduce(members, buffer, buffer, operator(op), blocking=blocking(async_op))
    return handle_of(work, tensor, async_op)


def broadcast(
    tensor: Any, src: int, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Copy the tensor of world rank `src` into `tensor` of every rank."""
    members, root = resolve_root(group, src, "src")
    buffer = buffers.view(tensor)
    source = buffer if members.rank == root else None
    work = dispatch.broadcast(members, source, buffer, root, blocking=blocking(async_op))
    return handle_of(work, tensor, async_op)


def reduce(
    tensor: Any, dst: int, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group into the one of world rank `dst`; others keep theirs."""
    members, root = resolve_root(group, dst, "dst")
    buffer = buffers.view(tensor)
    destination = buffer if members.rank == root else None
    work = dispatch.reduce(
        members, buffer, destination, operator(op), root, blocking=blocking(async_op)
    )
    return handle_of(work, tensor, async_op)


def barrier(
    group: str | None = None, async_op: bool = False, device_ids: Any = None
) -> CommHandle | None:
    """Wait until every rank of the group has called this; `device_ids` changes nothing."""
    work = dispatch.barrier(resolve_group(group), blocking=blocking(async_op))
    return handle_of(work, None, async_op)


# ---- one tensor that holds a part for each rank --------------------------------------------------


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Join every rank's tensor along the first dimension in `output_tensor`, on every rank."""
    members = resolve_group(group)
    source, destination = _views(input_tensor, output_tensor)
    _check_whole(destination, source, members.size, "output_tensor")
    work = dispatch.all_gather(members, source, destination, blocking=blocking(async_op))
    return handle_of(work, output_tensor, async_op)


def all_gather_into_tensor_uneven(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join tensors that may have different numbers of rows, as `output_split_sizes` says."""
    members = resolve_group(group)
    source, destination = _views(input, output)
    counts = _counts(destination, output_split_sizes, members.size, "output_split_sizes")
    work = dispatch.all_gather(members, source, destination, counts, blocking=blocking(async_op))
    return handle_of(work, output, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `input` over the group and leave this rank's part of the rows in `output`."""
    members = resolve_group(group)
    source, destination = _views(input, output)
    _check_whole(source, destination, members.size, "input")
    work = dispatch.reduce_scatter(
        members, source, destination, operator(op), blocking=blocking(async_op)
    )
    return handle_of(work, output, async_op)


def reduce_scatter_tensor_uneven(
    output: Any,
    input: Any,
    input_split_sizes: Any = None,
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine `input` and distribute its rows as `input_split_sizes` says."""
    members = resolve_group(group)
    source, destination = _views(input, output)
    counts = _counts(source, input_split_sizes, members.size, "input_split_sizes")
    work = dispatch.reduce_scatter(
        members, source, destination, operator(op), counts, blocking=blocking(async_op)
    )
    return handle_of(work, output, async_op)


def gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join every rank's tensor in `output_tensor` of world rank `dst`; others keep theirs."""
    members, root = resolve_root(group, dst, "dst")
    source, output = buffers.view(input_tensor), buffers.view(output_tensor)
    destination = output if members.rank == root else None
    if destination is not None:
        check_one_dtype([source, destination])
        _check_whole(destination, source, members.size, "output_tensor")
    work = dispatch.gather(members, source, destination, root, blocking=blocking(async_op))
    return handle_of(work, output_tensor, async_op)


def scatter_tensor(
    output_tensor: Any,
    input_tensor: Any,
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Distribute the rows of `input_tensor` of world rank `src`, in equal parts."""
    members, root = resolve_root(group, src, "src")
    whole, destination = _views(input_tensor, output_tensor)
    _check_whole(whole, destination, members.size, "input_tensor")
    source = whole if members.rank == root else None
    work = dispatch.scatter(members, source, destination, root, blocking=blocking(async_op))
    return handle_of(work, output_tensor, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send part j of the rows of `input` to rank j, and receive part i of `output` from i."""
    members = resolve_group(group)
    source, destination = _views(input, output)
    sends = _counts(source, input_split_sizes, members.size, "input_split_sizes")
    receives = _counts(destination, output_split_sizes, members.size, "output_split_sizes")
    work = dispatch.all_to_all(
        members, source, destination, sends, receives, blocking=blocking(async_op)
    )
    return handle_of(work, output, async_op)


# ---- a list with a tensor for each rank ----------------------------------------------------------


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Collect every rank's tensor in `tensor_list`, on every rank; shapes may differ."""
    members = resolve_group(group)
    parts = _list_views(tensor_list, "tensor_list", members.size)
    source = buffers.view(tensor)
    if members.rank >= 0:
        _check_entry(source, parts[members.rank], "tensor", "tensor_list")
    destination, counts = packing.unpack_buffers_on_completion(parts)
    work = dispatch.all_gather(members, source, destination, counts, blocking=blocking(async_op))
    return handle_of(work, tensor_list, async_op)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine every rank's list and leave entry `rank` of it in `output`; shapes may differ."""
    members = resolve_group(group)
    parts = _list_views(input_list, "input_list", members.size)
    destination = buffers.view(output)
    if members.rank >= 0:
        _check_entry(destination, parts[members.rank], "output", "input_list")
    source, counts = packing.pack_buffers(parts)
    work = dispatch.reduce_scatter(
        members, source, destination, operator(op), counts, blocking=blocking(async_op)
    )
    return handle_of(work, output, async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any],
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Collect every rank's tensor in `gather_list` of world rank `dst`; all ranks pass a list."""
    members, root = resolve_root(group, dst, "dst")
    at_root = members.rank == root
    source = buffers.view(tensor)
    parts = _list_views(gather_list, "gather_list", members.size if at_root else None)
    _check_one_shape(parts, "gather_list")
    destination, counts = None, None
    if at_root:
        _check_entry(source, parts[0], "tensor", "gather_list")
        destination, counts = packing.unpack_buffers_on_completion(parts)
    work = dispatch.gather(members, source, destination, root, counts, blocking=blocking(async_op))
    return handle_of(work, gather_list, async_op)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any],
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Distribute `scatter_list` of world rank `src` into `tensor`; all ranks pass a list."""
    members, root = resolve_root(group, src, "src")
    at_root = members.rank == root
    destination = buffers.view(tensor)
    parts = _list_views(scatter_list, "scatter_list", members.size if at_root else None)
    _check_one_shape(parts, "scatter_list")
    source, counts = None, None
    if at_root:
        _check_entry(destination, parts[0], "tensor", "scatter_list")
        source, counts = packing.pack_buffers(parts)
    work = dispatch.scatter(members, source, destination, root, counts, blocking=blocking(async_op))
    return handle_of(work, tensor, async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send entry j of the input list to rank j, and receive entry i of the output list from i."""
    members = resolve_group(group)
    outgoing = _list_views(input_tensor_list, "input_tensor_list")
    incoming = _list_views(output_tensor_list, "output_tensor_list")
    check_one_dtype([outgoing[0], incoming[0]])
    source, sends = packing.pack_buffers(outgoing)
    destination, receives = packing.unpack_buffers_on_completion(incoming)
    work = dispatch.all_to_all(
        members, source, destination, sends, receives, blocking=blocking(async_op)
    )
    return handle_of(work, output_tensor_list, async_op)


# ---- checks --------------------------------------------------------------------------------------


def _views(source: Any, destination: Any) -> tuple[Buffer, Buffer]:
    """The memory of two tensors of one dtype."""
    views = buffers.view(source), buffers.view(destination)
    check_one_dtype(views)
    return views


def _counts(buffer: Buffer, splits: Any, size: int, name: str) -> list[int]:
    return split_counts(buffer.shape, buffer.count, splits, size, name)


def _check_whole(whole: Buffer, part: Buffer, size: int, name: str) -> None:
    """`whole` holds `size` parts, one after the other; a part without dimensions is one row."""
    rows, *rest = part.shape or (1,)
    check_shape(whole.shape, (rows * size, *rest), name)


# Errors about lists are type errors in this dialect, those about shapes and dtypes too.


def _list_views(tensors: Any, name: str, size: int | None = None) -> list[Buffer]:
    """The memory of a list of tensors of one dtype, `size` of them if it is given."""
    check_list(tensors, name, (list, tuple))
    check_length(tensors, name, size, ArgumentTypeError)
    for tensor in tensors:
        if not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"{name} must hold tensors only, got {tensor!r}")
    views = [buffers.view(tensor) for tensor in tensors]
    check_one_dtype(views, ArgumentTypeError)
    return views


def _check_entry(buffer: Buffer, entry: Buffer, name: str, list_name: str) -> None:
    """Refuse a tensor whose shape differs from that of its entry in a list."""
    if buffer.shape != entry.shape:
        raise ArgumentTypeError(
            f"{name} has shape {buffer.shape}, but its entry in {list_name} has {entry.shape}"
        )


def _check_one_shape(entries: Sequence[Buffer], name: str) -> None:
    shapes = {entry.shape for entry in entries}
    if len(shapes) > 1:
        raise ArgumentTypeError(f"{name} must hold tensors of one shape, not {sorted(shapes)}")
