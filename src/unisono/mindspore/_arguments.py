"""Arguments as only this dialect has them: operators and backends by name, strict types, dtypes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from unisono.core import buffers, registry
from unisono.core.buffers import Buffer
from unisono.core.engine import ReduceOp as _Operator
from unisono.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "ReduceOp",
    "blocking",
    "check_bool",
    "check_integer",
    "check_type",
    "empty_of",
    "engine_for",
    "known_operator",
    "operator",
    "view",
    "zeros_like",
]


class ReduceOp:
    """Name the operators, which are plain strings in this dialect.

    >>> ops.ReduceOp.SUM
    'sum'
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    AVG = "avg"


#: What the operators of this dialect are in the core.
_OPERATORS = {
    ReduceOp.SUM: _Operator.SUM,
    ReduceOp.PROD: _Operator.PRODUCT,
    ReduceOp.MIN: _Operator.MIN,
    ReduceOp.MAX: _Operator.MAX,
    ReduceOp.AVG: _Operator.AVG,
}


def operator(op: str) -> _Operator:
    """The core's operator for one of the strings of `ReduceOp`."""
    if not isinstance(op, str) or op not in _OPERATORS:
        raise ArgumentTypeError(f"op must be one of {', '.join(_OPERATORS)}, got {op!r}")
    return _OPERATORS[op]


def known_operator(op: object) -> _Operator | None:
    """The same for a call of `core.fast`; None for what `operator` refuses."""
    return _OPERATORS.get(op) if type(op) is str else None


def check_type(value: object, name: str, *kinds: type) -> None:
    """Refuse what is of none of these types."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ArgumentTypeError(f"{name} must be of type {names}, got {value!r}")


def check_integer(value: object, name: str) -> None:
    """Refuse what is not an int; a bool passes, as it does upstream."""
    check_type(value, name, int)


def check_bool(value: object, name: str) -> None:
    """Refuse what is not a bool."""
    check_type(value, name, bool)


def blocking(async_op: bool) -> bool:
    """Whether the caller waits within the call."""
    check_bool(async_op, "async_op")
    return not async_op


def engine_for(backend: object, upstream: Collection[str], name: str) -> str | None:
    """The engine that a backend means: None, any that fits, for those of upstream."""
    if isinstance(backend, str):
        if backend in upstream:
            return None
        if backend.partition(":")[0] in registry.names():
            return backend
    known = ", ".join([*upstream, *registry.names()])
    raise ArgumentError(f"{name} must be one of {known}, got {backend!r}")


def view(tensor: Any, name: str) -> Buffer:
    """The memory of a tensor; the error of one that has none names the parameter."""
    try:
        return buffers.view(tensor)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{name}: {error}") from None


def zeros_like(tensor: Any, shape: Sequence[int] | None = None) -> Any:
    """A new tensor of zeros, of the same kind and dtype, with `shape` if it is given."""
    out = buffers.output_like(tensor, shape)
    buffers.write(out.buffer, np.zeros((), out.buffer.dtype.numpy))
    return out.finish()


def empty_of(dtype: Any) -> Any:
    """An empty tensor of the library that `dtype` belongs to, as a pattern for others."""
    library = getattr(type(dtype), "__module__", "").partition(".")[0]
    if library == "torch" and isinstance(dtype, sys.modules["torch"].dtype):
        return sys.modules["torch"].empty(0, dtype=dtype)
    if library == "mindspore" and hasattr(sys.modules["mindspore"], str(dtype).lower()):
        return sys.modules["mindspore"].Tensor([], dtype)
    scalar = isinstance(dtype, type) and issubclass(dtype, np.generic)
    named = isinstance(getattr(dtype, "dtype", dtype), np.dtype)  # jax.numpy's have `dtype`
    if scalar or (named and not buffers.is_tensor(dtype)):
        with contextlib.suppress(TypeError):  # np.floating and the like are no dtypes
            return np.empty(0, np.dtype(dtype))
    raise ArgumentTypeError(f"expected a dtype, got {dtype!r}")
