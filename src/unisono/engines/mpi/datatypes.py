"""Memory of any length as MPI takes it: bytes to move, or elements to reduce."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from unisono.engines.common.reductions import Array

__all__ = ["MAX_COUNT", "as_bytes", "elements"]

#: What one count of MPI may be, in elements; most MPIs count in 32 bits.
MAX_COUNT = (1 << 31) - 1
_BLOCK = 1 << 30


def as_bytes(memory: Array) -> list[Any]:
    """Any flat memory for MPI to move: so many bytes, or one element of a type as long as it is."""
    from mpi4py import MPI

    raw = memory.view(np.uint8)
    if raw.size <= MAX_COUNT:
        return [raw, raw.size, MPI.BYTE]
    return [raw, 1, _type_of_length(raw.size)]


@functools.cache  # few sizes are so large, so their types are kept
def _type_of_length(nbytes: int) -> Any:
    from mpi4py import MPI

    blocks, rest = divmod(nbytes, _BLOCK)
    block = MPI.BYTE.Create_contiguous(_BLOCK)
    whole = MPI.Datatype.Create_struct([blocks, rest], [0, blocks * _BLOCK], [block, MPI.BYTE])
    block.Free()
    return whole.Commit()


def elements(memory: Array, datatype: Any) -> list[Any]:
    """Flat memory for MPI to reduce."""
    return [memory.view(np.uint8), memory.size, datatype]
