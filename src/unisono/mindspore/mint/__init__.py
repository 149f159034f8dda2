"""The MindSpore face, `mindspore.mint`: only its module `distributed` is here."""

from __future__ import annotations

from unisono.mindspore._missing import missing as _missing
from unisono.mindspore.mint import distributed

__all__ = ["distributed"]

__getattr__ = _missing("mindspore.mint", __all__)
