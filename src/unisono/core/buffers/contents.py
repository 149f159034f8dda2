"""Elements of buffers: read, written, put together and taken apart, in whichever memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core.buffers.buffer import Buffer
from unisono.core.buffers.devices import keep_until_read
from unisono.core.buffers.kinds import kind_of
from unisono.core.buffers.numpy import view_numpy
from unisono.errors import ArgumentError

__all__ = ["concatenated", "empty_for", "move_to_host", "read", "unpack_into", "write"]


# ---- one buffer ----------------------------------------------------------------------------------


def read(buffer: Buffer) -> np.ndarray[Any, Any]:
    """The elements of a buffer in the host's memory: the same memory, or a copy."""
    if buffer.device == "cpu":
        return buffer.array
    flat = _flat(buffer)
    if kind_of(flat) == "cupy":
        return np.asarray(flat.get())
    raw: np.ndarray[Any, Any] = flat.view(sys.modules["torch"].uint8).cpu().numpy()
    return raw.view(buffer.dtype.numpy)


def write(buffer: Buffer, values: np.ndarray[Any, Any]) -> None:
    """Set the elements of a buffer, in whichever memory."""
    if buffer.device == "cpu":
        buffer.array[:] = values
        return
    host = np.empty(buffer.count, buffer.dtype.numpy)
    host[:] = values
    flat = _flat(buffer)
    if kind_of(flat) == "cupy":
        flat.set(host)
        return
    torch = sys.modules["torch"]
    flat.view(torch.uint8).copy_(torch.from_numpy(host.view(np.uint8)))


def move_to_host(buffer: Buffer) -> bool:
    """Let a buffer show a copy in the host's memory; False if its kind has always been elsewhere.

    That is for CuPy, whose arrays every engine takes.
    """
    array, unpack = buffer.owner, buffer.copy_back
    if kind_of(array) != "cupy":
        return False
    host = array.get()  # type: ignore[attr-defined]
    moved = view_numpy(host)
    buffer.address, buffer.owner, buffer.device = moved.address, (array, host), "cpu"

    def copy_back() -> None:
        array.set(host)  # type: ignore[attr-defined]
        if unpack is not None:
            unpack()

    buffer.copy_back = copy_back
    return True


def _flat(buffer: Buffer) -> Any:
    """A buffer on a GPU, as the tensor that it shows."""
    owner: Any = buffer.owner
    return owner.ravel() if kind_of(owner) == "cupy" else owner.detach().view(-1)


# ---- several buffers as one array ----------------------------------------------------------------


def concatenated(parts: Sequence[Buffer]) -> Any:
    """A new flat array with the elements of several buffers, one after the other."""
    _bring_together(parts)
    if parts[0].device == "cpu":
        return np.concatenate([part.array for part in parts])
    flat = [_flat(part) for part in parts]
    if kind_of(flat[0]) == "cupy":
        with flat[0].device:
            return sys.modules["cupy"].concatenate(flat)
    return sys.modules["torch"].cat(flat)


def empty_for(parts: Sequence[Buffer]) -> Any:
    """A new flat array, as long as several buffers together."""
    _bring_together(parts)
    count = sum(part.count for part in parts)
    if parts[0].device == "cpu":
        return np.empty(count, parts[0].dtype.numpy)
    first = _flat(parts[0])
    if kind_of(first) == "cupy":
        with first.device:
            return sys.modules["cupy"].empty(count, first.dtype)
    return first.new_empty(count)


def unpack_into(whole: Any, parts: Sequence[Buffer]) -> None:
    """Copy the elements of a flat array to several buffers, and back to their tensors."""
    keep_until_read(whole)
    start = 0
    for part in parts:
        piece = whole[start : start + part.count]
        if part.device == "cpu":
            part.array[:] = piece
        else:
            _flat(part)[:] = piece
        start += part.count
        if part.copy_back is not None:
            part.copy_back()


def _bring_together(parts: Sequence[Buffer]) -> None:
    """If parts are in different memories, show them all in the host's."""
    if len({part.device for part in parts}) > 1:
        for part in parts:
            if part.device != "cpu" and not move_to_host(part):
                raise ArgumentError("the tensors of a list are on different devices; move them")
