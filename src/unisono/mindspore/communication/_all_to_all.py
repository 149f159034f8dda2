"""The forms of all_to_all that `comm_func` has: lists, rows, and a matrix of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import as_ints, check_length, check_list, shape_of, split_counts
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._arguments import blocking, check_integer, view
from unisono.mindspore._gradients import differentiable, writes
from unisono.mindspore._groups import resolve_group
from unisono.mindspore._handles import CommHandle, handle_of

__all__ = [
    "all_to_all_single_with_output_shape",
    "all_to_all_v_c",
    "all_to_all_with_output_shape",
]


@differentiable("unisono.mindspore.ops._exchanges:ListExchange", "input_tensor_list")
def all_to_all_with_output_shape(
    output_shape_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | Group | None = None,
    async_op: bool = False,
) -> tuple[tuple[Any, ...], CommHandle | None]:
    """Send entry j to rank j; shapes, or tensors that have them, say what each rank sends here.

    >>> def exchange():
    ...     mine = [np.array([10 * dist.get_rank() + i]) for i in range(2)]
    ...     found, _ = comm_func.all_to_all_with_output_shape([(1,), (1,)], mine)
    ...     return np.concatenate(found).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 10], [1, 11]]
    """
    waits = blocking(async_op)
    check_list(output_shape_list, "output_shape_list", (list, tuple))
    shapes = [_shape(entry) for entry in output_shape_list]
    source, sends = packing.pack(input_tensor_list)
    members = resolve_group(group)
    check_length(shapes, "output_shape_list", members.size)
    check_length(sends, "input_tensor_list", members.size)
    outs = [buffers.output_like(input_tensor_list[0], shape) for shape in shapes]
    landing, receives = packing.unpack_buffers_on_completion([out.buffer for out in outs])
    names = ("input_tensor_list", "the result")
    work = dispatch.all_to_all(
        members, source, landing, sends, receives, blocking=waits, names=names
    )
    result = tuple(out.finish(work) for out in outs)
    return result, handle_of(work, result, async_op)


@differentiable("unisono.mindspore.ops._exchanges:RowExchange")
def all_to_all_single_with_output_shape(
    output_shape: Any,
    tensor: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: str | Group | None = None,
    async_op: bool = False,
) -> tuple[Any, CommHandle | None]:
    """Send rows of `tensor` to each rank and join the rows received; splits count rows.

    >>> def exchange():
    ...     x = np.arange(4) + 10 * dist.get_rank()
    ...     return comm_func.all_to_all_single_with_output_shape((4,), x)[0].tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """
    source, shape, waits = view(tensor, "tensor"), _shape(output_shape), blocking(async_op)
    splits = [] if input_split_sizes is None else as_ints(input_split_sizes, "input_split_sizes")
    rows = [] if output_split_sizes is None else as_ints(output_split_sizes, "output_split_sizes")
    members = resolve_group(group)
    size = members.size
    sends = split_counts(source.shape, source.count, splits, size, "input_split_sizes")
    if rows:  # they decide how many rows the result has, whatever output_shape says
        shape = (sum(rows), *shape[1:])
    receives = split_counts(shape, math.prod(shape), rows, size, "output_split_sizes")
    out = buffers.output_like(tensor, shape)
    names = ("tensor", "the result")
    work = dispatch.all_to_all(
        members, source, out.buffer, sends, receives, blocking=waits, names=names
    )
    result = out.finish(work)
    return result, handle_of(work, result, async_op)


@writes("output", "input")
def all_to_all_v_c(
    output: Any,
    input: Any,
    send_count_matrix: list[int],
    group: str | Group | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Exchange rows into `output`; entry i * N + j of the matrix says how many i sends to j.

    >>> def exchange():
    ...     x, y = np.full(2 * (dist.get_rank() + 1), dist.get_rank()), np.empty(3, int)
    ...     comm_func.all_to_all_v_c(y, x, [1, 1, 2, 2])
    ...     return y.tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 1], [0, 1, 1]]
    """
    waits = blocking(async_op)
    source, destination = view(input, "input"), view(output, "output")
    check_list(send_count_matrix, "send_count_matrix")
    for count in send_count_matrix:
        check_integer(count, "each entry of send_count_matrix")
    members = resolve_group(group)
    size = members.size
    if len(send_count_matrix) != size * size:
        raise ArgumentTypeError(
            f"send_count_matrix has {len(send_count_matrix)} entries where {size} ranks need "
            f"{size * size}"
        )
    width = math.prod(source.shape[1:])
    if width != math.prod(destination.shape[1:]):
        raise ArgumentError(
            f"rows of output {destination.shape} and input {source.shape} must have equally many "
            "elements"
        )
    # A rank outside the group has no row of its own; dispatch refuses it a moment later.
    rank = max(members.rank, 0)
    work = dispatch.all_to_all(
        members,
        source,
        destination,
        [count * width for count in send_count_matrix[rank * size : (rank + 1) * size]],
        [count * width for count in send_count_matrix[rank::size]],
        blocking=waits,
        names=("input", "output"),
    )
    return handle_of(work, output, async_op)


def _shape(entry: Any) -> tuple[int, ...]:
    """A shape: a list or tuple, or that of a tensor."""
    if not isinstance(entry, list | tuple):
        if not buffers.is_tensor(entry):
            raise ArgumentTypeError(f"expected a shape or a tensor, got {entry!r}")
        return shape_of(entry)
    for length in entry:
        check_integer(length, "each entry of a shape")
        if length < 0:
            raise ArgumentError(f"a shape cannot have negative lengths: {tuple(entry)}")
    return tuple(entry)
