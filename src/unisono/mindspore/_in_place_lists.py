"""Collectives that write into lists of the caller, or read from them: a tensor for each rank.

As in `_in_place`, but errors about lists are type errors in this dialect, those about shapes and
dtypes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import (
    check_length,
    check_list,
    check_one_dtype,
)
from unisono.core.buffers import Buffer
from unisono.errors import ArgumentTypeError
from unisono.mindspore._arguments import blocking, operator, view
from unisono.mindspore._gradients import writes
from unisono.mindspore._groups import resolve_group, resolve_root
from unisono.mindspore._handles import CommHandle, handle_of

__all__ = [
    "all_gather",
    "all_to_all",
    "gather",
    "reduce_scatter",
    "scatter",
]


@writes("tensor_list", "tensor")
def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Collect every rank's tensor in `tensor_list`, on every rank; shapes may differ.

    >>> def everyone():
    ...     parts = [np.empty(1, int) for _ in range(2)]
    ...     mint.all_gather(parts, np.array([mint.get_rank()]))
    ...     return np.concatenate(parts).tolist()
    >>> unisono.spawn(everyone, 2)
    [[0, 1], [0, 1]]
    """
    parts, source = _list_views(tensor_list, "tensor_list"), view(tensor, "tensor")
    waits = blocking(async_op)
    members = resolve_group(group)
    check_length(parts, "tensor_list", members.size, ArgumentTypeError)
    if members.rank >= 0:
        _check_entry(source, parts[members.rank], "tensor", "tensor_list")
    destination, counts = packing.unpack_buffers_on_completion(parts, "tensor_list")
    names = ("tensor", "tensor_list")
    work = dispatch.all_gather(members, source, destination, counts, blocking=waits, names=names)
    return handle_of(work, tensor_list, async_op)


@writes("output", "input_list")
def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine every rank's list and leave entry `rank` of it in `output`; shapes may differ.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     mint.reduce_scatter(x, [np.array([10]), np.array([20])])
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    parts, destination = _list_views(input_list, "input_list"), view(output, "output")
    combine, waits = operator(op), blocking(async_op)
    members = resolve_group(group)
    check_length(parts, "input_list", members.size, ArgumentTypeError)
    if members.rank >= 0:
        _check_entry(destination, parts[members.rank], "output", "input_list")
    source, counts = packing.pack_buffers(parts)
    names = ("input_list", "output")
    work = dispatch.reduce_scatter(
        members, source, destination, combine, counts, blocking=waits, names=names
    )
    return handle_of(work, output, async_op)


@writes("gather_list", "tensor")
def gather(
    tensor: Any,
    gather_list: Sequence[Any],
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Collect every rank's tensor in `gather_list` of world rank `dst`; all ranks pass a list.

    >>> def on_rank_0():
    ...     parts = [np.zeros(1, int) for _ in range(2)]
    ...     mint.gather(np.array([mint.get_rank()]), parts, dst=0)
    ...     return np.concatenate(parts).tolist()
    >>> unisono.spawn(on_rank_0, 2)
    [[0, 1], [0, 0]]
    """
    source, parts = view(tensor, "tensor"), _list_views(gather_list, "gather_list")
    waits = blocking(async_op)
    members, root = resolve_root(group, dst, "dst")
    _check_one_shape(parts, "gather_list")
    destination, counts = None, None
    if members.rank == root:
        check_length(parts, "gather_list", members.size, ArgumentTypeError)
        _check_entry(source, parts[0], "tensor", "gather_list")
        destination, counts = packing.unpack_buffers_on_completion(parts, "gather_list")
    names = ("tensor", "gather_list")
    work = dispatch.gather(members, source, destination, root, counts, blocking=waits, names=names)
    return handle_of(work, gather_list, async_op)


@writes("tensor", "scatter_list")
def scatter(
    tensor: Any,
    scatter_list: Sequence[Any],
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Distribute `scatter_list` of world rank `src` into `tensor`; all ranks pass a list.

    >>> def part():
    ...     x, parts = np.empty(1, int), [np.array([10]), np.array([20])]
    ...     mint.scatter(x, parts, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[10], [20]]
    """
    destination, parts = view(tensor, "tensor"), _list_views(scatter_list, "scatter_list")
    waits = blocking(async_op)
    members, root = resolve_root(group, src, "src")
    _check_one_shape(parts, "scatter_list")
    source, counts = None, None
    if members.rank == root:
        check_length(parts, "scatter_list", members.size, ArgumentTypeError)
        _check_entry(destination, parts[0], "tensor", "scatter_list")
        source, counts = packing.pack_buffers(parts)
    names = ("scatter_list", "tensor")
    work = dispatch.scatter(members, source, destination, root, counts, blocking=waits, names=names)
    return handle_of(work, tensor, async_op)


@writes("output_tensor_list", "input_tensor_list")
def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send entry j of the input list to rank j, and receive entry i of the output list from i.

    >>> def exchange():
    ...     mine = [np.array([10 * mint.get_rank() + i]) for i in range(2)]
    ...     found = [np.empty(1, int) for _ in range(2)]
    ...     mint.all_to_all(found, mine)
    ...     return np.concatenate(found).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 10], [1, 11]]
    """
    outgoing = _list_views(input_tensor_list, "input_tensor_list")
    incoming = _list_views(output_tensor_list, "output_tensor_list")
    waits = blocking(async_op)
    members = resolve_group(group)
    check_length(outgoing, "input_tensor_list", members.size)
    check_length(incoming, "output_tensor_list", members.size)
    names = ("input_tensor_list", "output_tensor_list")
    check_one_dtype([outgoing[0], incoming[0]], names=" and ".join(names))
    source, sends = packing.pack_buffers(outgoing)
    destination, receives = packing.unpack_buffers_on_completion(incoming, "output_tensor_list")
    work = dispatch.all_to_all(
        members, source, destination, sends, receives, blocking=waits, names=names
    )
    return handle_of(work, output_tensor_list, async_op)


def _list_views(tensors: Any, name: str) -> list[Buffer]:
    """The memory of a list of tensors of one dtype; at least one."""
    check_list(tensors, name, (list, tuple))
    check_length(tensors, name, error=ArgumentTypeError)
    for tensor in tensors:
        if not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"{name} must hold tensors only, got {tensor!r}")
    views = [view(tensor, name) for tensor in tensors]
    check_one_dtype(views, ArgumentTypeError, f"the tensors of {name}")
    return views


def _check_entry(buffer: Buffer, entry: Buffer, name: str, list_name: str) -> None:
    """Refuse a tensor whose dtype or shape differs from that of its entry in a list."""
    check_one_dtype([buffer, entry], ArgumentTypeError, f"{name} and {list_name}")
    if buffer.shape != entry.shape:
        raise ArgumentTypeError(
            f"{name} has shape {buffer.shape}, but its entry in {list_name} has {entry.shape}"
        )


def _check_one_shape(entries: Sequence[Buffer], name: str) -> None:
    shapes = {entry.shape for entry in entries}
    if len(shapes) > 1:
        raise ArgumentTypeError(f"{name} must hold tensors of one shape, not {sorted(shapes)}")
