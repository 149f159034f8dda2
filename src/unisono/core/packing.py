"""Several tensors as one flat buffer, for verbs whose dialect takes lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import buffers
from unisono.core.buffers import Buffer, check_writable, view
from unisono.errors import ArgumentError, ArgumentTypeError

__all__ = ["join", "join_in", "land", "land_in"]


def join(tensors: Sequence[Any]) -> tuple[Buffer, list[int]]:
    """Copy tensors of one dtype one behind the other; returns the copy and how long each is.

    >>> import numpy as np
    >>> join([np.zeros(2), np.ones((3, 1))])
    (Buffer(float64 x 5), [2, 3])
    """
    return join_in(_views(tensors))


def join_in(parts: Sequence[Buffer]) -> tuple[Buffer, list[int]]:
    """The same for buffers that are there already."""
    return view(buffers.concatenated(parts)), [part.count for part in parts]


def land(tensors: Sequence[Any]) -> tuple[Buffer, list[int]]:
    """One buffer for a result that goes into several tensors, when the call has ended."""
    return land_in(_views(tensors))


def land_in(parts: Sequence[Buffer]) -> tuple[Buffer, list[int]]:
    """The same for buffers that are there already."""
    for part in parts:
        check_writable(part)
    landing = buffers.room_for(parts)
    buffer = view(landing)
    buffer.copy_back = lambda: buffers.deal_out(landing, parts)
    return buffer, [part.count for part in parts]


def _views(tensors: Sequence[Any]) -> list[Buffer]:
    if not isinstance(tensors, (list, tuple)):
        raise ArgumentTypeError(f"expected a list of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise ArgumentError("the list of tensors is empty; it needs one for each rank")
    parts = [view(tensor) for tensor in tensors]
    names = {part.dtype.name for part in parts}
    if len(names) > 1:
        raise ArgumentTypeError(f"the tensors of a list must have one dtype, not {sorted(names)}")
    return parts
