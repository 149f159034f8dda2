"""The calls of `CudaDriver` reach the driver as it wants them, through the real cuda-bindings.

The driver is a stub, libcuda.cpp: no GPU is needed. It is loaded by a process of its own, where no
other test sees it.
"""

from __future__ import annotations

import ctypes
import inspect
import mmap
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import cuda_on_cpu
from tests.helpers.paths import ROOT
from unisono.core.dtypes import ReduceOp, by_name
from unisono.engines.cuda.gpu import driver, kernels, prepared
from unisono.engines.cuda.gpu.driver import CudaDriver, Driver
from unisono.engines.cuda.gpu.prepared import Move, Operation, Permit
from unisono.errors import UnisonoError

pytestmark = pytest.mark.skipif(
    cuda_on_cpu.COMPILER is None, reason="no g++ to compile the stub of the driver"
)

Run = Callable[..., Any]

FLOAT, TWICE = by_name("float32"), ReduceOp.premul_sum(2.0)
PERMIT = Permit(0x1000, 0x2000, 0x3000, 0x4000, [0x5000, 0x6000])  # the stub looks for these


def load(library: str) -> None:
    """Let the bindings find the stub: a library of this name is there already.

    NVRTC wants more of a driver than the stub has, if it finds one; so it compiles before.
    """
    kernels.compile(kernels.reduction(FLOAT, TWICE), "sm_90")
    kernels.compile(kernels.move(4), "sm_90")
    ctypes.CDLL(library)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a function in the process that has the stub."""
    library = tmp_path_factory.mktemp("libcuda") / "libcuda.so.1"
    source = ROOT / "tests" / "helpers" / "libcuda.cpp"
    options = ["-std=c++17", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run(["g++", *options, source, "-o", library], check=True)
    with ProcessPoolExecutor(1, get_context("spawn"), load, (str(library),)) as pool:
        yield lambda function, *given: pool.submit(function, *given).result(60)


def entered(ordinal: int = 0) -> CudaDriver:
    gpu = CudaDriver(ordinal)
    gpu.enter()
    return gpu


def words(address: int, count: int) -> np.ndarray[Any, Any]:
    """Device memory of the stub, as an array."""
    return np.frombuffer((ctypes.c_byte * (4 * count)).from_address(address), np.uint32)


# ---- the GPU -------------------------------------------------------------------------------------


def identities() -> tuple[str | None, list[str], list[tuple[str, str]]]:
    gpus = [CudaDriver(0), CudaDriver(1)]
    return driver.missing(), driver.visible_gpus(), [(gpu.identity, gpu.name) for gpu in gpus]


def test_each_gpu_has_an_identity_and_a_name(run: Run) -> None:
    missing, visible, gpus = run(identities)
    assert missing is None
    first, second = (bytes((device + 16 * at) % 256 for at in range(16)) for device in (100, 101))
    assert visible == [first.hex(), second.hex()]
    assert gpus == [(first.hex(), "First GPU"), (second.hex(), "Second GPU")]


def wrong_gpu() -> str:
    with pytest.raises(UnisonoError) as failure:
        CudaDriver(2)
    return str(failure.value)


def test_an_error_is_told_in_the_words_of_the_driver(run: Run) -> None:
    assert run(wrong_gpu) == ("the CUDA driver failed: invalid argument (CUDA_ERROR_INVALID_VALUE)")


def contexts() -> list[int | None]:
    gpu, library = CudaDriver(0), ctypes.CDLL("libcuda.so.1")

    def current() -> int | None:
        found = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(found))
        return found.value

    seen = []
    for others in (None, 0x7000):  # none, and that of another GPU
        library.cuCtxSetCurrent(ctypes.c_void_p(others))
        before = gpu.enter()
        gpu.free(gpu.allocate(8))
        again = gpu.enter()
        gpu.leave(again)
        gpu.free(gpu.allocate(8))
        gpu.leave(before)
        seen.append(current())
    return seen


def test_a_thread_gets_back_the_gpu_that_it_had(run: Run) -> None:
    assert run(contexts) == [None, 0x7000]


def capture_modes() -> list[int]:
    gpu, library = entered(), ctypes.CDLL("libcuda.so.1")
    modes = []

    def note() -> None:
        mode = ctypes.c_int(0)
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        modes.append(mode.value)

    def work() -> None:
        gpu.enter_apart()
        gpu.free(gpu.allocate(8))
        note()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    note()
    return modes


def test_threads_of_our_own_are_apart_from_graphs(run: Run) -> None:
    assert run(capture_modes) == [2, 0]  # relaxed, and as before


# ---- memory --------------------------------------------------------------------------------------


def blocks() -> None:
    gpu = entered()
    first, second = gpu.allocate(1000), gpu.allocate(500)
    one, other = gpu.allocation_of(first + 999), gpu.allocation_of(second)
    assert (one.base, one.nbytes) == (first, 1000)
    assert (other.base, other.nbytes) == (second, 500)
    assert one.number != other.number
    assert gpu.number_of(first + 999) == one.number
    assert gpu.number_of(8) == 0
    words(first, 4)[:] = 9
    gpu.clear(first + 4, 8)
    assert words(first, 4).tolist() == [9, 0, 0, 9]
    assert gpu.is_allocated(first, one.number)
    assert not gpu.is_allocated(first, other.number)
    gpu.free(first)
    assert not gpu.is_allocated(first, one.number)
    gpu.free(second)


def test_blocks_are_known_by_any_address_in_them(run: Run) -> None:
    run(blocks)


def handles() -> None:
    gpu = entered()
    block = gpu.allocate(64)
    handle = gpu.export_handle(block)
    assert handle is not None
    assert len(handle) == driver.HANDLE_BYTES
    mapped = gpu.open_handle(handle)
    assert mapped == block + 1  # where the stub maps a block of another process
    gpu.close_handle(mapped)
    assert gpu.export_handle(block + 8) is None
    gpu.free(block)


def test_handles_travel_whole(run: Run) -> None:
    run(handles)


def host_words() -> list[int]:
    gpu = entered()
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    host = ctypes.addressof(ctypes.c_byte.from_buffer(pages))
    address = gpu.register_host(host, mmap.PAGESIZE)
    stream = gpu.create_stream()
    gpu.write_word(stream, address + 4, 7)
    gpu.wait_word(stream, address + 4, 7)
    gpu.write_word(stream, address + 8, 2)
    gpu.wait_word(stream, address + 8, 2**32 - 1)  # the word has counted past that
    with pytest.raises(UnisonoError):
        gpu.wait_word(stream, address + 4, 8)
    gpu.destroy_stream(stream)
    gpu.unregister_host(host)
    return words(host, 4).tolist()


def test_streams_reach_words_of_the_host(run: Run) -> None:
    assert run(host_words) == [0, 7, 2, 0]


def batches() -> list[int]:
    gpu = entered()
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    host = ctypes.addressof(ctypes.c_byte.from_buffer(pages))
    address = gpu.register_host(host, mmap.PAGESIZE)
    stream = gpu.create_stream()
    batch = gpu.batch(
        [
            Operation(True, address, -1),
            Operation(False, address + 4, 0),
            Operation(True, address + 4, 0),
            Operation(False, address, 0),
        ]
    )
    batch.run(stream, 1)
    batch.run(stream, 2)
    with pytest.raises(UnisonoError):
        batch.run(stream, 4)  # the first word has not reached 3
    gpu.destroy_stream(stream)
    gpu.unregister_host(host)
    return words(host, 4).tolist()


def test_operations_of_a_batch_are_done_in_turn(run: Run) -> None:
    assert run(batches) == [2, 2, 0, 0]


def operation() -> tuple[int, ...]:
    from cuda.bindings.driver import CUstreamBatchMemOpParams, CUstreamBatchMemOpType

    made = CUstreamBatchMemOpParams()
    made.waitValue.operation = CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    made.waitValue.address, made.waitValue.value, made.waitValue.flags = 0x5000, 7, 2
    ours = prepared._StreamOperation.from_address(made.getPtr())
    return ours.operation, ours.address, ours.value, ours.flags, ctypes.sizeof(ours)


def test_operations_lie_in_memory_as_the_driver_reads_them(run: Run) -> None:
    assert run(operation) == (prepared._WAIT, 0x5000, 7, 2, 48)


# ---- streams -------------------------------------------------------------------------------------


def events() -> list[bool]:
    gpu = entered()
    stream, other = gpu.create_stream(), gpu.create_stream()
    event = gpu.create_event()
    answers = [gpu.has_happened(event)]
    gpu.record(event, stream)
    gpu.wait_event(other, event)
    gpu.wait_event(other, event)
    gpu.record(event, other)  # the third thing that this stream is told
    answers += [gpu.has_happened(event) for _ in range(4)]
    gpu.destroy_event(event)
    gpu.destroy_stream(stream)
    gpu.destroy_stream(other)
    return answers


def test_events_happen_when_a_stream_gets_there(run: Run) -> None:
    assert run(events) == [True, False, False, False, True]


def capturing() -> list[bool]:
    gpu = entered()
    stream, event = gpu.create_stream(), gpu.create_event()
    answers = [gpu.is_capturing(0)]
    for _ in range(4):
        answers.append(gpu.is_capturing(stream))
        gpu.record(event, stream)
    gpu.destroy_event(event)
    gpu.destroy_stream(stream)
    return answers


def test_streams_that_capture(run: Run) -> None:
    assert run(capturing) == [True, False, False, False, True]


def copied() -> list[int]:
    gpu = entered()
    stream, block = gpu.create_stream(), gpu.allocate(32)
    words(block, 8)[:] = range(8)
    gpu.copy(block + 16, block + 4, 12, stream)
    found = words(block, 8).tolist()
    gpu.free(block)
    gpu.destroy_stream(stream)
    return found


def test_copies(run: Run) -> None:
    assert run(copied) == [0, 1, 2, 3, 1, 2, 3, 7]


def reduced() -> list[list[float]]:
    gpu = entered()
    stream, block = gpu.create_stream(), gpu.allocate(4 * 4 * 5)
    parts = words(block, 20).view(np.float32).reshape(4, 5)
    parts[:] = np.arange(20).reshape(4, 5)
    sources, targets = [block, block + 40], [block + 20, block + 60]
    launch = gpu.reduction(FLOAT, TWICE, targets, sources, 4, PERMIT)
    launch.run(stream, 5)
    found = [parts[row].tolist() for row in (1, 3)]
    with pytest.raises(UnisonoError):
        launch.run(stream, 0)  # the stub wants to know the step
    gpu.free(block)
    gpu.destroy_stream(stream)
    return found


def test_a_kernel_is_compiled_and_gets_its_arguments(run: Run) -> None:
    assert run(reduced) == [[20.0, 24.0, 28.0, 32.0, 9.0], [20.0, 24.0, 28.0, 32.0, 19.0]]


def moved() -> list[int]:
    gpu = entered()
    stream, block = gpu.create_stream(), gpu.allocate(64)
    words(block, 16)[:] = range(16)
    moves = [Move(block + 32, block + 4, 12), Move(block + 52, block, 4)]
    gpu.moves(moves, PERMIT).run(stream, 5)
    found = words(block, 16)[8:].tolist()
    gpu.free(block)
    gpu.destroy_stream(stream)
    return found


def test_moves_get_their_arguments(run: Run) -> None:
    assert run(moved) == [1, 2, 3, 11, 12, 0, 14, 15]


# ---- the test itself -----------------------------------------------------------------------------


def test_every_method_is_called_here() -> None:
    text = Path(__file__).read_text()
    methods = [name for name, _ in inspect.getmembers(Driver, inspect.isfunction)]
    public = [name for name in methods if not name.startswith("_")]
    assert "reduction" in public
    assert [name for name in public if f"gpu.{name}(" not in text] == []
