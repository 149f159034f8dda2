"""The driver of a GPU that is emulated in the memory of this host: streams, memory, kernels.

Streams are threads, so they are as asynchronous as real ones, and hesitate at random before each
step: what is not ordered goes wrong sooner or later. Memory is in files without names that other
processes map, and memory that was freed is unmapped: a later use of it crashes. Kernels are
those of the engine, compiled for the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tests.helpers import cuda_on_cpu
from tests.helpers.paths import ROOT
from unisono.core.dtypes import DType, ReduceOp
from unisono.engines.cuda.gpu import kernels
from unisono.engines.cuda.gpu.driver import HANDLE_BYTES, PER_THREAD, Allocation
from unisono.engines.cuda.gpu.prepared import Move, Operation, Permit
from unisono.errors import UnisonoError

__all__ = ["GPU", "ONE_QUEUE", "EmulatedDriver", "identity"]

#: Which GPU a rank is on, and how many seconds its streams hesitate at most.
GPU, HESITATION = "UNISONO_TEST_GPU", "UNISONO_TEST_HESITATION"
#: "1" if all streams share one queue of the GPU, as with CUDA_DEVICE_MAX_CONNECTIONS=1.
ONE_QUEUE = "UNISONO_TEST_ONE_QUEUE"

_ON_DEVICE = 1 << 60  # what the GPU's addresses of the host's memory differ by
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (*[ctypes.c_void_p, ctypes.c_size_t], *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def identity() -> str:
    """The name of the GPU that this process is on."""
    return os.environ.get(GPU, "0" * 32)


class Stream:
    """Does one thing after the other, in a thread."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._random = random.Random(os.getpid())
        threading.Thread(target=self._serve, daemon=True).start()

    def put(self, step: Callable[[], None]) -> None:
        self._steps.put(step)

    def synchronize(self) -> None:
        over = threading.Event()
        self.put(over.set)
        if not over.wait(30):
            raise AssertionError("a stream has not come to its end in 30 s")

    def _serve(self) -> None:
        while True:
            step = self._steps.get()
            hesitation = float(os.environ.get(HESITATION, "0.0005"))
            if self._random.random() < 0.3:
                time.sleep(self._random.random() * hesitation)
            step()


class _Batch:
    def __init__(self, gpu: EmulatedDriver, operations: Sequence[Operation]) -> None:
        self._gpu = gpu
        self._operations = operations

    def run(self, stream: int, value: int) -> None:
        for operation in self._operations:
            do = self._gpu.wait_word if operation.waits else self._gpu.write_word
            do(stream, operation.address, (value + operation.offset) % 2**32)


class _Launch:
    def __init__(self, gpu: EmulatedDriver, work: Callable[[int], None]) -> None:
        self._gpu = gpu
        self._work = work

    def run(self, stream: int, step: int) -> None:
        self._gpu.put(stream, lambda: self._work(step % 2**32))


class EmulatedDriver:
    """What the engine sees of the GPU; see `Driver`."""

    name = "emulated"

    def __init__(self, ordinal: int = 0) -> None:
        self.identity = identity()
        self._kernels = cuda_on_cpu.build(ROOT / "build" / "cuda_on_cpu")
        self._numbers = itertools.count(1)
        self._entered = threading.local()
        self._capturing_thread = 0
        self._spoiled = False
        self._has_failed = False
        # Garbage that is collected meanwhile, in the same thread, may have memory to free.
        self._lock = threading.RLock()
        self.allocations: dict[int, tuple[Allocation, int]] = {}  # with a file, by base
        self.opened: dict[int, int] = {}  # bytes, by address
        self._owners: dict[int, tuple[int, range]] = {}  # whose they are, and where there
        self.registered: dict[int, int] = {}
        self.exports = 0
        self._streams: dict[int, Stream] = {0: Stream()}
        self._stream_numbers = itertools.count(PER_THREAD + 1)
        self._events: dict[int, threading.Event] = {}
        self.capturing: set[int] = set()  # streams

    def enter(self) -> int | None:
        before = getattr(self._entered, "done", False)
        self._entered.done = True
        return int(before)

    def leave(self, before: int | None) -> None:
        self._entered.done = bool(before)

    def enter_apart(self) -> None:
        self.enter()
        self._entered.apart = True

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Let this thread capture a CUDA graph, as torch does, which others must not disturb."""
        self._capturing_thread, self._spoiled = threading.get_ident(), False
        yield
        self._capturing_thread = 0
        assert not self._spoiled, "another thread has spoiled the graph that was captured"

    def _check_capture(self) -> None:
        """Fail in what CUDA forbids while a thread captures, unless the thread is apart from it."""
        if self._capturing_thread and not getattr(self._entered, "apart", False):
            self._spoiled = True
            raise UnisonoError("operation not permitted when a stream is capturing")

    def _check_entered(self) -> None:
        assert getattr(self._entered, "done", False), "this thread has not entered the GPU"

    # ---- memory ----

    def allocate(self, nbytes: int, *, shareable: bool = True) -> int:
        self._check_entered()
        self._check_capture()
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create("emulated GPU") if shareable else -1
        if shareable:
            os.ftruncate(file, nbytes)
        base = _map(file, nbytes)
        ctypes.memset(base, 0xA5, nbytes)  # whatever was there before
        with self._lock:
            self.allocations[base] = Allocation(base, nbytes, next(self._numbers)), file
        return base

    def free(self, address: int) -> None:
        with self._lock:
            allocation, file = self.allocations.pop(address)
        _libc.munmap(address, allocation.nbytes)
        if file >= 0:
            os.close(file)

    def clear(self, address: int, nbytes: int) -> None:
        self._check_entered()
        ctypes.memset(address, 0, nbytes)

    def allocation_of(self, address: int) -> Allocation:
        self._check_entered()
        with self._lock:
            for allocation, _ in list(self.allocations.values()):
                if 0 <= address - allocation.base < allocation.nbytes:
                    return allocation
        raise AssertionError(f"{address:#x} is not on the GPU")

    def is_allocated(self, base: int, number: int) -> bool:
        return self.number_of(base) == number

    def export_handle(self, base: int) -> bytes | None:
        allocation, file = self.allocations[base]
        self.exports += 1
        if file < 0:
            return None
        handle = f"{os.getpid()} {file} {base} {allocation.nbytes}"
        return handle.encode().ljust(HANDLE_BYTES, b"\0")

    def open_handle(self, handle: bytes) -> int:
        self._check_entered()
        self._check_capture()
        process, name, base, nbytes = map(int, handle.rstrip(b"\0").split())
        assert process != os.getpid(), "CUDA opens no memory of its own process"
        for owner, block in self._owners.values():
            if owner == process and block.start < base + nbytes and base < block.stop:
                raise UnisonoError("the resource is already mapped")
        file = os.open(f"/proc/{process}/fd/{name}", os.O_RDWR)
        address = _map(file, nbytes)
        os.close(file)
        self.opened[address] = nbytes
        self._owners[address] = process, range(base, base + nbytes)
        return address

    def close_handle(self, address: int) -> None:
        self._check_entered()
        del self._owners[address]
        _libc.munmap(address, self.opened.pop(address))

    # ---- streams ----

    def create_stream(self) -> int:
        self._check_entered()
        shared = os.environ.get(ONE_QUEUE) == "1"
        made = self._streams[0] if shared else Stream()  # its thread may collect garbage, too
        stream = next(self._stream_numbers)
        self._streams[stream] = made
        return stream

    def _at(self, stream: int) -> Stream:
        """The stream of this number; one number means another stream in every thread."""
        if stream != PER_THREAD:
            return self._streams[stream]
        if not hasattr(self._entered, "stream"):
            self._entered.stream = Stream()
        own: Stream = self._entered.stream
        return own

    def is_capturing(self, stream: int) -> bool:
        self._check_entered()
        return stream in self.capturing

    def create_event(self) -> int:
        self._check_entered()
        with self._lock:
            event = len(self._events) + 1
            self._events[event] = threading.Event()
        self._events[event].set()
        return event

    def record(self, event: int, stream: int) -> None:
        self._check_entered()
        happened = self._events[event] = threading.Event()
        self._at(stream).put(happened.set)

    def wait_event(self, stream: int, event: int) -> None:
        self._check_entered()
        happened = self._events[event]
        self._at(stream).put(lambda: _until(happened.is_set))

    def fail(self) -> None:
        """Let no stream go on, as after a kernel that has written to memory that is not there."""
        self._has_failed = True
        for stream in self._streams.values():
            stream.put(threading.Event().wait)

    def has_happened(self, event: int) -> bool:
        self._check_capture()
        if self._has_failed:
            raise UnisonoError("an illegal memory access was encountered")
        return self._events[event].is_set()

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._check_entered()
        self._at(stream).put(lambda: _copy_slowly(to, source, nbytes))

    def register_host(self, address: int, nbytes: int) -> int:
        self._check_entered()
        self._check_capture()
        assert address not in self.registered, "CUDA registers memory once"
        self.registered[address] = nbytes
        return address + _ON_DEVICE

    def unregister_host(self, address: int) -> None:
        self._check_entered()
        del self.registered[address]

    def write_word(self, stream: int, address: int, value: int) -> None:
        word = self._word(address)

        def write() -> None:
            word.value = value

        self._at(stream).put(write)

    def wait_word(self, stream: int, address: int, value: int) -> None:
        word = self._word(address)
        self._at(stream).put(lambda: _until(lambda: (word.value - value) % 2**32 < 2**31))

    def _word(self, address: int) -> ctypes.c_uint32:
        self._check_entered()
        place = address - _ON_DEVICE
        assert any(0 <= place - start < size for start, size in self.registered.items())
        return ctypes.c_uint32.from_address(place)

    def number_of(self, address: int) -> int:
        self._check_entered()
        with self._lock:
            for allocation, _ in list(self.allocations.values()):
                if 0 <= address - allocation.base < allocation.nbytes:
                    return allocation.number
        return 0

    def batch(self, operations: Sequence[Operation]) -> _Batch:
        return _Batch(self, operations)

    def reduction(
        self,
        dtype: DType,
        op: ReduceOp,
        targets: Sequence[int],
        sources: Sequence[int],
        count: int,
        permit: Permit,
    ) -> _Launch:
        expression = kernels.reduction(dtype, op)
        grid = kernels.geometry(count, dtype.itemsize, processors=2)
        words = self._permit(permit)
        return _Launch(
            self,
            lambda step: self._kernels.reduce(
                expression, grid, targets, sources, count, op.factor, words, step
            ),
        )

    def moves(self, moves: Sequence[Move], permit: Permit) -> _Launch:
        longest = max(move.nbytes for move in moves)
        grid = kernels.move_geometry(longest, len(moves), processors=2)
        words = self._permit(permit)
        return _Launch(self, lambda step: self._kernels.move(moves, grid, words, step))

    def _permit(self, permit: Permit) -> Permit:
        def here(address: int) -> int:
            return ctypes.addressof(self._word(address))

        return Permit(*map(here, permit[:3]), permit.state, list(map(here, permit.done)))

    def put(self, stream: int, step: Callable[[], None]) -> None:
        """Let a stream do something."""
        self._check_entered()
        self._at(stream).put(step)

    def hold(self, stream: int, gate: threading.Event) -> None:
        """Let a stream wait for the test."""
        self._at(stream).put(lambda: _until(gate.is_set))

    def synchronize(self, stream: int) -> None:
        """What frameworks do before they read memory."""
        self._at(stream).synchronize()


def _map(file: int, nbytes: int) -> int:
    kind = mmap.MAP_SHARED if file >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, kind, file, 0)
    assert address not in (0, 2**64 - 1), os.strerror(ctypes.get_errno())
    return address


def _copy_slowly(to: int, source: int, nbytes: int) -> None:
    """In two halves, so that a copy at the wrong moment is seen."""
    half = nbytes // 2
    ctypes.memmove(to, source, half)
    time.sleep(0)
    ctypes.memmove(to + half, source + half, nbytes - half)


def _until(condition: Callable[[], bool]) -> None:
    pause = 1e-6
    while not condition():
        time.sleep(pause)
        pause = min(2 * pause, 5e-4)
