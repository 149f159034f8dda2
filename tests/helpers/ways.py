"""The two ways that a call can take: in native code, or the general way through Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unisono.core import groups
from unisono.core.fast import registration

__all__ = ["general_way"]


@contextmanager
def general_way() -> Iterator[None]:
    """Leave all calls to Python."""
    registration.set_world(None, {})
    try:
        yield
    finally:
        groups._tell_native()
