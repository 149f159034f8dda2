"""What the in-place functions share: how parts are counted and checked, and what is answered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from unisono.core import buffers
from unisono.core.arguments import as_ints
from unisono.core.buffers import Buffer
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._checks import CommHandle, check_bool, handle_of, rows, shape_of

__all__ = ["check_dtypes", "check_list", "check_shape", "row_counts", "run"]


def run(
    verb: Callable[..., Work], group: Group, async_op: bool, result: Any, *arguments: Any
) -> CommHandle | None:
    """Start one verb of `dispatch` that fills `result`; returns a handle, or None."""
    check_bool(async_op, "async_op")
    return handle_of(verb(group, *arguments, blocking=not async_op), result, async_op)


def check_shape(tensor: Any, expected: Sequence[int], name: str) -> None:
    """Refuse a tensor whose shape is not the one that this call fills or reads."""
    if shape_of(tensor) != tuple(expected):
        raise ArgumentError(
            f"{name} has the shape {shape_of(tensor)} where {tuple(expected)} is needed"
        )


def check_dtypes(first: Buffer, second: Buffer) -> None:
    """Refuse two dtypes in one call; this dialect calls that a wrong value, not a wrong type."""
    if first.dtype is not second.dtype:
        raise ArgumentError(
            f"input and output must have one dtype, not {first.dtype.name} and {second.dtype.name}"
        )


def check_list(tensors: Any, name: str, size: int | None = None) -> list[tuple[int, ...]]:
    """Refuse what is not a list of tensors, `size` of them if it is given; return their shapes."""
    if not isinstance(tensors, list | tuple):
        raise ArgumentTypeError(f"{name} must be a list of tensors, got {type(tensors).__name__}")
    if not tensors or (size is not None and len(tensors) != size):
        needed = "at least one tensor" if size is None else f"{size} tensors, one for each rank"
        raise ArgumentTypeError(f"{name} has {len(tensors)} entries; it needs {needed}")
    for tensor in tensors:
        if not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"{name} must hold tensors only, got {tensor!r}")
    return [shape_of(tensor) for tensor in tensors]


def row_counts(group: Group, tensor: Any, splits: Any, name: str) -> list[int]:
    """How many elements belong to each rank, from rows of the first dimension; equal if not told.

    An empty list of splits means the same as None.
    """
    shape = shape_of(tensor)
    if not shape:
        raise ArgumentError(f"a tensor without dimensions has no rows to split ({name})")
    row = math.prod(shape[1:])
    told = [] if splits is None else as_ints(splits, name)
    if not told:
        return [rows(shape, group.size) * row] * group.size
    if len(told) != group.size or min(told) < 0 or sum(told) != shape[0]:
        raise ArgumentError(
            f"{name} is {told}; it needs {group.size} counts that add up to {shape[0]} rows"
        )
    return [count * row for count in told]
