"""The primitives in which every rank sends a part to every rank, or parts differ in length.

Counts are lists, tuples or tensors of whole numbers. In a graph they have to be constants: a
primitive that takes them is no operator there; its call builds one for these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import as_ints, check_length, equal_rows, shape_of
from unisono.core.groups import Group
from unisono.errors import ArgumentError
from unisono.mindspore._arguments import ReduceOp, check_bool, check_integer, operator, view
from unisono.mindspore._gradients import differentiable
from unisono.mindspore._groups import resolve_group
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops._collectives import Backward, backward_of_reduction
from unisono.mindspore.ops._primitive import (
    WORLD,
    CommunicationPrimitive,
    CompositePrimitive,
    OperatorPrimitive,
)

__all__ = [
    "AllGatherV",
    "AlltoAll",
    "AlltoAllV",
    "AlltoAllVC",
    "FlatExchange",
    "FlatGather",
    "FlatReduceScatter",
    "ListExchange",
    "MatrixExchange",
    "ReduceScatterV",
    "RowExchange",
]

_NAMES = ("input_x", "the result")  # what the caller calls source and destination


class AlltoAll(OperatorPrimitive):
    """Cut a tensor along one dimension, exchange the blocks, join them along another.

    >>> def exchange():
    ...     x = np.arange(4) + 10 * dist.get_rank()
    ...     return ops.AlltoAll(2, 0, 0)(x).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """

    def __init__(
        self,
        split_count: int,
        split_dim: int,
        concat_dim: int,
        group: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        check_integer(split_count, "split_count")
        check_integer(split_dim, "split_dim")
        check_integer(concat_dim, "concat_dim")
        self.split_count = split_count
        self.split_dim = split_dim
        self.concat_dim = concat_dim

    def __call__(self, input_x: Any) -> Any:
        """Return the blocks received, in the order of ranks, as one tensor."""
        return _exchange_blocks(
            input_x, self.split_count, self.split_dim, self.concat_dim, self.group
        )

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """One dimension shorter, another longer."""
        size = self.size()
        split, concat = _dimensions(
            self.split_count, self.split_dim, self.concat_dim, shapes[0], size
        )
        return tuple(_shapes_of_blocks(shapes[0], split, concat, size)[1])

    def backward(self) -> Backward:
        """The same exchange with the dimensions swapped."""
        back = self.like(AlltoAll, self.split_count, self.concat_dim, self.split_dim, self.group)

        def of_exchange(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (back(gradient),)

        return of_exchange


@differentiable("unisono.mindspore.ops._exchanges:AlltoAll")
def _exchange_blocks(
    tensor: Any, split_count: int, split_dim: int, concat_dim: int, group: str | Group | None
) -> Any:
    members = resolve_group(group)
    shape = shape_of(tensor)
    split, concat = _dimensions(split_count, split_dim, concat_dim, shape, members.size)
    block, whole = _shapes_of_blocks(shape, split, concat, members.size)
    out = buffers.output_like(tensor, whole)
    source = view(tensor, "input_x")
    # Blocks are not contiguous unless the first dimension is cut, so NumPy packs them.
    cut = np.split(buffers.read(source).reshape(shape), members.size, axis=split)
    packed, counts = packing.pack([np.ascontiguousarray(part) for part in cut])
    received = np.empty(sum(counts), source.dtype.numpy)
    dispatch.all_to_all(members, packed, buffers.view(received), counts, counts)
    blocks = received.reshape(members.size, *block)
    buffers.write(out.buffer, np.concatenate(list(blocks), axis=concat).reshape(-1))
    return out.finish()


def _dimensions(
    split_count: int, split_dim: int, concat_dim: int, shape: Sequence[int], size: int
) -> tuple[int, int]:
    """Both dimensions as numbers from 0; negative ones count from the end."""
    if split_count != size:
        raise ArgumentError(f"split_count is {split_count}, but the group has {size} ranks")
    for name, dimension in (("split_dim", split_dim), ("concat_dim", concat_dim)):
        if not -len(shape) <= dimension < len(shape):
            raise ArgumentError(f"{name} {dimension} is out of range for {len(shape)} dimensions")
    return split_dim % len(shape), concat_dim % len(shape)


def _shapes_of_blocks(
    shape: Sequence[int], split: int, concat: int, size: int
) -> tuple[list[int], list[int]]:
    """The shape of one block, and that of the result."""
    block = list(shape)
    block[split] = equal_rows(shape[split:], size, f"input_x from dimension {split} on")
    whole = list(block)
    whole[concat] *= size
    return block, whole


# ---- flat tensors with counts --------------------------------------------------------------------


class AlltoAllV(CompositePrimitive):
    """Exchange parts of flat tensors; the lists count blocks of `block_size` elements.

    >>> def exchange():
    ...     x = np.arange(4) + 10 * dist.get_rank()
    ...     return ops.AlltoAllV()(x, [2, 2], [2, 2]).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """

    def __init__(self, group: str | Group | None = WORLD, block_size: int = 1) -> None:
        super().__init__(group)
        check_integer(block_size, "block_size")
        self.block_size = block_size

    def __call__(self, input_x: Any, send_numel_list: Any, recv_numel_list: Any) -> Any:
        """Return what each rank sent, one after the other, as a flat tensor."""
        return FlatExchange(send_numel_list, recv_numel_list, self.block_size, self.group)(input_x)


class AlltoAllVC(CompositePrimitive):
    """Exchange parts of flat tensors as one matrix says: entry i * N + j is what i sends to j.

    >>> def exchange():
    ...     x = np.arange(4) + 10 * dist.get_rank()
    ...     return ops.AlltoAllVC()(x, [2, 2, 2, 2]).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """

    def __init__(
        self, group: str | Group | None = WORLD, block_size: int = 1, transpose: bool = False
    ) -> None:
        super().__init__(group)
        check_integer(block_size, "block_size")
        check_bool(transpose, "transpose")
        self.block_size = block_size
        self.transpose = transpose

    def __call__(self, input_x: Any, send_count_matrix: Any) -> Any:
        """Return what each rank sent, one after the other, as a flat tensor."""
        return MatrixExchange(send_count_matrix, self.block_size, self.transpose, self.group)(
            input_x
        )


class AllGatherV(CompositePrimitive):
    """Join flat tensors of different lengths, on every rank.

    >>> def joined():
    ...     rank = dist.get_rank()
    ...     return ops.AllGatherV()(np.full(rank + 1, rank), [1, 2]).tolist()
    >>> unisono.spawn(joined, 2)
    [[0, 1, 1], [0, 1, 1]]
    """

    def __init__(self, group: str | Group | None = WORLD) -> None:
        super().__init__(group)

    def __call__(self, input_x: Any, output_split_sizes: Any) -> Any:
        """Return all tensors, one after the other; the list says how long each one is."""
        return FlatGather(output_split_sizes, self.group)(input_x)


class ReduceScatterV(CompositePrimitive):
    """Combine flat tensors; each rank gets a part, whose length may differ.

    >>> unisono.spawn(lambda: ops.ReduceScatterV()(np.array([10, 20, 30]), [1, 2]).tolist(), 2)
    [[20], [40, 60]]
    """

    def __init__(self, op: str = "sum", group: str | Group | None = WORLD) -> None:
        super().__init__(group)
        operator(op)
        self.op = op

    def __call__(self, input_x: Any, input_split_sizes: Any) -> Any:
        """Return this rank's part; the list says how long each rank's is."""
        return FlatReduceScatter(input_split_sizes, self.op, self.group)(input_x)


class FlatExchange(CommunicationPrimitive):
    """`AlltoAllV` for given counts."""

    def __init__(
        self,
        send_numel_list: Any,
        recv_numel_list: Any,
        block_size: int,
        group: str | Group | None,
    ) -> None:
        super().__init__(group)
        self.sends = _counts(send_numel_list, "send_numel_list", block_size)
        self.receives = _counts(recv_numel_list, "recv_numel_list", block_size)

    def __call__(self, input_x: Any) -> Any:
        """Return what each rank sent."""
        return _exchange(input_x, self.sends, self.receives, 1, self.group)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """As long as all that is received."""
        return (sum(self.receives),)

    def backward(self) -> Backward:
        """The same exchange, back."""
        back = self.like(FlatExchange, self.receives, self.sends, 1, self.group)

        def of_exchange(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (back(gradient),)

        return of_exchange


class MatrixExchange(FlatExchange):
    """`AlltoAllVC` for a given matrix."""

    def __init__(
        self, send_count_matrix: Any, block_size: int, transpose: bool, group: str | Group | None
    ) -> None:
        members = resolve_group(group)
        size, rank = int(members.size), max(int(members.rank), 0)
        rows = getattr(send_count_matrix, "tolist", lambda: send_count_matrix)()
        if isinstance(rows, list | tuple):  # _counts says what is wrong with anything else
            rows = [
                count for row in rows for count in (row if isinstance(row, list | tuple) else [row])
            ]
        matrix = _counts(rows, "send_count_matrix", 1)
        if len(matrix) != size * size:
            raise ArgumentError(
                f"send_count_matrix has {len(matrix)} entries where {size} ranks need {size * size}"
            )
        row, column = matrix[rank * size : (rank + 1) * size], matrix[rank::size]
        sends, receives = (column, row) if transpose else (row, column)
        super().__init__(sends, receives, block_size, group)


@differentiable("unisono.mindspore.ops._exchanges:FlatExchange")
def _exchange(
    tensor: Any, sends: Any, receives: Any, block_size: int, group: str | Group | None
) -> Any:
    members = resolve_group(group)
    _check_flat(tensor)
    out = buffers.output_like(tensor, (sum(receives),))
    check_length(sends, "send_numel_list", members.size)
    check_length(receives, "recv_numel_list", members.size)
    source = view(tensor, "input_x")
    dispatch.all_to_all(members, source, out.buffer, sends, receives, names=_NAMES)
    return out.finish()


class FlatGather(CommunicationPrimitive):
    """`AllGatherV` for given counts."""

    def __init__(self, output_split_sizes: Any, group: str | Group | None) -> None:
        super().__init__(group)
        self.counts = _counts(output_split_sizes, "output_split_sizes")

    def __call__(self, input_x: Any) -> Any:
        """Return every rank's tensor, one after the other."""
        return _gather(input_x, self.counts, self.group)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """As long as all together."""
        return (sum(self.counts),)

    def backward(self) -> Backward:
        """Each rank's part of the sum of all gradients."""
        scatter = self.like(FlatReduceScatter, self.counts, ReduceOp.SUM, self.group)

        def of_gather(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (scatter(gradient),)

        return of_gather


@differentiable("unisono.mindspore.ops._exchanges:FlatGather")
def _gather(tensor: Any, counts: Any, group: str | Group | None) -> Any:
    members = resolve_group(group)
    _check_flat(tensor)
    out = buffers.output_like(tensor, (sum(counts),))
    check_length(counts, "output_split_sizes", members.size)
    dispatch.all_gather(members, view(tensor, "input_x"), out.buffer, counts, names=_NAMES)
    return out.finish()


class FlatReduceScatter(CommunicationPrimitive):
    """`ReduceScatterV` for given counts."""

    def __init__(self, input_split_sizes: Any, op: str, group: str | Group | None) -> None:
        super().__init__(group)
        operator(op)
        self.counts = _counts(input_split_sizes, "input_split_sizes")
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return this rank's part."""
        return _reduce_scatter(input_x, self.counts, self.op, self.group)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """As long as this rank's part."""
        return (self.counts[resolve_group(self.group).rank],)

    def backward(self) -> Backward:
        """Every rank's gradient, joined."""
        gather = self.like(FlatGather, self.counts, self.group)
        return backward_of_reduction(self.op, self.size, gather, gather)


@differentiable("unisono.mindspore.ops._exchanges:FlatReduceScatter")
def _reduce_scatter(tensor: Any, counts: Any, op: str, group: str | Group | None) -> Any:
    members = resolve_group(group)
    _check_flat(tensor)
    check_length(counts, "input_split_sizes", members.size)
    out = buffers.output_like(tensor, (counts[max(members.rank, 0)],))
    source = view(tensor, "input_x")
    dispatch.reduce_scatter(members, source, out.buffer, operator(op), counts, names=_NAMES)
    return out.finish()


def _counts(values: Any, name: str, unit: int = 1) -> tuple[int, ...]:
    given = getattr(values, "tolist", lambda: values)()
    return tuple(count * unit for count in as_ints(given, name))


def _check_flat(tensor: Any) -> None:
    if len(shape_of(tensor)) != 1:
        raise ArgumentError(f"input_x must be flat, but its shape is {shape_of(tensor)}")


# ---- what the functions of comm_func are differentiated as ---------------------------------------


class RowExchange(CommunicationPrimitive):
    """`comm_func.all_to_all_single_with_output_shape` for given splits."""

    def __init__(
        self,
        output_shape: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        group: str | Group | None,
        is_backward: bool = False,
    ) -> None:
        super().__init__(group)
        self.is_backward = is_backward
        self.output_shape = tuple(getattr(output_shape, "shape", output_shape))
        self.receives = _counts(output_split_sizes or (), "output_split_sizes")
        self.sends = _counts(input_split_sizes or (), "input_split_sizes")

    def __call__(self, tensor: Any) -> Any:
        """Return the rows received."""
        return comm_func.all_to_all_single_with_output_shape(
            self.output_shape, tensor, self.receives, self.sends, self.group
        )[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """As many rows as are received."""
        rows = sum(self.receives) if self.receives else self.output_shape[0]
        return (rows, *self.output_shape[1:])

    def backward(self) -> Backward:
        """The same exchange, back."""
        sends, receives, group, turned = self.sends, self.receives, self.group, not self.is_backward

        def of_exchange(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (RowExchange(operand.shape, sends, receives, group, turned)(gradient),)

        return of_exchange


class ListExchange(CommunicationPrimitive):
    """`comm_func.all_to_all_with_output_shape` for given shapes."""

    def __init__(self, output_shape_list: Any, group: str | Group | None) -> None:
        super().__init__(group)
        self.shapes = [tuple(getattr(entry, "shape", entry)) for entry in output_shape_list]

    def __call__(self, *tensors: Any) -> Any:
        """Return the tensors received."""
        return comm_func.all_to_all_with_output_shape(self.shapes, tensors, self.group)[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """Those that the caller gave."""
        return self.shapes

    def backward(self) -> Backward:
        """The same exchange, back."""
        group = self.group

        def of_exchange(*values: Any) -> tuple[Any, ...]:
            shapes: Any = ()
            for operand in values[:-2]:
                shapes += (operand.shape,)
            return tuple(ListExchange(shapes, group)(*values[-1]))

        return of_exchange
