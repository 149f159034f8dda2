"""Where the repository is, for tests that start programs: these import `tests` from there."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def with_tests(*more: str) -> str:
    """A PYTHONPATH on which the package `tests` is found, before what there is already."""
    return os.pathsep.join([str(ROOT), *more, *filter(None, [os.environ.get("PYTHONPATH")])])


def mindspore_python() -> str:
    """The interpreter that has MindSpore; the test is skipped where there is none."""
    named = os.environ.get("UNISONO_MINDSPORE_PYTHON")
    path = Path(named) if named else ROOT / ".venv-mindspore" / "bin" / "python"
    if not path.exists():
        import pytest  # programs that import this module have no need of it

        pytest.skip(
            f"no environment with MindSpore at {path}; make one there, or name its interpreter in "
            "UNISONO_MINDSPORE_PYTHON"
        )
    return str(path)
