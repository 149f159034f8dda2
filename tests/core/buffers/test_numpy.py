"""NumPy, JAX, DLPack and the buffer protocol: the same memory where it is contiguous."""

from __future__ import annotations

import array
import ctypes
import mmap

import ml_dtypes
import numpy as np
import pytest

from unisono.core import buffers, dtypes
from unisono.core.buffers import view
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported

DTYPE_NAMES = [dtype.name for dtype in dtypes.DTYPES]


def raw(buffer: buffers.Buffer) -> np.ndarray:
    return buffer.array.view(np.uint8)


def refuses_writing(buffer: buffers.Buffer) -> bool:
    try:
        buffers.check_writable(buffer)
    except ArgumentError:
        return True
    return False


# ---- NumPy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_numpy_dtypes_share_memory(name):
    dtype = dtypes.by_name(name)
    tensor = np.zeros((2, 3), dtype.numpy)
    buffer = view(tensor)
    assert (buffer.count, buffer.dtype, buffer.nbytes) == (6, dtype, 6 * dtype.itemsize)
    assert buffer.address == tensor.ctypes.data
    raw(buffer)[:] = 1
    assert (tensor.view(np.uint8) == 1).all()
    tensor.view(np.uint8)[:] = 0
    assert not raw(buffer).any()
    assert buffer.copy_back is None
    assert not refuses_writing(buffer)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_numpy_small_shapes(shape):
    tensor = np.zeros(shape)
    buffer = view(tensor)
    assert buffer.count == tensor.size
    assert buffer.array.shape == (tensor.size,)
    buffer.array[:] = 5
    assert (tensor == 5).all()


def strided_numpy() -> dict[str, np.ndarray]:
    counted = np.arange(24, dtype=np.int32)
    return {
        "Fortran order": np.asfortranarray(counted.reshape(4, 6)),
        "transposed": counted.reshape(4, 6).T,
        "every other": counted[::2],
        "reversed": counted[::-1],
        "inner block": counted.reshape(4, 6)[1:3, 2:5],
        "both reversed": counted.reshape(4, 6)[::-1, ::-2],
        "misaligned": np.arange(41, dtype=np.uint8)[1:].view(np.int32),
    }


@pytest.mark.parametrize("kind", strided_numpy())
def test_numpy_that_is_not_contiguous_is_packed_and_unpacked(kind):
    tensor = strided_numpy()[kind]
    buffer = view(tensor)
    assert buffer.array.tolist() == tensor.ravel(order="C").tolist()
    assert not refuses_writing(buffer)
    before = tensor.copy()
    buffer.array[:] = np.arange(buffer.count) + 100
    np.testing.assert_array_equal(tensor, before)
    buffer.copy_back()
    assert tensor.ravel(order="C").tolist() == list(range(100, 100 + tensor.size))


def test_bfloat16_that_is_not_contiguous():
    tensor = np.arange(8).astype(ml_dtypes.bfloat16)[::2]
    buffer = view(tensor)
    assert buffer.array.tolist() == [0, 2, 4, 6]
    buffer.array[:] = 3
    buffer.copy_back()
    assert tensor.tolist() == [3] * 4


def test_read_only_numpy():
    tensor = np.arange(4.0)
    tensor.flags.writeable = False
    buffer = view(tensor)
    assert buffer.address == tensor.ctypes.data
    with pytest.raises(ArgumentError, match="read-only"):
        buffers.check_writable(buffer)


@pytest.mark.parametrize(
    "tensor",
    [
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,)),
        np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3, writeable=True),
    ],
    ids=["broadcast", "one element", "windows"],
)
def test_elements_that_share_memory_can_be_read_only(tensor):
    buffer = view(tensor)
    assert buffer.array.tolist() == tensor.ravel().tolist()
    assert refuses_writing(buffer)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (object, "object"),
        ([("a", "f4"), ("b", "i4")], "a"),
        (">f4", ">f4"),
        ("U3", "U3"),
        ("M8[s]", "datetime64"),
        (np.longdouble, "float128"),
        (ml_dtypes.int4, "int4"),
    ],
    ids=["object", "structured", "byte-swapped", "text", "time", "longdouble", "int4"],
)
def test_numpy_dtypes_that_cannot_be_moved(dtype, text):
    with pytest.raises(ArgumentTypeError, match="cannot be moved; use one of bool, int8") as caught:
        view(np.zeros(3, dtype))
    assert text in str(caught.value)


@pytest.mark.parametrize("array", [np.ma.zeros(3), np.ma.masked_equal([1.0, 2.0], 2.0)])
def test_masked_arrays_are_refused(array):
    with pytest.raises(ArgumentTypeError, match=r"mask .*; pass array\.filled\(value\)"):
        view(array)


def test_buffer_keeps_its_memory_alive():
    buffer = view(np.full(1000, 7, np.int64))
    packed = view(np.full(2000, 7, np.int64)[::2])
    np.zeros(100_000)  # something that would take the place of memory that is free
    assert (buffer.array == 7).all()
    assert (packed.array == 7).all()


# ---- the buffer protocol and DLPack --------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "name", "count"),
    [
        (bytearray(5), "uint8", 5),
        (array.array("d", [0, 0]), "float64", 2),
        (array.array("h", [0] * 3), "int16", 3),
        (memoryview(bytearray(6)), "uint8", 6),
        (memoryview(bytearray(8)).cast("i"), "int32", 2),
        ((ctypes.c_float * 3)(), "float32", 3),
        (mmap.mmap(-1, 16), "uint8", 16),
    ],
    ids=["bytearray", "array d", "array h", "memoryview", "cast", "ctypes", "mmap"],
)
def test_buffer_protocol_shares_memory(tensor, name, count):
    buffer = view(tensor)
    assert (buffer.dtype.name, buffer.count) == (name, count)
    raw(buffer)[:] = 1
    assert memoryview(tensor).cast("B").tolist() == [1] * buffer.nbytes
    assert not refuses_writing(buffer)


def test_strided_memoryview():
    memory = bytearray(range(6))
    buffer = view(memoryview(memory)[::2])
    assert buffer.array.tolist() == [0, 2, 4]
    buffer.array[:] = 9
    buffer.copy_back()
    assert list(memory) == [9, 1, 9, 3, 9, 5]


def test_bytes_are_read_only():
    buffer = view(b"abc")
    assert buffer.array.tobytes() == b"abc"
    assert refuses_writing(buffer)


class Exporter:
    """A tensor of a framework that unisono has never heard of."""

    def __init__(self, tensor: np.ndarray) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


class OnDevice(Exporter):
    """Such a tensor in memory that the CPU cannot read."""

    def __dlpack__(self, **options: object) -> object:
        raise BufferError("this memory is on a device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)  # CUDA device 0


def test_dlpack_shares_memory():
    tensor = np.zeros((2, 3), np.float32)
    buffer = view(Exporter(tensor))
    assert buffer.address == tensor.ctypes.data
    buffer.array[:] = 4
    assert (tensor == 4).all()


def test_dlpack_read_only():
    tensor = np.zeros(3)
    tensor.flags.writeable = False
    assert refuses_writing(view(Exporter(tensor)))


def test_dlpack_on_another_device():
    with pytest.raises(Unsupported, match=r"OnDevice.*CPU"):
        view(OnDevice(np.zeros(3)))


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "bool", "complex64"])
def test_jax_is_read_only(name):
    jnp = pytest.importorskip("jax.numpy")
    tensor = jnp.array([[1, 0], [1, 1]], name)
    buffer = view(tensor)
    assert buffer.dtype.name == name
    assert buffer.array.tolist() == [1, 0, 1, 1]
    with pytest.raises(ArgumentError, match="JAX"):
        buffers.check_writable(buffer)
    made = buffers.output_like(tensor, [3])
    made.buffer.array[:] = [0, 1, 1]
    assert type(made.finish()) is type(tensor)
    assert (made.finish().dtype, made.finish().tolist()) == (tensor.dtype, [0, 1, 1])
