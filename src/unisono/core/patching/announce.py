"""Say that a program has patched a framework, once in each job."""

from __future__ import annotations

import multiprocessing
import sys

from unisono.core import environment, registry
from unisono.errors import UnisonoError

__all__ = ["announce"]


def announce(text: str) -> None:
    """Say it in one rank of the job, with the engine if that is known."""
    if multiprocessing.parent_process() is not None:
        return
    try:
        launch = environment.find()
        engine = registry.choose(None, launch).name
    except (SystemExit, UnisonoError):  # msrun's scheduler, or a job that cannot start
        return
    if launch.rank == 0:
        print(f"unisono: {text} (engine {engine})", file=sys.stderr, flush=True)
