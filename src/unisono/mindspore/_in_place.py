"""Collectives that write into tensors of the caller, as mint and ops.communication have them.

Groups are names, None means the world, and every `src` or `dst` is a rank of the world. A call
returns None, or a handle where `async_op` is true. The types of all arguments are checked before
any value, and before the group is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import dispatch, fast
from unisono.core.arguments import (
    as_ints,
    check_one_dtype,
    check_shape,
    split_counts,
)
from unisono.core.buffers import Buffer
from unisono.mindspore._arguments import blocking, known_operator, operator, view
from unisono.mindspore._gradients import writes
from unisono.mindspore._groups import resolve_group, resolve_root
from unisono.mindspore._handles import CommHandle, handle_of

__all__ = [
    "all_gather_into_tensor",
    "all_gather_into_tensor_uneven",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather_into_tensor",
    "reduce",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_uneven",
    "scatter_tensor",
]

_IN_PLACE = ("tensor", "tensor")  # what the caller calls source and destination


# ---- one tensor, or two of one shape -------------------------------------------------------------


def all_reduce(
    tensor: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group, in place, so that every rank holds the result.

    >>> def total():
    ...     x = np.full(2, mint.get_rank())
    ...     mint.all_reduce(x)
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[3, 3], [3, 3], [3, 3]]
    """
    if async_op is False and fast.all_reduce(tensor, known_operator(op), group, False) is None:
        return None
    buffer, combine, waits = view(tensor, "tensor"), operator(op), blocking(async_op)
    members = resolve_group(group)
    work = dispatch.all_reduce(members, buffer, buffer, combine, blocking=waits, names=_IN_PLACE)
    return handle_of(work, tensor, async_op)


def broadcast(
    tensor: Any, src: int, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Copy the tensor of world rank `src` into `tensor` of every rank.

    >>> def of_rank_1():
    ...     x = np.full(2, mint.get_rank())
    ...     mint.broadcast(x, src=1)
    ...     return x.tolist()
    >>> unisono.spawn(of_rank_1, 2)
    [[1, 1], [1, 1]]
    """
    if async_op is False and fast.broadcast(tensor, src, group, False, None) is None:
        return None
    buffer, waits = view(tensor, "tensor"), blocking(async_op)
    members, root = resolve_root(group, src, "src")
    source = buffer if members.rank == root else None
    work = dispatch.broadcast(members, source, buffer, root, blocking=waits, names=_IN_PLACE)
    return handle_of(work, tensor, async_op)


def reduce(
    tensor: Any, dst: int, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group into the one of world rank `dst`; others keep theirs.

    >>> def total_on_rank_1():
    ...     x = np.full(2, mint.get_rank())
    ...     mint.reduce(x, dst=1)
    ...     return x.tolist()
    >>> unisono.spawn(total_on_rank_1, 3)
    [[0, 0], [3, 3], [2, 2]]
    """
    if (
        async_op is False
        and fast.reduce(tensor, dst, known_operator(op), group, False, None) is None
    ):
        return None
    buffer, combine, waits = view(tensor, "tensor"), operator(op), blocking(async_op)
    members, root = resolve_root(group, dst, "dst")
    destination = buffer if members.rank == root else None
    work = dispatch.reduce(
        members, buffer, destination, combine, root, blocking=waits, names=_IN_PLACE
    )
    return handle_of(work, tensor, async_op)


def barrier(
    group: str | None = None, async_op: bool = False, device_ids: Any = None
) -> CommHandle | None:
    """Wait until every rank of the group has called this; `device_ids` changes nothing.

    >>> unisono.spawn(lambda: mint.barrier(), 2)
    [None, None]
    """
    if async_op is False and fast.barrier(group, False) is None:
        return None
    waits = blocking(async_op)
    work = dispatch.barrier(resolve_group(group), blocking=waits)
    return handle_of(work, None, async_op)


# ---- one tensor that holds a part for each rank --------------------------------------------------


@writes("output_tensor", "input_tensor")
def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Join every rank's tensor along the first dimension in `output_tensor`, on every rank.

    >>> def joined():
    ...     x = np.empty(4, int)
    ...     mint.all_gather_into_tensor(x, np.full(2, mint.get_rank()))
    ...     return x.tolist()
    >>> unisono.spawn(joined, 2)
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if async_op is False:
        done = fast.all_gather_into(output_tensor, input_tensor, group, False, True)
        if done is None:
            return None
    names = ("input_tensor", "output_tensor")
    (source, destination), waits = _views(input_tensor, output_tensor, names), blocking(async_op)
    members = resolve_group(group)
    _check_one_dtype(source, destination, names)
    _check_whole(destination, source, members.size, "output_tensor")
    work = dispatch.all_gather(members, source, destination, blocking=waits, names=names)
    return handle_of(work, output_tensor, async_op)


@writes("output", "input")
def all_gather_into_tensor_uneven(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join tensors that may have different numbers of rows, as `output_split_sizes` says.

    >>> def joined():
    ...     x, rank = np.empty(3, int), mint.get_rank()
    ...     mint.all_gather_into_tensor_uneven(x, np.full(rank + 1, rank), [1, 2])
    ...     return x.tolist()
    >>> unisono.spawn(joined, 2)
    [[0, 1, 1], [0, 1, 1]]
    """
    names = ("input", "output")
    (source, destination), waits = _views(input, output, names), blocking(async_op)
    splits = _splits(output_split_sizes, "output_split_sizes")
    members = resolve_group(group)
    _check_one_dtype(source, destination, names)
    counts = _counts(destination, splits, members.size, "output_split_sizes")
    work = dispatch.all_gather(members, source, destination, counts, blocking=waits, names=names)
    return handle_of(work, output, async_op)


@writes("output", "input")
def reduce_scatter_tensor(
    output: Any, input: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `input` over the group and leave this rank's part of the rows in `output`.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     mint.reduce_scatter_tensor(x, np.array([10, 20]))
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    if async_op is False:
        done = fast.reduce_scatter_into(output, input, known_operator(op), group, False, True)
        if done is None:
            return None
    names = ("input", "output")
    (source, destination), waits = _views(input, output, names), blocking(async_op)
    combine = operator(op)
    members = resolve_group(group)
    _check_one_dtype(source, destination, names)
    _check_whole(source, destination, members.size, "input")
    work = dispatch.reduce_scatter(
        members, source, destination, combine, blocking=waits, names=names
    )
    return handle_of(work, output, async_op)


@writes("output", "input")
def reduce_scatter_tensor_uneven(
    output: Any,
    input: Any,
    input_split_sizes: Any = None,
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine `input` and distribute its rows as `input_split_sizes` says.

    >>> def part():
    ...     x = np.empty(mint.get_rank() + 1, int)
    ...     mint.reduce_scatter_tensor_uneven(x, np.array([10, 20, 30]), [1, 2])
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40, 60]]
    """
    names = ("input", "output")
    (source, destination), waits = _views(input, output, names), blocking(async_op)
    splits, combine = _splits(input_split_sizes, "input_split_sizes"), operator(op)
    members = resolve_group(group)
    _check_one_dtype(source, destination, names)
    counts = _counts(source, splits, members.size, "input_split_sizes")
    work = dispatch.reduce_scatter(
        members, source, destination, combine, counts, blocking=waits, names=names
    )
    return handle_of(work, output, async_op)


@writes("output_tensor", "input_tensor")
def gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join every rank's tensor in `output_tensor` of world rank `dst`; others keep theirs.

    >>> def on_rank_0():
    ...     x = np.zeros(2, int)
    ...     mint.gather_into_tensor(x, np.full(1, mint.get_rank()), dst=0)
    ...     return x.tolist()
    >>> unisono.spawn(on_rank_0, 2)
    [[0, 1], [0, 0]]
    """
    names = ("input_tensor", "output_tensor")
    (source, output), waits = _views(input_tensor, output_tensor, names), blocking(async_op)
    members, root = resolve_root(group, dst, "dst")
    destination = output if members.rank == root else None
    if destination is not None:
        _check_one_dtype(source, destination, names)
        _check_whole(destination, source, members.size, "output_tensor")
    work = dispatch.gather(members, source, destination, root, blocking=waits, names=names)
    return handle_of(work, output_tensor, async_op)


@writes("output_tensor", "input_tensor")
def scatter_tensor(
    output_tensor: Any,
    input_tensor: Any,
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Distribute the rows of `input_tensor` of world rank `src`, in equal parts.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     mint.scatter_tensor(x, np.array([10, 20]), src=0)
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[10], [20]]
    """
    names = ("input_tensor", "output_tensor")
    (whole, destination), waits = _views(input_tensor, output_tensor, names), blocking(async_op)
    members, root = resolve_root(group, src, "src")
    _check_one_dtype(whole, destination, names)
    _check_whole(whole, destination, members.size, "input_tensor")
    source = whole if members.rank == root else None
    work = dispatch.scatter(members, source, destination, root, blocking=waits, names=names)
    return handle_of(work, output_tensor, async_op)


@writes("output", "input")
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send part j of the rows of `input` to rank j, and receive part i of `output` from i.

    >>> def exchange():
    ...     x = np.empty(4, int)
    ...     mint.all_to_all_single(x, np.arange(4) + 10 * mint.get_rank())
    ...     return x.tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """
    if async_op is False and output_split_sizes is None and input_split_sizes is None:
        done = fast.all_to_all_into(output, input, group, False)
        if done is None:
            return None
    names = ("input", "output")
    (source, destination), waits = _views(input, output, names), blocking(async_op)
    leaving = _splits(input_split_sizes, "input_split_sizes")
    arriving = _splits(output_split_sizes, "output_split_sizes")
    members = resolve_group(group)
    _check_one_dtype(source, destination, names)
    sends = _counts(source, leaving, members.size, "input_split_sizes")
    receives = _counts(destination, arriving, members.size, "output_split_sizes")
    work = dispatch.all_to_all(
        members, source, destination, sends, receives, blocking=waits, names=names
    )
    return handle_of(work, output, async_op)


# ---- checks --------------------------------------------------------------------------------------


def _views(source: Any, destination: Any, names: tuple[str, str]) -> tuple[Buffer, Buffer]:
    return view(source, names[0]), view(destination, names[1])


def _check_one_dtype(source: Buffer, destination: Buffer, names: tuple[str, str]) -> None:
    check_one_dtype([source, destination], names=" and ".join(names))


def _splits(splits: Any, name: str) -> list[int]:
    """How many rows belong to each rank; an empty list where the caller does not say."""
    return [] if splits is None else as_ints(splits, name)


def _counts(buffer: Buffer, splits: Sequence[int], size: int, name: str) -> list[int]:
    return split_counts(buffer.shape, buffer.count, splits, size, name)


def _check_whole(whole: Buffer, part: Buffer, size: int, name: str) -> None:
    """`whole` holds `size` parts, one after the other; a part without dimensions is one row."""
    rows, *rest = part.shape or (1,)
    check_shape(whole.shape, (rows * size, *rest), name)
