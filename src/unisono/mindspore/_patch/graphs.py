"""What MindSpore's compiler has to know of our functions, told once MindSpore is loaded."""

from __future__ import annotations

import importlib

__all__ = ["prepare_graphs"]


def prepare_graphs() -> None:
    """Let graphs call our functions and primitives."""
    importlib.import_module("unisono.mindspore.integration.graph_functions").install()
