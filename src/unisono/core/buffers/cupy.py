"""CuPy's arrays, which are on a GPU; every engine takes them, if need be through the host."""

from __future__ import annotations

import sys
from typing import Any

from unisono.core import dtypes
from unisono.core.buffers.buffer import Buffer, overlaps_itself
from unisono.core.buffers.devices import note_device
from unisono.core.buffers.kinds import unknown_dtype

__all__ = ["view_cupy"]


def view_cupy(array: Any) -> Buffer:
    """Show an array of CuPy."""
    dtype = dtypes.of(array.dtype)
    if dtype is None:
        raise unknown_dtype(array.dtype)
    packed = array
    if not array.flags.c_contiguous:
        with array.device:  # it need not be the current one
            packed = sys.modules["cupy"].ascontiguousarray(array)
    buffer = Buffer(packed.data.ptr, packed.size, dtype, packed)
    if packed is not array:
        buffer.writable = not overlaps_itself(array.shape, array.strides, array.itemsize)

        def copy_back() -> None:
            with array.device:
                array[...] = packed

        buffer.copy_back = copy_back
    note_device(buffer, "cuda")
    return buffer
