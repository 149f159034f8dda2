"""The MindSpore face: every rank sends a part to every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import as_ints
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._checks import (
    CommHandle,
    check_bool,
    check_integer,
    handle_of,
    resolve_group,
    rows,
    shape_of,
)

__all__ = [
    "all_to_all_single_with_output_shape",
    "all_to_all_v_c",
    "all_to_all_with_output_shape",
]


def all_to_all_with_output_shape(
    output_shape_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | Group | None = None,
    async_op: bool = False,
) -> tuple[tuple[Any, ...], CommHandle | None]:
    """Send entry j to rank j; the shapes (or tensors that have them) say what comes from each."""
    check_bool(async_op, "async_op")
    if not isinstance(output_shape_list, list | tuple):
        raise ArgumentTypeError(f"output_shape_list must be a list, got {output_shape_list!r}")
    shapes = [_asked(entry) for entry in output_shape_list]
    source, sends = packing.pack(input_tensor_list)
    members = resolve_group(group)
    _one_for_each(shapes, members.size, "output_shape_list")
    _one_for_each(sends, members.size, "input_tensor_list")
    outs = [buffers.output_like(input_tensor_list[0], shape) for shape in shapes]
    landing, receives = packing.unpack_buffers_on_completion([out.buffer for out in outs])
    work = dispatch.all_to_all(members, source, landing, sends, receives, blocking=not async_op)
    result = tuple(out.finish(work) for out in outs)
    return result, handle_of(work, result, async_op)


def all_to_all_single_with_output_shape(
    output_shape: Any,
    tensor: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: str | Group | None = None,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Send rows of `tensor` to each rank and join the rows that come; splits count rows."""
    check_bool(async_op, "async_op")
    given, asked = shape_of(tensor), _asked(output_shape)
    members = resolve_group(group)
    gives = _splits(input_split_sizes, given, members.size, "input_split_sizes")
    takes = _splits(output_split_sizes, asked, members.size, "output_split_sizes")
    out = buffers.output_like(tensor, (sum(takes), *asked[1:]))
    work = dispatch.all_to_all(
        members,
        buffers.view(tensor),
        out.buffer,
        [split * math.prod(given[1:]) for split in gives],
        [split * math.prod(asked[1:]) for split in takes],
        blocking=not async_op,
    )
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


def all_to_all_v_c(
    output: Any,
    input: Any,
    send_count_matrix: list[int],
    group: str | Group | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Exchange rows into `output`; entry i * N + j of the matrix says how many i sends to j."""
    check_bool(async_op, "async_op")
    target, source = shape_of(output), shape_of(input)
    if not isinstance(send_count_matrix, list):
        raise ArgumentTypeError(f"send_count_matrix must be a list, got {send_count_matrix!r}")
    for count in send_count_matrix:
        check_integer(count, "each entry of send_count_matrix")
    members = resolve_group(group)
    size = members.size
    if len(send_count_matrix) != size * size:
        raise ArgumentTypeError(
            f"send_count_matrix has {len(send_count_matrix)} entries where {size} ranks need "
            f"{size * size}"
        )
    row = math.prod(source[1:])
    if row != math.prod(target[1:]):
        raise ArgumentError(
            f"rows of output {target} and input {source} must have as many elements"
        )
    # A rank outside the group has no row of its own; dispatch refuses it a moment later.
    place = max(members.rank, 0)
    work = dispatch.all_to_all(
        members,
        buffers.view(input),
        buffers.view(output),
        [count * row for count in send_count_matrix[place * size : (place + 1) * size]],
        [count * row for count in send_count_matrix[place::size]],
        blocking=not async_op,
    )
    return handle_of(work, output, async_op)


def _asked(entry: Any) -> tuple[int, ...]:
    """A shape, from itself or from a tensor that has it."""
    if not isinstance(entry, list | tuple):
        return shape_of(entry)
    for length in entry:
        check_integer(length, "each entry of a shape")
        if length < 0:
            raise ArgumentError(f"a shape cannot have negative lengths: {tuple(entry)}")
    return tuple(entry)


def _splits(splits: Sequence[int] | None, shape: Sequence[int], size: int, name: str) -> list[int]:
    """How many rows go to or come from each rank; equal shares where nothing is said."""
    told = [] if splits is None else as_ints(splits, name)
    if not told:
        return [rows(shape, size)] * size
    if min(told) < 0:
        raise ArgumentError(f"{name} cannot be negative: {told}")
    _one_for_each(told, size, name)
    return told


def _one_for_each(entries: Sequence[Any], size: int, name: str) -> None:
    if len(entries) != size:
        raise ArgumentError(f"{name} has {len(entries)} entries for a group of {size} ranks")
