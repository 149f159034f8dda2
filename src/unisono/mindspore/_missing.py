"""What a module says when it is asked for a name that it lacks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["missing"]


def missing(
    upstream: str, names: Sequence[str], instead: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Make the `__getattr__` of the module that stands for `upstream`.

    `instead` names what to use where similar spelling would mislead. Nothing is handed on to the
    real framework: that call would talk to another world.
    """

    def lookup(name: str) -> Any:
        nearest = (instead or {}).get(name)
        if nearest is None:
            close = difflib.get_close_matches(name, names, 1, 0.0)
            nearest = close[0] if close else names[0]
        raise AttributeError(f"{upstream}.{name} is not in unisono; nearest: {nearest}", name=name)

    return lookup
