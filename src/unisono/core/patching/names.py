"""Replace functions and classes of a framework wherever modules have them.

What is replaced is known by its identity. Wherever a module has it under some name, the module gets
ours instead. That reaches what was imported before; what is imported later comes from modules that
are changed already. Not reached are references that are elsewhere: default arguments, attributes of
classes, and objects that were built before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["swap"]


def swap(modules: Iterable[object], table: Mapping[int, tuple[Any, Any]]) -> int:
    """Put our things into modules that hold the framework's, and return into how many names.

    `table` has both, the framework's first, under the identity of the framework's.
    """
    count = 0
    for module in modules:
        if isinstance(module, ModuleType) and not module.__name__.startswith("unisono."):
            names = vars(module)
            for name, thing in list(names.items()):
                real, ours = table.get(id(thing), (None, None))
                if real is not None and real is thing:
                    names[name] = ours
                    count += 1
    return count
