"""Put unisono under real torch: a program that asks for gloo, or for no backend, gets our groups.

Nothing here imports torch before the program does.
"""

from __future__ import annotations

import importlib
import sys

from unisono.core.patching.imports import after_import
from unisono.core.patching.names import swap
from unisono.errors import LaunchError

__all__ = ["patch", "patch_when_imported"]


def patch() -> None:
    """Let the groups that torch makes from now on be ours, and say so once in each job."""
    try:
        version = importlib.import_module("torch").__version__
    except ModuleNotFoundError as error:
        raise LaunchError(f"cannot patch torch: {error}") from error
    if _patch_all():
        # Brings NumPy, which a Python that only waits for torch need not have.
        from unisono.core.patching.announce import announce

        announce(f"patched torch {version}: its gloo groups are unisono's")


def patch_when_imported() -> None:
    """The same as soon as torch has been imported, quietly: the launcher has said it."""
    after_import("torch", _patch_all)


def _patch_all() -> int:
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        raise LaunchError("cannot patch torch: it was built without torch.distributed")
    from unisono.torch.backend.in_place_of_gloo import replacements

    return swap(list(sys.modules.values()), replacements())
