"""What streams are to do, made ready once and then only started: a call takes as long as that.

It goes to the driver by ctypes, with arguments that stay in place, because cuda-bindings makes
objects of all of them anew, which takes longer than the driver itself. The structures are those of
cuda.h and reduce.cu.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from unisono.engines.cuda.gpu import kernels
from unisono.errors import UnisonoError

__all__ = [
    "STATE_BYTES",
    "Batch",
    "CudaBatch",
    "CudaLaunch",
    "Move",
    "Moves",
    "Operands",
    "Operation",
    "Permit",
    "PermitWords",
    "PreparedLaunch",
    "failure",
]

#: Bytes of the GPU's memory that the launches of one group keep notes in.
STATE_BYTES = 16


class Operation(NamedTuple):
    """What a stream does with a word of 32 bits."""

    #: Wait until the word has reached the value; else write it.
    waits: bool
    address: int
    #: What is added to the value of the batch.
    offset: int


class Batch(Protocol):
    """Operations of a stream, one after the other."""

    def run(self, stream: int, value: int) -> None:
        """Put them into a stream."""


class Permit(NamedTuple):
    """How a launch is a part of a step: the addresses of `Permit` in reduce.cu."""

    cancelled: int
    skipped: int
    begun: int
    #: Memory of the GPU, of `STATE_BYTES` zeros.
    state: int
    #: What the launch sets to the step at its end; empty unless it is the last one.
    done: Sequence[int]


class PreparedLaunch(Protocol):
    """A kernel with its arguments."""

    def run(self, stream: int, step: int) -> None:
        """Put it into a stream, as a part of this step."""


class Move(NamedTuple):
    """Device memory that is copied; the ranges are apart."""

    to: int
    source: int
    nbytes: int


# ---- the structures of cuda.h and reduce.cu, and what is made of them ----

_WAIT, _WRITE = 1, 2  # CU_STREAM_MEM_OP_WAIT_VALUE_32, _WRITE_VALUE_32; as flags, 0 is >= and plain


class _StreamOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams, for a wait and for a write."""

    _fields_ = (
        ("operation", ctypes.c_int),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint32),
        ("upper", ctypes.c_uint32),  # of a value of 64 bits
        ("flags", ctypes.c_uint32),
        ("alias", ctypes.c_uint64),
        ("unused", ctypes.c_uint64),
    )


class Operands(ctypes.Structure):
    """As in reduce.cu."""

    _fields_ = (
        ("sources", ctypes.c_void_p * kernels.MAX_RANKS),
        ("targets", ctypes.c_void_p * kernels.MAX_RANKS),
        ("source_count", ctypes.c_int),
        ("target_count", ctypes.c_int),
    )


class Moves(ctypes.Structure):
    """As in reduce.cu."""

    _fields_ = (
        ("to", ctypes.c_void_p * kernels.MAX_MOVES),
        ("source", ctypes.c_void_p * kernels.MAX_MOVES),
        ("count", ctypes.c_uint64 * kernels.MAX_MOVES),
    )


class PermitWords(ctypes.Structure):
    """`Permit` in reduce.cu."""

    _fields_ = (
        ("cancelled", ctypes.c_void_p),
        ("skipped", ctypes.c_void_p),
        ("begun", ctypes.c_void_p),
        ("verdict", ctypes.c_void_p),
        ("arrived", ctypes.c_void_p),
        ("done", ctypes.c_void_p * kernels.MAX_RANKS),
        ("dones", ctypes.c_int),
        ("step", ctypes.c_uint32),
    )

    @classmethod
    def of(cls, permit: Permit, step: int = 0) -> PermitWords:
        """The same for a launch."""
        words = permit.cancelled, permit.skipped, permit.begun, permit.state, permit.state + 8
        done = (ctypes.c_void_p * kernels.MAX_RANKS)(*permit.done)
        return cls(*words, done, len(permit.done), step)


class CudaBatch:
    """Operations for `cuStreamBatchMemOp`."""

    def __init__(self, library: ctypes.CDLL, operations: Sequence[Operation]) -> None:
        self._params = (_StreamOperation * len(operations))()
        for params, operation in zip(self._params, operations, strict=True):
            params.operation = _WAIT if operation.waits else _WRITE
            params.address = operation.address
        self._values = [
            (params, operation.offset)
            for params, operation in zip(self._params, operations, strict=True)
        ]
        self._count = len(operations)
        self._call = library.cuStreamBatchMemOp_v2
        self._call.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint)

    def run(self, stream: int, value: int) -> None:
        """As in `Batch`."""
        for params, offset in self._values:
            params.value = value + offset  # ctypes keeps 32 bits of it
        error = self._call(stream, self._count, self._params, 0)
        if error:
            raise failure(error)


class CudaLaunch:
    """A kernel for `cuLaunchKernel`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        function: int,
        grid: tuple[int, int],
        threads: int,
        arguments: tuple[Any, ...],
        permit: Permit,
    ) -> None:
        self._permit = PermitWords.of(permit)
        self._arguments = (*arguments, self._permit)
        # The driver reads each from its address, before it returns.
        places = (ctypes.c_void_p * len(self._arguments))(*map(ctypes.addressof, self._arguments))
        self._before = function, *grid, 1, threads, 1, 1, 0
        self._places = places
        self._call = library.cuLaunchKernel
        kinds: list[Any] = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._call.argtypes = kinds

    def run(self, stream: int, step: int) -> None:
        """As in `PreparedLaunch`."""
        self._permit.step = step
        error = self._call(*self._before, stream, self._places, None)
        if error:
            raise failure(error)


def failure(code: int) -> UnisonoError:
    """An error of the driver as ours."""
    from cuda.bindings import driver

    error = driver.CUresult(code)
    text = error.name
    with contextlib.suppress(Exception):
        text = driver.cuGetErrorString(error)[1].decode()
    return UnisonoError(f"the CUDA driver failed: {text} ({error.name})")
