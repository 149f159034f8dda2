"""Arrays of NumPy, and what NumPy shows as an array: JAX, DLPack, the buffer protocol."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from unisono.core import dtypes
from unisono.core.buffers.buffer import Buffer, overlaps_itself
from unisono.core.buffers.kinds import describe, unknown_dtype
from unisono.errors import ArgumentTypeError, Unsupported

__all__ = ["refuse_masked", "view_array_like", "view_dlpack", "view_memory", "view_numpy"]

_address_of = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def view_numpy(array: np.ndarray[Any, Any]) -> Buffer:
    """Show an array of NumPy."""
    dtype = dtypes.of(array.dtype)
    if dtype is None:
        raise unknown_dtype(array.dtype)
    flags = array.flags
    writable = flags.writeable
    if not (flags.c_contiguous and flags.aligned):
        if writable and overlaps_itself(array.shape, array.strides, array.itemsize):
            writable = False
        packed = array.copy(order="C")
        return Buffer(
            packed.ctypes.data,
            packed.size,
            dtype,
            packed,
            writable,
            lambda: np.copyto(array, packed),
        )
    if writable and array.size and dtype.storage is dtype.numpy:
        address = _address_of(_first_byte(array))  # a third of the cost of array.ctypes.data
    else:
        address = array.ctypes.data
    return Buffer(address, array.size, dtype, array, writable)


def refuse_masked(array: np.ma.MaskedArray[Any, Any]) -> NoReturn:
    """Refuse an array of which not all elements count: nobody else would know which."""
    raise ArgumentTypeError(
        "the other ranks would not know the mask of a masked array; pass array.filled(value), or "
        "array.data and numpy.ma.getmaskarray(array) in two calls"
    )


def view_array_like(tensor: Any) -> Buffer:
    """Show an array of JAX on the CPU: the same memory, which is read-only."""
    return view_numpy(np.asarray(tensor))


def view_dlpack(tensor: Any) -> Buffer:
    """Show what another framework offers by DLPack."""
    try:
        return view_numpy(np.from_dlpack(tensor))
    except (BufferError, RuntimeError) as error:
        raise Unsupported(
            f"cannot view {describe(tensor)}: {error}; move it to the CPU first"
        ) from error


def view_memory(thing: Any) -> Buffer:
    """Show an object by the buffer protocol."""
    return view_numpy(np.asarray(memoryview(thing)))
