"""Parameters of a test of which `make test` runs a few and `make test-all` runs each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["essential", "essential_rows"]


def essential(count: int, values: Iterable[Any]) -> list[Any]:
    """Mark all values of one parameter as thorough but the first `count`."""
    return essential_rows(count, [(value,) for value in values])


def essential_rows(count: int, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Mark all rows of several parameters as thorough but the first `count`."""
    marked = []
    for index, row in enumerate(rows):
        marks = () if index < count else (pytest.mark.thorough,)
        marked.append(pytest.param(*row, marks=marks))
    return marked
