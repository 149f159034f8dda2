"""MindSpore tensors as flat memory; they are written through their own data pointer."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from unisono.core import buffers  # noqa: E402  (after the check for MindSpore)
from unisono.core.buffers import view  # noqa: E402
from unisono.errors import ArgumentTypeError  # noqa: E402

mint = mindspore.mint

DTYPE_NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def dtype_of(name: str) -> object:
    return mindspore.bool_ if name == "bool" else getattr(mindspore, name)


def counted(*shape: int) -> object:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return mindspore.Tensor(values.copy())


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_dtypes_share_memory(name):
    tensor = mindspore.Tensor(np.ones((2, 3), np.int8)).astype(dtype_of(name))
    buffer = view(tensor)
    assert (buffer.dtype.name, buffer.count) == (name, 6)
    assert buffer.array.tolist() == [1] * 6
    buffer.array[:] = np.zeros(6, buffer.dtype.numpy)
    assert tensor.astype(mindspore.float32).asnumpy().tolist() == [[0] * 3] * 2
    assert buffer.copy_back is None
    buffers.check_writable(buffer)


def test_result_of_an_operator_is_finished_before_it_is_read():
    tensor = counted(1000, 100)
    for _ in range(5):
        tensor = tensor * 1 + 1
    expected = np.arange(100_000, dtype=np.float32) + 5
    assert (view(tensor).array == expected).all()


def test_operator_sees_what_was_written():
    tensor = counted(4)
    view(tensor).array[:] = 7
    assert (tensor + 1).asnumpy().tolist() == [8] * 4


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,)])
def test_small_shapes(shape):
    tensor = mint.zeros(shape, dtype=mindspore.float32)
    buffer = view(tensor)
    assert buffer.count == int(np.prod(shape))
    buffer.array[:] = 5
    assert (tensor.asnumpy() == 5).all()


def strided() -> dict:
    return {
        "transposed": lambda: counted(4, 6).T,
        "every other": lambda: counted(4, 6)[:, ::2],
        "inner block": lambda: counted(4, 6)[1:3, 2:5],
    }


@pytest.mark.parametrize("kind", strided())
def test_strided_tensors_are_packed_and_unpacked(kind):
    tensor = strided()[kind]()
    before = tensor.asnumpy().ravel().tolist()
    buffer = view(tensor)
    assert buffer.array.tolist() == before
    buffer.array[:] = np.arange(buffer.count) + 100
    if buffer.copy_back is not None:
        buffer.copy_back()
    assert tensor.asnumpy().ravel().tolist() == [100 + i for i in range(buffer.count)]


def test_some_strided_tensor_really_is_a_view():
    assert any(not make().is_contiguous() for make in strided().values())


def test_strided_bfloat16():
    tensor = counted(4, 6).astype(mindspore.bfloat16).T
    buffer = view(tensor)
    assert buffer.dtype.name == "bfloat16"
    assert (
        buffer.array.astype(np.float32).tolist() == np.arange(24.0).reshape(4, 6).T.ravel().tolist()
    )


def test_dtype_that_cannot_be_moved():
    tensor = mindspore.Tensor(np.array(["text"]))
    with pytest.raises(ArgumentTypeError, match="cannot be moved; use one of"):
        view(tensor)


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_output_like(name):
    tensor = mint.zeros((2, 3), dtype=mindspore.float32).astype(dtype_of(name))
    for shape in ((2, 3), (4,), (), (0, 5)):
        made = buffers.output_like(tensor, None if shape == (2, 3) else shape).finish()
        assert isinstance(made, mindspore.Tensor)
        assert (made.dtype, tuple(made.shape)) == (tensor.dtype, shape)
        view(made).array[:] = np.ones(view(made).count, view(made).dtype.numpy)
        numbers = made.astype(mindspore.float32)
        assert tuple(numbers.shape) == shape
        assert (numbers.asnumpy() == 1).all()


def test_output_like_of_a_dtype_that_cannot_be_moved():
    with pytest.raises(ArgumentTypeError, match="cannot be moved"):
        buffers.output_like(mindspore.Tensor(np.array(["text"])))


# ---- results own their memory --------------------------------------------------------------------


def filled(count: int) -> object:
    out = buffers.output_like(mint.zeros((1,), dtype=mindspore.float32), (count,))
    out.buffer.array[:] = np.arange(count)
    return out.finish()


def overwrite_freed_memory(count: int) -> None:
    """Take what has been freed and write into it, so that a use after free is seen."""
    gc.collect()
    for _ in range(50):
        np.full(count, -1, np.float32)


@pytest.mark.parametrize("count", [6, 1 << 16])  # of the heap, and pages of its own
def test_whatever_is_made_from_a_result_keeps_its_memory(count):
    expected = np.arange(count, dtype=np.float32)
    result = filled(count)
    array = result.asnumpy()
    part, flat = result[2:], result.view(-1)
    parameter = mindspore.Parameter(filled(count))
    later = result * 2
    del result
    overwrite_freed_memory(count)
    assert (array == expected).all()
    assert (part.asnumpy() == expected[2:]).all() and (flat.asnumpy() == expected).all()
    assert (parameter.asnumpy() == expected).all()
    assert (later.asnumpy() == 2 * expected).all()
    del array, flat
    overwrite_freed_memory(count)
    assert (part + 1).asnumpy().tolist() == (expected[2:] + 1).tolist()


@pytest.mark.thorough
def test_memory_of_a_result_is_freed_with_it():
    result = filled(4)
    first = result.data_ptr()
    addresses = set()
    for _ in range(2000):
        addresses.add(filled(1 << 16).data_ptr())
    assert len(addresses) < 200  # 2000 of them would be 500 MiB
    assert result.data_ptr() == first


def test_a_result_is_written_in_place_and_used_by_operators():
    result = filled(4)
    address = result.data_ptr()
    result[0] = 9
    result.copy_(result + 1)
    assert result.asnumpy().tolist() == [10, 2, 3, 4]
    assert result.data_ptr() == address
    gradient = mindspore.grad(lambda x: (x * x).sum())(result)
    assert gradient.asnumpy().tolist() == [20, 4, 6, 8]


def test_threads_may_run_their_first_operators_at_the_same_time():
    """In a process of its own: here MindSpore has run operators already."""
    program = """
import numpy as np, mindspore, unisono
from unisono.mindspore.communication import comm_func, get_rank
given = [mindspore.Tensor(np.full(3, rank, np.float32)) for rank in range(4)]
def rank(tensors):
    result, _ = comm_func.all_reduce(tensors[get_rank()])
    return ((result + 1) * 2).asnumpy().tolist()
print(unisono.spawn(rank, 4, given, engine="threads"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([[14.0] * 3] * 4)
