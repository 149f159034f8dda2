"""What of MindSpore communicates, and what replaces it.

A primitive that was built before is not reached: see `core/patching/names.py` for how names are.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

__all__ = ["found", "replacements"]

#: Modules of MindSpore that define communication; ours have the same names.
_DEFINED = (
    "mindspore.communication._comm_helper",
    "mindspore.communication.management",
    "mindspore.communication.comm_func",
    "mindspore.ops.communication",
    "mindspore.ops.operations.comm_ops",
    "mindspore.mint.distributed.distributed",
)
#: What they define, but do not list in `__all__`.
_UNLISTED = ("TCPStore", "gather_into_tensor", "scatter_tensor")
_lock = threading.Lock()
#: Made once, because a patched MindSpore does not tell any more what it had.
_table: dict[int, tuple[Any, Any]] = {}


def replacements() -> dict[int, tuple[Any, Any]]:
    """What MindSpore has, by its identity, and what replaces it."""
    with _lock:
        if not _table:
            for path, name, ours in _pairs():
                real = next((getattr(module, name, None) for module in found([path])), None)
                if callable(real):  # names of the world are texts, and the same in both
                    _table[id(real)] = (real, ours)
        return _table


def _pairs() -> Iterator[tuple[str, str, Any]]:
    """Modules of MindSpore, a name in each, and what we have for it."""
    for path in _DEFINED:
        face = importlib.import_module(f"unisono.{path}")
        for name in {*face.__all__, *_UNLISTED} & set(dir(face)):
            yield path, name, getattr(face, name)
    parameters = importlib.import_module("unisono.mindspore._patch.parameters")
    yield "mindspore.graph.api", "_build_broadcast_graph", parameters.broadcast_parameters


def found(paths: Iterable[str]) -> Iterator[ModuleType]:
    """Those of these modules that MindSpore has; they differ a little from version to version."""
    for path in paths:
        try:
            yield importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not f"{path}.".startswith(f"{error.name}."):
                raise
