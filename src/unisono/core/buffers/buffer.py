"""Flat memory of one dtype, and what is asked of it whatever it belongs to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unisono.core.arguments import shape_of
from unisono.core.dtypes import DType
from unisono.errors import ArgumentError, Unsupported

__all__ = ["Buffer", "check_writable", "overlap", "overlaps_itself"]


class Buffer:
    """Flat memory of one dtype that `owner` keeps alive; `device` says whose memory it is."""

    __slots__ = ("address", "copy_back", "count", "device", "dtype", "nbytes", "owner", "writable")

    def __init__(
        self,
        address: int,
        count: int,
        dtype: DType,
        owner: object,
        writable: bool = True,
        copy_back: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.count = count
        self.dtype = dtype
        self.nbytes = count * dtype.itemsize
        self.owner = owner
        self.writable = writable
        self.copy_back = copy_back
        self.device = "cpu"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that was viewed; looked up when it is asked for."""
        # A tensor that needed a copy is packed in one of its own shape.
        return shape_of(self.owner[0] if isinstance(self.owner, tuple) else self.owner)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The same memory as a one-dimensional NumPy array, if it is the host's."""
        if self.device != "cpu":
            raise Unsupported(f"this needs memory of the host, and the tensor is on {self.device}")
        if self.count == 0:
            return np.empty(0, self.dtype.numpy)
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        bytes_of: np.ndarray[Any, Any] = np.frombuffer(memoryview(memory), np.uint8)
        return bytes_of.view(self.dtype.numpy)

    def __repr__(self) -> str:
        return f"Buffer({self.dtype.name} x {self.count})"


def overlap(first: Buffer, second: Buffer) -> bool:
    """Tell whether two buffers share memory."""
    return (
        first.nbytes > 0
        and second.nbytes > 0
        and first.address < second.address + second.nbytes
        and second.address < first.address + first.nbytes
    )


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Tell whether two indexes may share memory, as in an expanded tensor."""
    reach = item
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * (length - 1) + reach
    return False


def check_writable(buffer: Buffer, name: str = "the destination") -> None:
    """Refuse a destination that cannot be written, before anything moves."""
    if not buffer.writable:
        raise ArgumentError(
            f"{name} cannot be written: it is read-only (a JAX array, a broadcast view), "
            "or several of its elements share memory; pass a writable copy"
        )
