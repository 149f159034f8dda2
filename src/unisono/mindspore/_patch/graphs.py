"""What MindSpore's compiler has to know of our functions, told once MindSpore is loaded."""

from __future__ import annotations

import importlib

__all__ = ["prepare_graphs"]

#: Our modules in which most names are MindSpore's own.
_FACES = (
    "unisono.mindspore",
    "unisono.mindspore.mint",
    "unisono.mindspore.ops",
    "unisono.mindspore.ops.operations",
)


def prepare_graphs() -> None:
    """Let graphs call our functions and primitives, and what else our modules have."""
    for module in ("graph_functions", "graph_order"):
        importlib.import_module(f"unisono.mindspore.integration.{module}").install()
    # The compiler looks into a module's dictionary; it does not call the module's `__getattr__`.
    for path in _FACES:
        face = importlib.import_module(path)
        for name in dir(face):
            vars(face).setdefault(name, getattr(face, name))
