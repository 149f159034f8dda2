"""Reductions in NumPy, one pair at a time in rank order: every engine must give these bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unisono.core.dtypes import ReduceOp

__all__ = ["Array", "combine", "divided", "shares_of"]

Array = np.ndarray[Any, Any]


def combine(op: ReduceOp, operands: Sequence[Array]) -> Array:
    """Combine flat arrays of one dtype in rank order; 16-bit floats in float32, rounded once."""
    dtype = operands[0].dtype
    if op.name == "sum" and dtype.kind in "iuf" and dtype.isbuiltin == 1 and dtype.itemsize > 2:
        return _plain_sum(operands)
    if dtype.kind == "b":
        name = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(op.name, op.name)
    else:
        name = op.name
    if name == "avg" and dtype.kind in "iu":
        return _integer_average(operands)
    wide = dtype if dtype.isbuiltin == 1 and dtype != np.float16 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        values = [operand.astype(wide) for operand in operands]
        if name == "premul_sum":
            values = [_times(value, wide.type(op.factor)) for value in values]
        result = values[0]
        for value in values[1:]:
            result = _PAIR[name](result, value)
        if name == "avg":
            result = divided(result, len(operands))
        return result.astype(dtype)


def _plain_sum(operands: Sequence[Array]) -> Array:
    """The common case, without a copy of each operand."""
    with np.errstate(all="ignore"):
        total = operands[0] + operands[1] if len(operands) > 1 else operands[0].copy()
        for operand in operands[2:]:
            total += operand
    return np.asarray(total)


def divided(total: Array, count: int) -> Array:
    """A sum of floats divided by their number; 16-bit floats in float32, rounded once."""
    dtype = total.dtype
    # Parts of a complex number are divided each for itself, as the native kernel does.
    parts = total.view(total.real.dtype) if dtype.kind == "c" else total
    wide = parts.dtype if parts.dtype.itemsize > 2 else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        quotient = parts.astype(wide) / wide.type(count)
    return quotient.astype(parts.dtype).view(dtype)


def _smaller(a: Array, b: Array) -> Array:
    return np.where(~(b >= a) & (a == a), b, a)  # a NaN is passed on, the first one if several


def _larger(a: Array, b: Array) -> Array:
    return np.where(~(b <= a) & (a == a), b, a)


def _times(a: Array, b: Any) -> Array:
    if a.dtype.kind != "c":
        return np.asarray(a * b)
    # NumPy fuses steps of a complex product where the CPU can, so its bits depend on the machine.
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


_PAIR: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": np.add,
    "product": _times,
    "min": _smaller,
    "max": _larger,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def _integer_average(operands: Sequence[Array]) -> Array:
    """Exact mean, rounded toward zero: quotients and remainders are added apart."""
    count = len(operands)
    total = sum(operand.astype(object) for operand in operands)
    quotients = [abs(value) // count * (1 if value >= 0 else -1) for value in np.ravel(total)]
    return np.array(quotients, dtype=operands[0].dtype)


def shares_of(count: int, size: int) -> list[int]:
    """How a vector is divided for a reduction: as equally as possible.

    >>> shares_of(8, 3)
    [3, 3, 2]
    """
    share, more = divmod(count, size)
    return [share + (rank < more) for rank in range(size)]
