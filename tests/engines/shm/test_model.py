"""The models of the arena's protocol, in the smallest bounds; `make model` runs all of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.paths import ROOT

SCRIPT = ROOT / "native" / "model" / "check.py"


def load() -> ModuleType:
    """check.py is a script beside the models, not part of the package."""
    spec = importlib.util.spec_from_file_location("model_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


check = load()
pytestmark = pytest.mark.skipif(check.missing_tools() != "", reason=check.missing_tools() or "-")


@pytest.mark.parametrize("case", [c for c in check.RIGHT if c.quick], ids=lambda c: c.model)
def test_protocol_holds(case: check.Check, tmp_path: Path) -> None:
    found = check.search(case, tmp_path)
    assert found.error == "" and found.complete
    assert found.states > 10_000  # it has looked at something


@pytest.mark.parametrize("case", [c for c in check.BUGS if c.quick], ids=lambda c: c.about)
def test_planted_bug_is_found_and_nothing_without_it(case: check.Check, tmp_path: Path) -> None:
    assert check.search(case, tmp_path).error != ""
    sound = " ".join(word for word in case.defines.split() if not word.startswith("BUG_"))
    assert sound != case.defines
    assert check.search(check.right(case.model, case.about, sound), tmp_path).error == ""


def test_an_unexpected_outcome_counts_as_failure() -> None:
    sound = check.Found(error="", states=1, seconds=0.0, complete=True)
    broken = check.Found(error="invalid end state", states=1, seconds=0.0, complete=False)
    cut_short = check.Found(error="", states=1, seconds=0.0, complete=False)
    bug, model = check.BUGS[0], check.RIGHT[0]
    assert [check.verdict(bug, found)[0] for found in (sound, broken)] == [False, True]
    assert [check.verdict(model, found)[0] for found in (sound, broken, cut_short)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("case", check.BUGS, ids=lambda c: f"{c.model}: {c.about}")
def test_every_planted_bug_is_in_its_model(case: check.Check) -> None:
    bugs = [word for word in case.defines.split() if word.startswith("BUG_")]
    assert len(bugs) == 1
    assert bugs[0] in (SCRIPT.parent / f"{case.model}.pml").read_text()
