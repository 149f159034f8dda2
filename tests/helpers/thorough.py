"""Parameters of a test of which `make test` runs a few and `make test-all` runs each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["essential"]


def essential(count: int, values: Iterable[Any]) -> list[Any]:
    """Mark all values of a parameter as thorough but the first `count`.

    A tuple holds a value for each of several parameters, as in pytest.mark.parametrize.
    """
    marked = []
    for index, value in enumerate(values):
        parts = value if isinstance(value, tuple) else (value,)
        marks = () if index < count else (pytest.mark.thorough,)
        marked.append(pytest.param(*parts, marks=marks))
    return marked
