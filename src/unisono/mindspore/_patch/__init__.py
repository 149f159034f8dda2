"""Put unisono under MindSpore: all of it, or what MindSpore's own training code uses."""

from __future__ import annotations

import importlib
import multiprocessing
import sys

from unisono.core import environment, registry
from unisono.errors import LaunchError, UnisonoError
from unisono.mindspore._patch.cache import let_cache_make_ours
from unisono.mindspore._patch.graphs import prepare_graphs
from unisono.mindspore._patch.imports import after_import
from unisono.mindspore._patch.internals import take_over
from unisono.mindspore._patch.modes import refuse_other_modes
from unisono.mindspore._patch.table import replacements, swap

__all__ = ["patch", "patch_when_imported", "take_over"]


def patch() -> None:
    """Replace MindSpore's communication in all modules, and say so once in each job."""
    try:
        version = importlib.import_module("mindspore").__version__
    except ModuleNotFoundError as error:
        raise LaunchError(f"cannot patch mindspore: {error}") from error
    count = _patch_all()
    if count and multiprocessing.parent_process() is None:
        _announce(f"patched mindspore {version}: {count} names now use unisono")


def patch_when_imported() -> None:
    """The same as soon as MindSpore has been imported, quietly: the launcher has said it."""
    after_import(_patch_all)


def _patch_all() -> int:
    count = swap(list(sys.modules.values()), replacements())
    prepare_graphs()
    let_cache_make_ours()
    refuse_other_modes()
    return count


def _announce(text: str) -> None:
    """Say it in one rank of the job, with the engine if that is known."""
    try:
        launch = environment.find()
        engine = registry.choose(None, launch).name
    except (SystemExit, UnisonoError):  # msrun's scheduler, or a job that cannot start
        return
    if launch.rank == 0:
        print(f"unisono: {text} (engine {engine})", file=sys.stderr, flush=True)
