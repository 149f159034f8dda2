"""Reductions that MPI does itself: datatypes, operators, and how values are encoded for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unisono.core.dtypes import DType, ReduceOp
from unisono.engines.common.reductions import Array, combine

__all__ = ["MpiReduction", "reduction"]


@dataclass(frozen=True)
class MpiReduction:
    """A reduction that MPI does: what each rank passes to it, and what is made of the result.

    `width` is how many elements of `datatype` stand for one of ours; without `encode` and `decode`
    the memory is passed as it is.
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


def reduction(op: ReduceOp, dtype: DType, size: int, ordered: bool) -> MpiReduction | None:
    """How MPI does it; None if it must be `ordered` and MPI's order of operands shows in the bits.

    MPI keeps the order of ranks for operators that do not commute, but groups operands as it likes.
    """
    from mpi4py import MPI

    name = op.name
    if dtype.kind == "bool":
        return MpiReduction(MPI.BYTE, getattr(MPI, _LOGICAL.get(name, _OPERATORS[name])))
    if dtype.kind == "integer":
        if name == "avg":
            return _integer_average(dtype, size)
        if name == "sum" and dtype.itemsize < 4 and MPI.get_vendor()[0] == "Open MPI":
            # Its sums of 8 and 16 bits stop at the largest number where the CPU has AVX.
            wide, narrow = np.dtype(np.uint32), dtype.numpy
            return MpiReduction(
                MPI.UINT32_T, MPI.SUM, 1, lambda v: v.astype(wide), lambda v: v.astype(narrow)
            )
        return MpiReduction(_datatype(dtype.name), getattr(MPI, _OPERATORS[name]))
    if name in ("min", "max"):
        # MPI does not say what its own do with a NaN, or with zeros of either sign.
        return MpiReduction(_datatype(dtype.name), _operator(op, dtype))
    return None if ordered else _inexact(op, dtype, size)


def _datatype(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, _NAMES.get(name, f"{name.upper()}_T"))


_operators: dict[tuple[str, str], Any] = {}  # mpi4py has room for 32 of all, so they are kept


def _operator(op: ReduceOp, dtype: DType) -> Any:
    """An operator of our own that keeps the order of ranks."""
    from mpi4py import MPI

    key = op.name, dtype.name
    if key not in _operators:

        def function(lower: Any, upper: Any, _: Any) -> None:
            into = np.frombuffer(upper, np.uint8).view(dtype.numpy)
            into[:] = combine(op, [np.frombuffer(lower, np.uint8).view(dtype.numpy), into])

        _operators[key] = MPI.Op.Create(function, commute=False)
    return _operators[key]


def _integer_average(dtype: DType, size: int) -> MpiReduction:
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

    return MpiReduction(MPI.UINT64_T if unsigned else MPI.INT64_T, MPI.SUM, 2, encode, decode)


def _inexact(op: ReduceOp, dtype: DType, size: int) -> MpiReduction:
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
        return MpiReduction(datatype, operator)
    return MpiReduction(datatype, operator, 1, encode, decode)
