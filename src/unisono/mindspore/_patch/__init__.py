"""Put unisono under MindSpore: all of it, or what MindSpore's own training code uses."""

from __future__ import annotations

import importlib
import sys

from unisono.core.patching.announce import announce
from unisono.core.patching.imports import after_import
from unisono.core.patching.names import swap
from unisono.errors import LaunchError
from unisono.mindspore._patch.cache import let_cache_make_ours
from unisono.mindspore._patch.graphs import prepare_graphs
from unisono.mindspore._patch.internals import take_over
from unisono.mindspore._patch.modes import refuse_other_modes
from unisono.mindspore._patch.table import replacements

__all__ = ["patch", "patch_when_imported", "take_over"]


def patch() -> None:
    """Replace MindSpore's communication in all modules, and say so once in each job."""
    try:
        version = importlib.import_module("mindspore").__version__
    except ModuleNotFoundError as error:
        raise LaunchError(f"cannot patch mindspore: {error}") from error
    count = _patch_all()
    if count:
        announce(f"patched mindspore {version}: {count} names now use unisono")


def patch_when_imported() -> None:
    """The same as soon as MindSpore has been imported, quietly: the launcher has said it."""
    after_import("mindspore", _patch_all)


def _patch_all() -> int:
    count = swap(list(sys.modules.values()), replacements())
    prepare_graphs()
    let_cache_make_ours()
    refuse_other_modes()
    return count
