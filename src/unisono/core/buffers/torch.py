"""torch's tensors, and what its autograd is told of a call that wrote into one."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from unisono.core import dtypes, trace
from unisono.core.buffers.buffer import Buffer, overlaps_itself
from unisono.core.buffers.derivatives import IN_TRANSFORM, check_no_tangent
from unisono.core.buffers.devices import keep_until_read, note_device
from unisono.core.buffers.kinds import unknown_dtype
from unisono.core.dtypes import DType
from unisono.errors import ArgumentTypeError, Unsupported

__all__ = ["expect_message", "view_torch"]

_LONGEST_STORAGE = 1 << 40  # bytes; memory has higher addresses


def view_torch(tensor: Any) -> Buffer:
    """Show a tensor of torch, on whichever device."""
    dtype = _dtypes().get(tensor.dtype)
    if dtype is None:
        raise unknown_dtype(tensor.dtype)
    if tensor.is_meta:
        raise Unsupported(f"a torch tensor on {tensor.device} has no memory; make a real one first")
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise ArgumentTypeError(f"a {tensor.layout} tensor has no flat memory; use to_dense()")
    check_no_tangent(tensor)
    address = _address_of(tensor)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        buffer = Buffer(address, tensor.numel(), dtype, tensor)
        if not tensor.is_cpu:
            note_device(buffer, tensor.device.type)
        if tensor.requires_grad and torch.is_grad_enabled():
            buffer.copy_back = _BackwardWarning(tensor).attach
        return buffer
    plain = tensor.detach()
    packed = plain.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    overlapping = overlaps_itself(tensor.shape, tensor.stride(), 1)
    unpack = _Unpack(plain, packed)
    if tensor.requires_grad and torch.is_grad_enabled():
        unpack.warning = _BackwardWarning(tensor)
    buffer = Buffer(_address_of(packed), packed.numel(), dtype, packed, not overlapping, unpack)
    if not tensor.is_cpu:
        note_device(buffer, tensor.device.type)
    return buffer


def _address_of(tensor: Any) -> int:
    """Where the elements of a tensor are, if it has memory."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError as error:
        raise Unsupported(IN_TRANSFORM) from error
    # A storage that was freed is at address 0, and its tensors are at their offsets.
    if (
        address < _LONGEST_STORAGE
        and tensor.numel()
        and address == tensor.storage_offset() * tensor.itemsize
    ):
        raise Unsupported(
            "a torch tensor without memory: it stands for others, as tracers, fake tensors and "
            "gradients of zeros do, or its storage was freed, as FSDP frees those of parameters; "
            "make a real one first"
        )
    return address


_DTYPES: dict[Any, DType] = {}


def _dtypes() -> dict[Any, DType]:
    """torch's dtype objects to ours, filled at first use because torch comes late or never."""
    if not _DTYPES:
        torch = sys.modules["torch"]
        for dtype in dtypes.DTYPES:
            if hasattr(torch, dtype.name):
                _DTYPES[getattr(torch, dtype.name)] = dtype
    return _DTYPES


class _Unpack:
    """The copy back of a tensor that was packed."""

    def __init__(self, plain: Any, packed: Any) -> None:
        self._plain = plain
        self._packed = packed
        self.warning: _BackwardWarning | None = None

    def __call__(self) -> None:
        keep_until_read(self._packed)
        self._plain.copy_(self._packed)
        if self.warning is not None:
            self.warning.attach()


def expect_message(buffer: Buffer) -> None:
    """Let no backward warn that a message was received into this tensor.

    A message is a new value, with a gradient of its own that the program sends back, as pipelines
    do. A collective changes a value whose gradient then belongs to another program.
    """
    if isinstance(buffer.copy_back, _Unpack):
        buffer.copy_back.warning = None
    elif isinstance(getattr(buffer.copy_back, "__self__", None), _BackwardWarning):
        buffer.copy_back = None


class _BackwardWarning:
    """A hook of a tensor that a call wrote into: a backward through it warns, as in torch.

    Autograd does not know of the call and goes on as if there were none. `attach` is for the end of
    the call.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor: Any = tensor
        self._site = trace.call_site()  # now: the call may end elsewhere in the program

    def attach(self) -> None:
        tensor, self._tensor = self._tensor, None  # a hook that holds its tensor would be a cycle
        if tensor is None or any(
            isinstance(hook, _BackwardWarning) for hook in (tensor._backward_hooks or {}).values()
        ):
            return
        # A view whose memory was written has no node until it is asked for, and torch 2.13 crashes
        # if it gets a hook before.
        if tensor.grad_fn is not None or tensor.requires_grad:
            tensor.register_hook(self)

    def __call__(self, gradient: Any) -> None:
        warnings.warn(
            f"the call at {self._site} wrote into a tensor that requires a gradient, and autograd "
            "does not know of it: the gradient is that of a program without the call. Use "
            "unisono.torch.distributed.nn.functional, or torch.no_grad() if it is meant so",
            stacklevel=2,
        )
