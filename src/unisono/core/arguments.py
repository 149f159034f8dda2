"""Counts, splits and ranks as callers pass them, as plain ints."""

from __future__ import annotations

from operator import index
from typing import Any

from unisono.errors import ArgumentTypeError

__all__ = ["whole_number", "whole_numbers"]


def whole_number(value: Any, name: str) -> int:
    """An int of any library as Python's own; the error names the parameter.

    >>> whole_number(True, "tag")
    1
    """
    try:
        return index(value)
    except Exception as error:  # tensors without data have their own
        raise ArgumentTypeError(f"{name} must be a whole number, got {value!r}") from error


def whole_numbers(values: Any, name: str) -> list[int]:
    """The same for a list of them, or anything else that can be gone through.

    >>> whole_numbers(range(3), "counts")
    [0, 1, 2]
    """
    try:
        return [index(value) for value in values]
    except Exception as error:
        raise ArgumentTypeError(f"{name} must be whole numbers, got {values!r}") from error
