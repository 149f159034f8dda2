"""Counts, splits and ranks as callers pass them, as plain ints."""

from __future__ import annotations

from operator import index
from typing import Any

from unisono.errors import ArgumentTypeError

__all__ = ["as_int", "as_ints"]


def as_int(value: Any, name: str) -> int:
    """An int of any library as Python's own; the error names the parameter.

    >>> as_int(True, "tag")
    1
    """
    try:
        return index(value)
    except Exception as error:  # tensors without data have their own
        raise ArgumentTypeError(f"{name} must be a whole number, got {value!r}") from error


def as_ints(values: Any, name: str) -> list[int]:
    """The same for a list of them, or anything else that can be gone through.

    >>> as_ints(range(3), "counts")
    [0, 1, 2]
    """
    try:
        return [index(value) for value in values]
    except Exception as error:
        raise ArgumentTypeError(f"{name} must be whole numbers, got {values!r}") from error
