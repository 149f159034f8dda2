"""MindSpore's tensors: where their memory is, and new ones for results."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import dtypes
from unisono.core.buffers.buffer import Buffer
from unisono.core.buffers.kinds import unknown_dtype
from unisono.core.buffers.numpy import view_numpy
from unisono.core.dtypes import DType
from unisono.errors import Unsupported

__all__ = ["empty_mindspore", "view_mindspore"]


def view_mindspore(tensor: Any) -> Buffer:
    """Show a tensor of MindSpore."""
    dtype = _dtype_of(tensor)
    count = tensor.size
    if count == 0:
        return Buffer(0, 0, dtype, tensor)
    # data_ptr() waits for operators that are under way, those that read this tensor included.
    address = tensor.data_ptr()
    if not address:
        version = sys.modules["mindspore"].__version__
        raise Unsupported(
            f"MindSpore {version} does not say where this tensor's memory is; use 2.10 or newer"
        )
    if tensor.is_contiguous():
        return Buffer(address, count, dtype, tensor)
    # Its own copy_ does not write strided CPU memory, so NumPy views the same strides: those of
    # stride(), because `strides` says what they would be if the tensor were contiguous.
    strides = [step * dtype.itemsize for step in tensor.stride()]
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    memory = (ctypes.c_char * (reach + dtype.itemsize)).from_address(address)
    array = np.ndarray(tensor.shape, dtype.storage, memory, strides=strides)
    buffer = view_numpy(array)
    buffer.dtype = dtype
    buffer.owner = (tensor, buffer.owner)
    return buffer


_lock = threading.Lock()
_has_computed = False


def empty_mindspore(shape: Sequence[int], like: Any) -> Any:
    """Make a new tensor over the memory of a NumPy array, which it keeps alive.

    Memory of MindSpore's own takes a hundred times as long to get.
    """
    global _has_computed
    mindspore = sys.modules["mindspore"]
    dtype = _dtype_of(like)
    if not _has_computed:
        # MindSpore aborts if two threads run its very first operator at once, and ranks that are
        # threads compute with results at the same time.
        with _lock:
            (mindspore.Tensor([1.0]) + 1.0).asnumpy()
            _has_computed = True
    return mindspore.Tensor.from_numpy(np.empty(shape, dtype.numpy))


_DTYPES: dict[Any, DType] = {}


def _dtype_of(tensor: Any) -> DType:
    """Our dtype of a tensor, by MindSpore's dtype objects: their names cost more."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        dtype = dtypes.by_name(str(tensor.dtype).lower())
        if dtype is None:
            raise unknown_dtype(tensor.dtype)
        _DTYPES[tensor.dtype] = dtype
    return dtype
