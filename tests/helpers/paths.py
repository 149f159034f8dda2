"""Where the repository is, for tests that start programs: these import `tests` from there."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def with_tests(*more: str) -> str:
    """A PYTHONPATH on which the package `tests` is found, before what there is already."""
    return os.pathsep.join([str(ROOT), *more, *filter(None, [os.environ.get("PYTHONPATH")])])
