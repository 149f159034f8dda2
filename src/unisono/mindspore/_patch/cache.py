"""MindSpore's cache of primitives, which makes them in a way that only its own can be made."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from unisono.core.patching.names import swap

__all__ = ["let_cache_make_ours"]


def let_cache_make_ours() -> None:
    """Make `_get_cache_prim(AllReduce)(...)`, as libraries write it, return a primitive of ours."""
    module = importlib.import_module("mindspore.ops._primitive_cache")
    theirs = module._get_cache_prim
    if getattr(theirs, "__module__", None) == __name__:
        return

    # Not imported above, because those modules import this package.
    ours = importlib.import_module("unisono.mindspore.ops._primitive").CommunicationPrimitive

    def get_cached(kind: Any) -> Any:
        return kind if issubclass(kind, ours) else theirs(kind)

    swap(list(sys.modules.values()), {id(theirs): (theirs, get_cached)})
    # In graphs, MindSpore's own function makes new primitives.
    resources = importlib.import_module("mindspore.graph._parse.resources")
    resources.convert_object_map[get_cached] = theirs
