"""The MindSpore faces: communication is unisono's, all other names are MindSpore's own."""

from __future__ import annotations

from unisono.mindspore._names import or_mindspore as _or_mindspore

__all__ = ["communication", "mint", "ops"]

# Loaded when they are asked for, because each of them imports this package first.
__getattr__, __dir__ = _or_mindspore("mindspore", __all__, modules=__all__)
