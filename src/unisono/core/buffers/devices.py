"""The GPU that a tensor is on, and its streams, as the framework of the tensor knows them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from unisono.core.buffers.buffer import Buffer
from unisono.core.buffers.derivatives import has_tangent

__all__ = [
    "current_stream",
    "current_stream_of",
    "device_index",
    "fingerprint",
    "in_stream",
    "keep_until_read",
    "note_device",
    "saw_device_tensor",
    "torch_stream",
]

#: Whether any tensor so far was not in the memory of the host; until then nobody need look.
saw_device_tensor = False


def note_device(buffer: Buffer, device: str) -> None:
    """Say that this memory is not the host's."""
    global saw_device_tensor
    buffer.device = device
    saw_device_tensor = True


def device_index(buffer: Buffer) -> int:
    """The number of the GPU that the memory is on, in this process."""
    owner: Any = buffer.owner
    if _is_cupy(owner):
        return int(owner.device.id)
    return int(owner.get_device())


def current_stream(buffer: Buffer) -> int:
    """The stream in which the caller's framework works now, on the GPU of this buffer."""
    return current_stream_of(buffer.owner)


def current_stream_of(tensor: Any) -> int:
    """The same for the GPU of a tensor."""
    if _is_cupy(tensor):
        return int(sys.modules["cupy"].cuda.get_current_stream(tensor.device.id).ptr)
    return _torch_stream()(tensor.get_device())


def in_stream(buffer: Buffer, stream: int) -> AbstractContextManager[object]:
    """Let the framework of this buffer work in a stream meanwhile, in this thread."""
    index = device_index(buffer)
    if _is_cupy(buffer.owner):
        made: AbstractContextManager[object] = sys.modules["cupy"].cuda.ExternalStream(
            stream, device_id=index
        )
        return made
    context: AbstractContextManager[object] = sys.modules["torch"].cuda.stream(
        torch_stream(stream, index)
    )
    return context


def torch_stream(stream: int, index: int) -> Any:
    """A stream of a GPU as an object of torch."""
    cuda = sys.modules["torch"].cuda
    # ExternalStream takes 0, which is the default stream, for none, and makes another one.
    return cuda.ExternalStream(stream, device=index) if stream else cuda.default_stream(index)


def keep_until_read(tensor: Any) -> None:
    """Let torch not use this memory again before the current stream has read it, as it will now.

    torch goes by the stream that the memory was made for, and a result may be read in another one.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor) and tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def fingerprint(tensor: Any) -> tuple[object, ...] | None:
    """Where a tensor is, how long and of what dtype, if its whole memory is just its elements.

    It costs a fraction of `view`, but only knows torch's own tensors and CuPy's.
    """
    torch = sys.modules.get("torch")
    if torch is not None and type(tensor) is torch.Tensor:
        if tensor.layout is not torch.strided or tensor.requires_grad:
            return None
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            return None
        if has_tangent(tensor):
            return None
        return tensor.data_ptr(), tensor.numel(), tensor.dtype
    if _is_cupy(tensor) and tensor.flags.c_contiguous:
        return tensor.data.ptr, tensor.size, tensor.dtype
    return None


def _is_cupy(tensor: object) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(tensor, cupy.ndarray)


@functools.cache
def _torch_stream() -> Callable[[int], int]:
    """How torch tells the current stream of a GPU: without an object for it, where it can."""
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))
