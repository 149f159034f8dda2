"""A GPU that is emulated in the memory of this host, for tests of engine `cuda` without one.

`install` puts it in the place of the CUDA driver (cuda_emulated_driver.py) and of CuPy, in a
process that is to be a rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.helpers.cuda_emulated_driver import GPU, ONE_QUEUE, EmulatedDriver, identity
from unisono.engines.cuda.gpu import device, driver

__all__ = [
    "GPU",
    "ONE_QUEUE",
    "OTHER_STREAM",
    "EmulatedDriver",
    "asarray",
    "empty",
    "get_current_stream",
    "gpu",
    "install",
    "install_torch",
    "ndarray",
    "on_stream",
]

# ---- CuPy, as far as buffers and tests use it ----

_current = threading.local()
OTHER_STREAM = 77  # the current one of another GPU


class CurrentStream:
    """The stream of this thread."""

    def __init__(self, number: int) -> None:
        self.ptr = number

    def synchronize(self) -> None:
        gpu().synchronize(self.ptr)


def get_current_stream(device_id: int = 0) -> CurrentStream:
    return CurrentStream(getattr(_current, "stream", 0) if device_id == 0 else OTHER_STREAM)


@contextlib.contextmanager
def on_stream(number: int) -> Iterator[None]:
    """Let this thread work in another stream meanwhile."""
    before, _current.stream = getattr(_current, "stream", 0), number
    yield
    _current.stream = before


def gpu() -> EmulatedDriver:
    """The driver of this process, entered."""
    made = device.device_at(0).driver
    assert isinstance(made, EmulatedDriver)
    made.enter()
    return made


class Device:
    """A GPU by its number, in CuPy's words; all are the same memory here."""

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        self._before, _current.device = getattr(_current, "device", 0), self.id
        return self

    def __exit__(self, *error: object) -> None:
        _current.device = self._before


class _Memory:
    """An allocation, which ends with its last array."""

    def __init__(self, nbytes: int, shareable: bool) -> None:
        self._driver = gpu()
        self.device = Device(getattr(_current, "device", 0))
        self.address = self._driver.allocate(max(nbytes, 1), shareable=shareable)

    def __del__(self) -> None:
        self._driver.free(self.address)


class ndarray:  # noqa: N801 - CuPy's name
    """An array on the emulated GPU, always contiguous."""

    def __init__(self, memory: _Memory, offset: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._memory = memory
        self._offset = offset
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(shape))
        self.itemsize = self.dtype.itemsize
        self.flags = types.SimpleNamespace(c_contiguous=True)
        self.data = types.SimpleNamespace(ptr=memory.address + offset)
        self.device = memory.device

    def _host(self) -> np.ndarray:
        get_current_stream().synchronize()
        raw = (ctypes.c_char * max(1, self.size * self.itemsize)).from_address(self.data.ptr)
        return (
            np.frombuffer(raw, np.uint8)[: self.size * self.itemsize]
            .view(self.dtype)
            .reshape(self.shape)
        )

    def get(self) -> np.ndarray:
        return self._host().copy()

    def set(self, values: np.ndarray) -> None:
        self._host()[...] = values

    def tolist(self) -> list:
        return self.get().tolist()

    def ravel(self) -> ndarray:
        return ndarray(self._memory, self._offset, (self.size,), self.dtype)

    def reshape(self, *shape: int) -> ndarray:
        return ndarray(self._memory, self._offset, self._host().reshape(*shape).shape, self.dtype)

    def __getitem__(self, where: slice) -> ndarray:
        start, stop, _ = where.indices(self.shape[0])
        row = self.size // max(1, self.shape[0])
        offset = self._offset + start * row * self.itemsize
        return ndarray(self._memory, offset, (max(0, stop - start), *self.shape[1:]), self.dtype)

    def __setitem__(self, where: slice, values: Any) -> None:
        self._host()[where] = values.get() if isinstance(values, ndarray) else values


def empty(shape: Any, dtype: Any = np.float64, *, shareable: bool = True) -> ndarray:
    """A new array; `shareable` is not CuPy's: memory of its pools may be of a kind that is not."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return ndarray(_Memory(nbytes, shareable), 0, shape, dtype)


def asarray(values: Any, *, shareable: bool = True) -> ndarray:
    host = np.asarray(values)
    made = empty(host.shape, host.dtype, shareable=shareable)
    made.set(host)
    return made


def ascontiguousarray(array: ndarray) -> ndarray:
    return asarray(array.get())


def concatenate(arrays: list[ndarray]) -> ndarray:
    return asarray(np.concatenate([array.get() for array in arrays]))


def install() -> None:
    """Let this process have the emulated GPU."""
    driver.CudaDriver = EmulatedDriver  # type: ignore[misc,assignment]
    driver.missing = lambda: None
    driver.visible_gpus = lambda: [identity()]
    module = types.ModuleType("cupy")
    for name in ("ndarray", "empty", "asarray", "ascontiguousarray", "concatenate"):
        setattr(module, name, globals()[name])
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        get_current_stream=get_current_stream, ExternalStream=lambda ptr, device_id: on_stream(ptr)
    )
    sys.modules["cupy"] = module


# ---- torch, as far as engine `torch` uses it for tensors on a GPU ----


class _TorchStream:
    """One of `torch.cuda`'s streams; its events have happened when it has come to its end."""

    def __init__(self, number: int) -> None:
        self.number = number

    def record_event(self) -> types.SimpleNamespace:
        gpu().record(event := gpu().create_event(), self.number)
        return types.SimpleNamespace(query=lambda: gpu().has_happened(event))


def _external_stream(number: int, device: int) -> _TorchStream:
    """As torch has it: of 0 it makes a new stream (https://github.com/pytorch/pytorch/issues/182960)."""
    return _TorchStream(number or gpu().create_stream())


def _torch_view(array: ndarray) -> Any:
    """The same memory for torch, once this thread's stream has done what it has to do."""
    import torch

    return torch.from_numpy(array._host())


def install_torch() -> None:
    """Let torch work with arrays on the emulated GPU, which Gloo then moves as nccl would."""
    import torch

    from unisono.engines.cuda import own_gpus

    own_gpus.ENGINE = "torch:gloo"
    torch.from_dlpack = _torch_view
    torch.cuda.ExternalStream = _external_stream  # type: ignore[misc,assignment]
    torch.cuda.default_stream = lambda device: _TorchStream(0)  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda stream: on_stream(stream.number)  # type: ignore[assignment]
