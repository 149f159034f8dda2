"""The CUDA driver, as far as this engine uses it: one method for each thing that it does.

Addresses, streams and events are plain integers, as torch and CuPy give them. The engine knows the
driver by these methods alone, so its tests can run on a driver that is emulated.

What every collective does is made ready once and then only started, see prepared.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from unisono.core.dtypes import DType, ReduceOp
from unisono.core.registry import install_command
from unisono.engines.cuda.gpu import kernels
from unisono.engines.cuda.gpu.prepared import (
    Batch,
    CudaBatch,
    CudaLaunch,
    Move,
    Moves,
    Operands,
    Operation,
    Permit,
    PreparedLaunch,
    failure,
)

__all__ = [
    "HANDLE_BYTES",
    "PER_THREAD",
    "Allocation",
    "CudaDriver",
    "Driver",
    "missing",
    "visible_gpus",
]

_BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
#: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: of the default stream, while another one is capturing.
_CAPTURE_IMPLICIT = 906
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
#: CU_STREAM_PER_THREAD, the default stream of the thread that names it, if a program wants that.
PER_THREAD = 2
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

    def enter(self) -> int | None:
        """Make this the GPU of the calling thread; every thread does so before other calls.

        Returns what `leave` wants to know.
        """

    def leave(self, before: int | None) -> None:
        """Give the calling thread back what was its GPU before `enter`, if any."""

    def enter_apart(self) -> None:
        """`enter` for a thread of our own, in whose calls no CUDA graph has a part.

        Else the mere question whether an event has happened would spoil a graph that another thread
        captures.
        """

    def allocation_of(self, address: int) -> Allocation:
        """The block that an address is in."""

    def is_allocated(self, base: int, number: int) -> bool:
        """Whether the block of this number is still there."""

    def allocate(self, nbytes: int) -> int:
        """New device memory, which can be exported."""

    def clear(self, address: int, nbytes: int) -> None:
        """Set device memory to zero; it is so when this returns."""

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

    def is_capturing(self, stream: int) -> bool:
        """Whether the stream does not run what it is told: a CUDA graph is made of it."""

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

    def number_of(self, address: int) -> int:
        """The number of the allocation that an address is in; 0 if it is in none."""

    def batch(self, operations: Sequence[Operation]) -> Batch:
        """Make operations ready for any stream."""

    def reduction(
        self,
        dtype: DType,
        op: ReduceOp,
        targets: Sequence[int],
        sources: Sequence[int],
        count: int,
        permit: Permit,
    ) -> PreparedLaunch:
        """Make ready to combine the sources in their order; a target may be one of them."""

    def moves(self, moves: Sequence[Move], permit: Permit) -> PreparedLaunch:
        """Make ready to copy up to `MAX_MOVES` ranges, none of them empty."""


def missing() -> str | None:
    """Say what the driver lacks on this machine; None if it is there."""
    for package in ("cuda-bindings", "cuda-core"):
        module = package.replace("-", ".")
        if find_spec("cuda") is None or find_spec(module) is None:
            needed = install_command("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc")
            return f"{package} is not installed: {needed}"
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "this host has no driver of NVIDIA (libcuda.so.1)"
    known = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(known))
    wanted = int(version("cuda-bindings").partition(".")[0])
    if known.value // 1000 < wanted:
        return f"NVIDIA's driver of this host is older than CUDA {wanted}; update it"
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
        self._library = ctypes.CDLL("libcuda.so.1")
        self._ask = self._library.cuPointerGetAttribute
        self._ask.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64)
        _checked(driver.cuInit(0))
        device = _checked(driver.cuDeviceGet(ordinal))
        self.identity = _identity(device)
        self.name = _checked(driver.cuDeviceGetName(96, device)).partition(b"\0")[0].decode()
        # The context that torch and CuPy use as well.
        context = _checked(driver.cuDevicePrimaryCtxRetain(device))
        self._context = ctypes.c_void_p(int(context))
        attribute = driver.CUdevice_attribute

        def ask(what: Any) -> int:
            return int(_checked(driver.cuDeviceGetAttribute(what, device)))

        self._processors = ask(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        major = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self._architecture = f"sm_{major}{minor}"
        self._functions: dict[str, int] = {}

    def enter(self) -> int | None:
        before = ctypes.c_void_p()
        error = self._library.cuCtxGetCurrent(ctypes.byref(before))
        if not error and before.value != self._context.value:
            error = self._library.cuCtxSetCurrent(self._context)
        if error:
            raise failure(error)
        return before.value

    def leave(self, before: int | None) -> None:
        if before != self._context.value:
            error = self._library.cuCtxSetCurrent(ctypes.c_void_p(before))
            if error:
                raise failure(error)

    def enter_apart(self) -> None:
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        error = self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        if error:
            raise failure(error)
        self.enter()

    def allocation_of(self, address: int) -> Allocation:
        base, nbytes = _checked(self._driver.cuMemGetAddressRange(address))
        return Allocation(int(base), int(nbytes), self.number_of(address))

    def is_allocated(self, base: int, number: int) -> bool:
        return self.number_of(base) == number

    def number_of(self, address: int) -> int:
        number = ctypes.c_uint64()
        return 0 if self._ask(ctypes.byref(number), _BUFFER_ID, address) else number.value

    def allocate(self, nbytes: int) -> int:
        return int(_checked(self._driver.cuMemAlloc(nbytes)))

    def clear(self, address: int, nbytes: int) -> None:
        # In a stream of its own: elsewhere the host would not wait for it, or for too much.
        stream = self.create_stream()
        _checked(self._driver.cuMemsetD8Async(address, 0, nbytes, stream))
        _checked(self._driver.cuStreamSynchronize(stream))
        self.destroy_stream(stream)

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

    def is_capturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        error = self._library.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
        if error == _CAPTURE_IMPLICIT:
            return True
        if error:
            raise failure(error)
        return status.value != 0

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

    def batch(self, operations: Sequence[Operation]) -> Batch:
        return CudaBatch(self._library, operations)

    def reduction(
        self,
        dtype: DType,
        op: ReduceOp,
        targets: Sequence[int],
        sources: Sequence[int],
        count: int,
        permit: Permit,
    ) -> PreparedLaunch:
        function = self._function(kernels.reduction(dtype, op))
        blocks, threads = kernels.geometry(count, dtype.itemsize, self._processors)
        addresses = ctypes.c_void_p * kernels.MAX_RANKS
        operands = Operands(addresses(*sources), addresses(*targets), len(sources), len(targets))
        arguments = (operands, ctypes.c_uint64(count), ctypes.c_double(op.factor))
        return CudaLaunch(self._library, function, (blocks, 1), threads, arguments, permit)

    def moves(self, moves: Sequence[Move], permit: Permit) -> PreparedLaunch:
        size = kernels.move_size(moves)
        function = self._function(kernels.move(size))
        longest = max(move.nbytes for move in moves)
        blocks, threads = kernels.move_geometry(longest, len(moves), self._processors)
        addresses = ctypes.c_void_p * kernels.MAX_MOVES
        parts = Moves(
            addresses(*(move.to for move in moves)),
            addresses(*(move.source for move in moves)),
            (ctypes.c_uint64 * kernels.MAX_MOVES)(*(move.nbytes // size for move in moves)),
        )
        grid = blocks, len(moves)
        return CudaLaunch(self._library, function, grid, threads, (parts,), permit)

    def _function(self, expression: str) -> int:
        if expression not in self._functions:
            kernel = kernels.compile(expression, self._architecture)
            module = _checked(self._driver.cuModuleLoadData(kernel.image))
            symbol = kernel.symbol.encode()
            function = _checked(self._driver.cuModuleGetFunction(module, symbol))
            self._functions[expression] = int(function)
        return self._functions[expression]


def _identity(device: Any) -> str:
    from cuda.bindings import driver

    return bytes(_checked(driver.cuDeviceGetUuid(device)).bytes).hex()


def _checked(outcome: tuple[Any, ...]) -> Any:
    """What a call of the driver returned, or its error as ours."""
    error, *values = outcome
    if int(error) != 0:
        raise failure(int(error))
    return values[0] if len(values) == 1 else tuple(values)
