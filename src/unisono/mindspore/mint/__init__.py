"""The MindSpore face, `mindspore.mint`: only its module `distributed` is here."""

from __future__ import annotations

from unisono.core.arguments import missing_name as _missing_name
from unisono.mindspore.mint import distributed

__all__ = ["distributed"]

__getattr__ = _missing_name("mindspore.mint", __all__)
