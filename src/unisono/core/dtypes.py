"""The element types that unisono moves, and which operators reduce each of them.

The codes are shared with native/types.hpp; a test compares the two tables.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from unisono.errors import ArgumentTypeError

__all__ = ["DTYPES", "DType", "ReduceOp", "by_name", "of"]

_INTEGER = frozenset(["sum", "product", "min", "max", "band", "bor", "bxor", "avg"])
_FLOAT = frozenset(["sum", "product", "min", "max", "avg", "premul_sum"])
_OPERATORS = {
    "bool": frozenset(["sum", "product", "min", "max", "band", "bor", "bxor"]),
    "integer": _INTEGER,
    "float": _FLOAT,
    "complex": frozenset(["sum", "product", "avg", "premul_sum"]),
    "moved": frozenset[str](),
}


class ReduceOp:
    """How operands are combined, in rank order.

    `bool` sums as "or" and multiplies as "and". `avg` of integers is exact (it cannot overflow)
    and rounds toward zero. `min` and `max` of floats pass a NaN on. `premul_sum(factor)` sums
    `factor * operand`.

    >>> ReduceOp.SUM, ReduceOp.premul_sum(0.5)
    (ReduceOp.SUM, ReduceOp.premul_sum(0.5))
    """

    __slots__ = ("code", "factor", "name")

    SUM: ReduceOp
    PRODUCT: ReduceOp
    MIN: ReduceOp
    MAX: ReduceOp
    BAND: ReduceOp
    BOR: ReduceOp
    BXOR: ReduceOp
    AVG: ReduceOp
    PREMUL_SUM: ReduceOp
    ALL: tuple[ReduceOp, ...]

    def __init__(self, name: str, code: int, factor: float = 1.0) -> None:
        self.name = name
        self.code = code
        self.factor = factor

    @classmethod
    def premul_sum(cls, factor: float) -> ReduceOp:
        """Multiply each operand by `factor`, the same on every rank, then sum."""
        try:
            return cls("premul_sum", 8, float(factor))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(f"factor must be one real number: {error}") from None

    @property
    def text(self) -> str:
        """The operator in a message, with its factor if it has one."""
        return f"premul_sum({self.factor!r})" if self.name == "premul_sum" else self.name

    def __repr__(self) -> str:
        if self.name == "premul_sum":
            return f"ReduceOp.premul_sum({self.factor!r})"
        return f"ReduceOp.{self.name.upper()}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReduceOp):
            return NotImplemented
        return (self.code, self.factor) == (other.code, other.factor)

    def __hash__(self) -> int:
        return hash((self.code, self.factor))

    def __reduce__(self) -> tuple[Any, ...]:
        return ReduceOp, (self.name, self.code, self.factor)


for _code, _name in enumerate(["sum", "product", "min", "max", "band", "bor", "bxor", "avg"]):
    setattr(ReduceOp, _name.upper(), ReduceOp(_name, _code))
#: torch has the bare name too; without a factor it multiplies by one.
ReduceOp.PREMUL_SUM = ReduceOp.premul_sum(1.0)
ReduceOp.ALL = (
    ReduceOp.SUM,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
    ReduceOp.AVG,
    ReduceOp.premul_sum(0.5),
)


class DType:
    """One element type: its name, its code in the native module, its size in bytes."""

    __slots__ = ("code", "itemsize", "kind", "name", "numpy", "operators", "storage")

    def __init__(self, name: str, code: int, kind: str) -> None:
        self.name = name
        self.code = code
        self.kind = kind
        self.numpy: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
        self.itemsize = self.numpy.itemsize
        #: a type of the same size that exports the buffer protocol, for those that do not
        self.storage = self.numpy if self.numpy.isbuiltin == 1 else np.dtype(f"u{self.itemsize}")
        self.operators = _OPERATORS[kind]

    def __repr__(self) -> str:
        return f"DType({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)


DTYPES: tuple[DType, ...] = (
    DType("bool", 0, "bool"),
    DType("int8", 1, "integer"),
    DType("int16", 2, "integer"),
    DType("int32", 3, "integer"),
    DType("int64", 4, "integer"),
    DType("uint8", 5, "integer"),
    DType("uint16", 6, "integer"),
    DType("uint32", 7, "integer"),
    DType("uint64", 8, "integer"),
    DType("float16", 9, "float"),
    DType("bfloat16", 10, "float"),
    DType("float32", 11, "float"),
    DType("float64", 12, "float"),
    DType("complex64", 13, "complex"),
    DType("complex128", 14, "complex"),
    DType("float8_e4m3fn", 15, "moved"),
    DType("float8_e5m2", 16, "moved"),
    DType("float8_e4m3fnuz", 17, "moved"),
    DType("float8_e5m2fnuz", 18, "moved"),
    DType("float8_e8m0fnu", 19, "moved"),
)

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES}


def by_name(name: str) -> DType | None:
    """Find a type by the name that NumPy, torch and MindSpore all give it."""
    return _BY_NAME.get(name)


def of(numpy_dtype: np.dtype[Any]) -> DType | None:
    """Find the type of a NumPy array; None if unisono does not move it."""
    return _BY_NUMPY.get(numpy_dtype)
