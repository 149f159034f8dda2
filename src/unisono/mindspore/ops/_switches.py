"""Which functions of `ops.communication` were told to return new tensors, for each world.

Ranks that are threads switch for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from unisono.core import groups
from unisono.core.engine import Engine

__all__ = ["is_off", "switch"]

#: Names of the functions that do not write in place: before there is a world, and in each world.
_off_before_init: set[str] = set()
_off: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


def switch(names: Sequence[str], *, in_place: bool) -> None:
    """Let these functions write in place, or not."""
    engine = groups.world().engine if groups.is_initialized() else None
    off = _off_before_init if engine is None else _off.setdefault(engine, set(_off_before_init))
    if in_place:
        off.difference_update(names)
    else:
        off.update(names)


def is_off(name: str) -> bool:
    """Tell whether a function does not write in place."""
    if not _off and not _off_before_init:  # nearly always
        return False
    engine = groups.world().engine if groups.is_initialized() else None
    return name in (_off_before_init if engine is None else _off.get(engine, _off_before_init))
