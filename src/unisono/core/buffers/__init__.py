"""Any tensor as flat memory: NumPy, torch, MindSpore, JAX, CuPy, DLPack, the buffer protocol.

`view(tensor)` gives a `Buffer`: an address, a count and a dtype. Memory that is not contiguous
is packed first, and unpacked again by `Buffer.copy_back` when the call has ended. This package
alone knows kinds of tensors, and looks only at frameworks that the user has already imported.
"""

from unisono.core.buffers.buffer import Buffer, check_writable, overlap
from unisono.core.buffers.contents import (
    concatenated,
    empty_for,
    move_to_host,
    read,
    unpack_into,
    write,
)
from unisono.core.buffers.derivatives import IN_TRANSFORM, has_tangent, refuse_backward
from unisono.core.buffers.kinds import is_tensor
from unisono.core.buffers.outputs import Output, output_like
from unisono.core.buffers.torch import expect_message
from unisono.core.buffers.views import view

__all__ = [
    "IN_TRANSFORM",
    "Buffer",
    "Output",
    "check_writable",
    "concatenated",
    "empty_for",
    "expect_message",
    "has_tangent",
    "is_tensor",
    "move_to_host",
    "output_like",
    "overlap",
    "read",
    "refuse_backward",
    "unpack_into",
    "view",
    "write",
]
