"""MindSpore tensors as flat memory; they are written through their own data pointer."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64"])
def test_output_like(name):
    tensor = mint.zeros((2, 3), dtype=dtype_of(name))
    for made, shape in (
        (buffers.output_like(tensor).finish(), (2, 3)),
        (buffers.output_like(tensor, [4]).finish(), (4,)),
    ):
        assert isinstance(made, mindspore.Tensor)
        assert (made.dtype, tuple(made.shape)) == (tensor.dtype, shape)
        view(made).array[:] = np.ones(view(made).count, view(made).dtype.numpy)
        assert (made.astype(mindspore.float32).asnumpy() == 1).all()
