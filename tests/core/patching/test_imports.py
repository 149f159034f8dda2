"""What is done when a framework is imported; the frameworks here are small modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.core.patching.imports import after_import


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether the framework was complete, for each time that the function was called."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "small_framework.py").write_text(
        "begun = True\nimport small_part\ncomplete = True\n"
    )
    (tmp_path / "small_part.py").write_text("")
    yield []
    for name in ("small_framework", "small_part"):
        sys.modules.pop(name, None)


def note(calls: list[bool]) -> None:
    calls.append(hasattr(sys.modules["small_framework"], "complete"))


def test_at_the_end_of_a_later_import(calls: list[bool]) -> None:
    finders = list(sys.meta_path)
    after_import("small_framework", lambda: note(calls))
    importlib.import_module("small_part")
    assert calls == [] and "small_framework" not in sys.modules
    importlib.import_module("small_framework")
    assert calls == [True]
    assert sys.meta_path == finders


def test_now_if_it_is_imported(calls: list[bool]) -> None:
    importlib.import_module("small_framework")
    after_import("small_framework", lambda: note(calls))
    assert calls == [True]


def test_again_after_an_import_that_failed(calls: list[bool], tmp_path: Path) -> None:
    part = tmp_path / "small_part.py"
    part.write_text("raise RuntimeError('not yet')\n")
    after_import("small_framework", lambda: note(calls))
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module("small_framework")
    assert calls == []
    part.write_text("later = True\n")
    importlib.import_module("small_framework")
    assert calls == [True]
