"""The CUDA driver, as far as this engine uses it: one method for each thing that it does.

Addresses, streams and events are plain integers, as torch and CuPy give them. The engine knows the
driver by these methods alone, so its tests can run on a driver that is emulated.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from unisono.core.dtypes import DType, ReduceOp
from unisono.core.registry import install_command
from unisono.engines.cuda.gpu import kernels
from unisono.errors import UnisonoError

__all__ = ["HANDLE_BYTES", "Allocation", "CudaDriver", "Driver", "missing", "visible_gpus"]

#: Bytes of the handle by which another process opens an allocation.
HANDLE_BYTES = 64


class Allocation(NamedTuple):
    """A block of device memory, of which a tensor is a part."""

    base: int
    nbytes: int
    #: Which allocation of this process it is; no later one gets this number.
    number: int


class Driver(Protocol):
    """One GPU, as this process sees it. Safe to use from several threads."""

    #: The GPU itself, by a name that every process gives it.
    identity: str
    name: str

    def enter(self) -> None:
        """Make this the GPU of the calling thread; every thread does so before other calls."""

    def allocation_of(self, address: int) -> Allocation:
        """The block that an address is in."""

    def is_allocated(self, base: int, number: int) -> bool:
        """Whether the block of this number is still there."""

    def allocate(self, nbytes: int) -> int:
        """New device memory, which can be exported."""

    def free(self, address: int) -> None:
        """Give memory of `allocate` back."""

    def export_handle(self, base: int) -> bytes | None:
        """What another process opens the block by; None if it is of a kind that cannot be."""

    def open_handle(self, handle: bytes) -> int:
        """The address here of a block of another process."""

    def close_handle(self, address: int) -> None:
        """Forget a block of another process."""

    def create_stream(self) -> int:
        """A stream that waits for no other one by itself."""

    def destroy_stream(self, stream: int) -> None:
        """Forget a stream; what it has begun goes on."""

    def create_event(self) -> int:
        """An event, which has happened."""

    def destroy_event(self, event: int) -> None:
        """Forget an event."""

    def record(self, event: int, stream: int) -> None:
        """Let the event happen when the stream gets here."""

    def wait_event(self, stream: int, event: int) -> None:
        """Let the stream wait for what `record` was last told of."""

    def has_happened(self, event: int) -> bool:
        """Whether the event has happened."""

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Copy device memory; the ranges are apart."""

    def register_host(self, address: int, nbytes: int) -> int:
        """The address by which streams reach whole pages of the host's memory."""

    def unregister_host(self, address: int) -> None:
        """End that."""

    def write_word(self, stream: int, address: int, value: int) -> None:
        """Let the stream write 32 bits, after all that it did before."""

    def wait_word(self, stream: int, address: int, value: int) -> None:
        """Let the stream wait until 32 bits are `value` or have counted past it."""

    def reduce(
        self,
        dtype: DType,
        op: ReduceOp,
        to: int,
        sources: list[int],
        count: int,
        stream: int,
    ) -> None:
        """Combine the sources in their order; `to` may be one of them."""


def missing() -> str | None:
    """Say what the driver lacks on this machine; None if it is there."""
    for package in ("cuda-bindings", "cuda-core"):
        module = package.replace("-", ".")
        if find_spec("cuda") is None or find_spec(module) is None:
            needed = install_command("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc")
            return f"{package} is not installed: {needed}"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "this host has no driver of NVIDIA (libcuda.so.1)"
    if os.environ.get("UNISONO_CUDA") != "try":
        return "it has never run on a real GPU, only on an emulated one; UNISONO_CUDA=try tries it"
    return None


def visible_gpus() -> list[str]:
    """The identity of each GPU that this process may use, without beginning to use any."""
    from cuda.bindings import driver

    _checked(driver.cuInit(0))
    devices = [
        _checked(driver.cuDeviceGet(one)) for one in range(_checked(driver.cuDeviceGetCount()))
    ]
    return [_identity(device) for device in devices]


class CudaDriver(Driver):
    """The driver itself, through cuda-bindings."""

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        self._driver = driver
        _checked(driver.cuInit(0))
        device = _checked(driver.cuDeviceGet(ordinal))
        self.identity = _identity(device)
        self.name = _checked(driver.cuDeviceGetName(96, device)).rstrip(b"\0").decode()
        # The context that torch and CuPy use as well.
        self._context = _checked(driver.cuDevicePrimaryCtxRetain(device))
        attribute = driver.CUdevice_attribute

        def ask(what: Any) -> int:
            return int(_checked(driver.cuDeviceGetAttribute(what, device)))

        self._processors = ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        major = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self._architecture = f"sm_{major}{minor}"
        self._functions: dict[tuple[str, str], Any] = {}

    def enter(self) -> None:
        _checked(self._driver.cuCtxSetCurrent(self._context))

    def allocation_of(self, address: int) -> Allocation:
        base, nbytes = _checked(self._driver.cuMemGetAddressRange(address))
        _, number = self._number_of(address)
        return Allocation(int(base), int(nbytes), number)

    def is_allocated(self, base: int, number: int) -> bool:
        error, found = self._number_of(base)
        return error == 0 and found == number

    def _number_of(self, address: int) -> tuple[int, int]:
        attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
        error, number = self._driver.cuPointerGetAttribute(attribute, address)
        return int(error), int(number or 0)

    def allocate(self, nbytes: int) -> int:
        return int(_checked(self._driver.cuMemAlloc(nbytes)))

    def free(self, address: int) -> None:
        _checked(self._driver.cuMemFree(address))

    def export_handle(self, base: int) -> bytes | None:
        error, handle = self._driver.cuIpcGetMemHandle(base)
        if error == self._driver.CUresult.CUDA_ERROR_INVALID_VALUE:
            return None  # of a memory pool, or mapped in pieces, as torch's expandable segments
        _checked((error,))
        return (ctypes.c_char * HANDLE_BYTES).from_address(handle.getPtr()).raw

    def open_handle(self, handle: bytes) -> int:
        given = self._driver.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle, HANDLE_BYTES)
        flag = self._driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(_checked(self._driver.cuIpcOpenMemHandle(given, flag)))

    def close_handle(self, address: int) -> None:
        _checked(self._driver.cuIpcCloseMemHandle(address))

    def create_stream(self) -> int:
        flag = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(_checked(self._driver.cuStreamCreate(flag)))

    def destroy_stream(self, stream: int) -> None:
        _checked(self._driver.cuStreamDestroy(stream))

    def create_event(self) -> int:
        flag = self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return int(_checked(self._driver.cuEventCreate(flag)))

    def destroy_event(self, event: int) -> None:
        _checked(self._driver.cuEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        _checked(self._driver.cuEventRecord(event, stream))

    def wait_event(self, stream: int, event: int) -> None:
        _checked(self._driver.cuStreamWaitEvent(stream, event, 0))

    def has_happened(self, event: int) -> bool:
        (error,) = self._driver.cuEventQuery(event)
        if error == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _checked((error,))
        return True

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        _checked(self._driver.cuMemcpyDtoDAsync(to, source, nbytes, stream))

    def register_host(self, address: int, nbytes: int) -> int:
        _checked(
            self._driver.cuMemHostRegister(
                address, nbytes, self._driver.CU_MEMHOSTREGISTER_DEVICEMAP
            )
        )
        return int(_checked(self._driver.cuMemHostGetDevicePointer(address, 0)))

    def unregister_host(self, address: int) -> None:
        _checked(self._driver.cuMemHostUnregister(address))

    def write_word(self, stream: int, address: int, value: int) -> None:
        flag = self._driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
        _checked(self._driver.cuStreamWriteValue32(stream, address, value, flag))

    def wait_word(self, stream: int, address: int, value: int) -> None:
        flag = self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        _checked(self._driver.cuStreamWaitValue32(stream, address, value, flag))

    def reduce(
        self,
        dtype: DType,
        op: ReduceOp,
        to: int,
        sources: list[int],
        count: int,
        stream: int,
    ) -> None:
        function = self._function(dtype, op)
        blocks, threads = kernels.geometry(count, dtype.itemsize, self._processors)
        arguments = (
            ctypes.c_void_p(to),
            (ctypes.c_void_p * kernels.MAX_SOURCES)(*sources),
            ctypes.c_int(len(sources)),
            ctypes.c_ulonglong(count),
            ctypes.c_double(op.factor),
        )
        # The driver reads each from its address, before it returns.
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        _checked(
            self._driver.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(places), 0
            )
        )

    def _function(self, dtype: DType, op: ReduceOp) -> Any:
        key = dtype.name, op.name
        if key not in self._functions:
            kernel = kernels.compile(dtype, op, self._architecture)
            module = _checked(self._driver.cuModuleLoadData(kernel.image))
            symbol = kernel.symbol.encode()
            self._functions[key] = _checked(self._driver.cuModuleGetFunction(module, symbol))
        return self._functions[key]


def _identity(device: Any) -> str:
    from cuda.bindings import driver

    return bytes(_checked(driver.cuDeviceGetUuid(device)).bytes).hex()


def _checked(outcome: tuple[Any, ...]) -> Any:
    """What a call of the driver returned, or its error as ours."""
    error, *values = outcome
    if int(error) != 0:
        from cuda.bindings import driver

        text = error.name
        with contextlib.suppress(Exception):
            text = driver.cuGetErrorString(error)[1].decode()
        raise UnisonoError(f"the CUDA driver failed: {text} ({error.name})")
    return values[0] if len(values) == 1 else tuple(values)
