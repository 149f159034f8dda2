"""Programs before and after `unisono port`, as text, and by running both on several ranks.

A file in `cases/torch` or `cases/mindspore` is a program as somebody might write it; the folders
inside have what it becomes for each target.
"""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.helpers.thorough import essential

pytest.importorskip("torch")
pytest.importorskip("libcst")

from unisono.port.port import port_source
from unisono.port.rewrite import MARK

#: The programs of old_names.py are warned, as in torch.
pytestmark = pytest.mark.filterwarnings("ignore:.*is a private name:FutureWarning")

CASES = Path(__file__).parent / "cases"
TARGETS = {
    "torch": ["mindspore:comm_func", "mindspore:mint", "mindspore:ops", "unisono"],
    "mindspore": ["torch", "unisono"],
}
#: mint fills only the joined form, and says so when it runs.
REFUSED = {("stacked", "mindspore:mint")}
PAIRS = [
    (path, target)
    for dialect, targets in TARGETS.items()
    for path in sorted((CASES / dialect).glob("*.py"))
    for target in targets
    if (path.stem, target) not in REFUSED
]
NAMES = [f"{path.parent.name}-{path.stem}-{target}" for path, target in PAIRS]
DEADLINE = 60


def expected(path: Path, target: str) -> str:
    return (path.parent / target.replace(":", "_") / path.name).read_text()


@functools.cache  # tests run the same programs again, and LibCST is slow
def compiled(source: str) -> types.CodeType:
    """The program with unisono, which the prefix rule gives it."""
    return compile(port_source(source, "unisono"), "program.py", "exec")


def run(source: str, ranks: int) -> list[Any]:
    """Run a program's main() on ranks that are threads."""
    module = types.ModuleType("program")
    exec(compiled(source), module.__dict__)
    return unisono.spawn(module.main, ranks, timeout=DEADLINE)


@pytest.mark.parametrize(("path", "target"), PAIRS, ids=NAMES)
def test_what_it_becomes(path: Path, target: str) -> None:
    assert port_source(path.read_text(), target) == expected(path, target)


@pytest.mark.parametrize(("path", "target"), PAIRS, ids=NAMES)
def test_a_second_time_changes_nothing(path: Path, target: str) -> None:
    assert port_source(expected(path, target), target) == expected(path, target)


@pytest.mark.parametrize("ranks", essential(1, [2, 4]))
@pytest.mark.parametrize(("path", "target"), PAIRS, ids=NAMES)
def test_it_computes_the_same(path: Path, target: str, ranks: int) -> None:
    before = run(path.read_text(), ranks)
    assert len(before) == ranks and any(before)
    assert run(expected(path, target), ranks) == before


@pytest.mark.parametrize("ranks", essential(1, [2, 4]))
@pytest.mark.parametrize(("path", "target"), PAIRS, ids=NAMES)
def test_there_and_back(path: Path, target: str, ranks: int) -> None:
    if target == "unisono":
        return  # the prefix rule goes one way
    back = port_source(expected(path, target), path.parent.name)
    assert run(back, ranks) == run(path.read_text(), ranks)


def test_a_layer_of_mindspore() -> None:
    """What tests/mindspore/upstream/test_port.py runs, without LibCST, is what this makes."""
    path = CASES / "upstream/layer.py"
    assert port_source(path.read_text(), "mindspore:ops") == expected(path, "mindspore:ops")


def test_marks_are_counted_once() -> None:
    """One comment for each statement that stays, however often it is ported."""
    text = expected(CASES / "torch/left.py", "mindspore:comm_func")
    assert text.count(MARK) == 8
