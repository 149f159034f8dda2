"""The MindSpore face, `mindspore.mint`: `distributed` is unisono's, all else MindSpore's own."""

from __future__ import annotations

from unisono.mindspore._names import or_mindspore as _or_mindspore
from unisono.mindspore.mint import distributed

__all__ = ["distributed"]

__getattr__, __dir__ = _or_mindspore("mindspore.mint", __all__)
