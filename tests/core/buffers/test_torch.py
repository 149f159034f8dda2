"""torch tensors as flat memory; the reasons for refusing the odd ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from unisono.core import buffers, dtypes
from unisono.core.buffers import view
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported

torch = pytest.importorskip("torch")

DTYPE_NAMES = [dtype.name for dtype in dtypes.DTYPES if hasattr(torch, dtype.name)]


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_dtypes_share_memory(name):
    tensor = torch.zeros((2, 3), dtype=getattr(torch, name))
    buffer = view(tensor)
    assert (buffer.dtype.name, buffer.count) == (name, 6)
    assert buffer.address == tensor.data_ptr()
    buffer.array.view(np.uint8)[:] = 1
    assert (tensor.view(torch.uint8) == 1).all()
    assert buffer.copy_back is None
    buffers.check_writable(buffer)


def strided() -> dict:
    counted = torch.arange(24, dtype=torch.float32)
    return {
        "transposed": counted.reshape(4, 6).T,
        "every other": counted[::2],
        "inner block": counted.reshape(4, 6)[1:3, 2:5],
        "channels last": counted.reshape(1, 4, 2, 3).to(memory_format=torch.channels_last),
    }


class OnGpu(torch.Tensor):
    """Says that it is on a GPU, and notes which streams read it."""

    is_cuda = True
    read_in: ClassVar[list[object]] = []

    def record_stream(self, stream: object) -> None:
        self.read_in.append(stream)


@pytest.mark.parametrize("packs", ["one", "several"])
def test_packed_memory_of_a_gpu_is_kept_until_it_was_unpacked(monkeypatch, packs):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "that of the one who waits")
    monkeypatch.setattr(OnGpu, "read_in", [])
    if packs == "one":
        buffer = view(torch.zeros(4, 2).as_subclass(OnGpu).T)
        assert buffer.copy_back is not None
        buffer.copy_back()
    else:
        buffers.unpack_into(torch.ones(4).as_subclass(OnGpu), [view(torch.zeros(4))])
    assert OnGpu.read_in == ["that of the one who waits"]


@pytest.mark.parametrize("kind", strided())
def test_strided_tensors_are_packed_and_unpacked(kind):
    tensor = strided()[kind]
    assert not tensor.is_contiguous()
    buffer = view(tensor)
    assert buffer.array.tolist() == tensor.flatten().tolist()
    buffers.check_writable(buffer)
    buffer.array[:] = np.arange(buffer.count) + 100
    buffer.copy_back()
    assert tensor.flatten().tolist() == [100 + i for i in range(buffer.count)]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_small_shapes(shape):
    tensor = torch.zeros(shape)
    buffer = view(tensor)
    assert buffer.count == tensor.numel()
    buffer.array[:] = 5
    assert (tensor == 5).all()


def test_expanded_can_only_be_read():
    buffer = view(torch.arange(3.0).expand(2, 3))
    assert buffer.array.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ArgumentError, match="share memory"):
        buffers.check_writable(buffer)


def test_lazy_conjugate():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    conjugate = tensor.conj()
    assert conjugate.is_conj()
    buffer = view(conjugate)
    assert buffer.array.tolist() == [1 - 2j, 3 + 4j]
    buffer.array[:] = [5 + 6j, 7 + 8j]
    buffer.copy_back()
    assert conjugate.tolist() == [5 + 6j, 7 + 8j]
    assert tensor.tolist() == [5 - 6j, 7 - 8j]


def test_lazy_negative():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    negative = tensor.conj().imag
    assert negative.is_neg()
    buffer = view(negative)
    assert buffer.array.tolist() == [-2, 4]
    buffer.array[:] = [1, 1]
    buffer.copy_back()
    assert negative.tolist() == [1, 1]


@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
def test_tensor_that_requires_grad(step):
    tensor = torch.ones(6, requires_grad=True)[::step]
    buffer = view(tensor)
    buffer.array[:] = 3
    if buffer.copy_back is not None:
        buffer.copy_back()
    assert tensor.tolist() == [3.0] * (6 // step)
    assert tensor.requires_grad


def test_parameter_is_a_tensor():
    parameter = torch.nn.Parameter(torch.zeros(3))
    view(parameter).array[:] = 2
    assert parameter.tolist() == [2, 2, 2]


def test_meta_tensor_has_no_memory():
    with pytest.raises(Unsupported, match="meta"):
        view(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("first", [0, 10])
def test_tensor_whose_storage_was_freed(first):
    """A view of it has an address that is not 0: its offset."""
    tensor = torch.arange(30.0)[first:]
    tensor.untyped_storage().resize_(0)
    with pytest.raises(Unsupported, match="storage was freed"):
        view(tensor)


def test_sparse_tensor_has_no_flat_memory():
    with pytest.raises(ArgumentTypeError, match=r"sparse_coo.*to_dense"):
        view(torch.eye(3).to_sparse())


def test_dtype_that_cannot_be_moved():
    with pytest.raises(ArgumentTypeError, match=r"torch\.uint4 cannot be moved; use one of"):
        view(torch.empty(3, dtype=torch.uint4))


def test_output_like():
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    for made, shape in (
        (buffers.output_like(tensor).finish(), (2, 3)),
        (buffers.output_like(tensor, [4]).finish(), (4,)),
    ):
        assert type(made) is torch.Tensor
        assert (made.dtype, tuple(made.shape)) == (tensor.dtype, shape)
