"""Where a call has its arrays: on a GPU, real or emulated, or on the host, where tests compute."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import numpy as np

from unisono.core import buffers, dtypes
from unisono.core.buffers import Buffer
from unisono.core.groups import Group


class HostMemory:
    """The arrays themselves."""

    def view(self, array: np.ndarray) -> Buffer:
        """What a call takes."""
        return buffers.view(array)

    def fetch(self) -> None:
        """Let the arrays be what the calls have made of them."""

    def store(self) -> None:
        """Let calls find what the arrays are now."""


class DeviceMemory(HostMemory):
    """Copies on the GPU: those of arrays that share memory share it there, too."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[np.ndarray, Any]] = {}  # by the address of the whole

    def view(self, array: np.ndarray) -> Buffer:
        """The same elements on the GPU, of any dtype: frameworks know these as bytes."""
        if not array.flags.c_contiguous:
            return self._packed(array)
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if whole.ctypes.data not in self._copies:
            content = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)
            self._copies[whole.ctypes.data] = whole, _on_device(content)
        start = array.ctypes.data - whole.ctypes.data
        on_device = self._copies[whole.ctypes.data][1][start : start + array.nbytes]
        buffer = buffers.view(on_device)
        dtype = dtypes.of(array.dtype)
        assert dtype is not None
        buffer.dtype, buffer.count = dtype, array.size
        return buffer

    def _packed(self, array: np.ndarray) -> Buffer:
        """Its elements without the gaps, as frameworks pack their own arrays."""
        packed = array.copy(order="C")
        buffer = self.view(packed)

        def copy_back() -> None:
            self.fetch()
            array[...] = packed

        buffer.copy_back = copy_back
        return buffer

    def fetch(self) -> None:
        """Copy everything back to the arrays."""
        for whole, on_device in self._copies.values():
            whole.reshape(-1).view(np.uint8)[:] = _on_host(on_device)

    def store(self) -> None:
        """Copy everything to the GPU again."""
        for whole, on_device in self._copies.values():
            on_device[:] = _on_device(whole.reshape(-1).view(np.uint8))


def memory_of(group: Group) -> HostMemory:
    """The memory that tests of this engine are about, for the arrays of a call or of several."""
    return DeviceMemory() if group.engine.name == "cuda" else HostMemory()


def _on_device(content: np.ndarray) -> Any:
    """A copy, as an array of CuPy, which may be emulated, or of torch."""
    if "cupy" in sys.modules or importlib.util.find_spec("cupy"):
        return importlib.import_module("cupy").asarray(content)
    return importlib.import_module("torch").from_numpy(content.copy()).cuda()


def _on_host(on_device: Any) -> np.ndarray:
    return on_device.get() if hasattr(on_device, "get") else on_device.cpu().numpy()
