"""Several tensors as one flat buffer, for verbs whose dialect takes lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import buffers
from unisono.core.arguments import check_length, check_list, check_one_dtype
from unisono.core.buffers import Buffer, check_writable, view
from unisono.errors import ArgumentTypeError

__all__ = ["pack", "pack_buffers", "unpack_buffers_on_completion", "unpack_on_completion"]


def pack(tensors: Sequence[Any]) -> tuple[Buffer, list[int]]:
    """Copy tensors of one dtype one after the other; returns the copy and how long each is.

    >>> import numpy as np
    >>> pack([np.zeros(2), np.ones((3, 1))])
    (Buffer(float64 x 5), [2, 3])
    """
    return pack_buffers(_views(tensors))


def pack_buffers(parts: Sequence[Buffer]) -> tuple[Buffer, list[int]]:
    """The same for buffers that are there already."""
    return view(buffers.concatenated(parts)), [part.count for part in parts]


def unpack_on_completion(
    tensors: Sequence[Any], name: str = "the output"
) -> tuple[Buffer, list[int]]:
    """One buffer for a result that goes into several tensors, when the call has ended."""
    return unpack_buffers_on_completion(_views(tensors), name)


def unpack_buffers_on_completion(
    parts: Sequence[Buffer], name: str = "the output"
) -> tuple[Buffer, list[int]]:
    """The same for buffers that are there already; `name` is what the caller calls their list."""
    for part in parts:
        check_writable(part, f"a tensor of {name}")
    landing = buffers.empty_for(parts)
    buffer = view(landing)
    buffer.copy_back = lambda: buffers.unpack_into(landing, parts)
    return buffer, [part.count for part in parts]


def _views(tensors: Sequence[Any]) -> list[Buffer]:
    check_list(tensors, "the tensors of a call", (list, tuple))
    check_length(tensors, "the list of tensors")
    parts = [view(tensor) for tensor in tensors]
    check_one_dtype(parts, ArgumentTypeError)
    return parts
