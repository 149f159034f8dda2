"""The derived pages: nothing of the table is left out, and pictures show what collectives do."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from derived import (
    api_page,
    collective_page,
    errors_page,
    markdown,
    movement,
    picture,
    running,
    texts,
)
from derived.examples import errors as error_examples

from tests.helpers.paths import ROOT, mindspore_python
from unisono import errors, mapping

DEADLINE = 100
DIFFERENCES = [item.id for entry in mapping.load().values() for item in entry.differences]


def function_names(identity: str) -> set[str]:
    names = [running.function_name(identity, dialect) for dialect in running.DIALECTS]
    return {name.partition(".")[2] for name in names}


@pytest.mark.parametrize("name", mapping.load())
def test_every_difference_has_an_example_or_a_reason(name: str) -> None:
    module = running._module(name)
    found = {
        function
        for function, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and not function.startswith("example_")
    }
    own = [identity for identity in DIFFERENCES if identity.startswith(f"{name}.")]
    without = getattr(module, "WITHOUT", {})
    assert {*without, *running.recorded(name)} <= set(own)
    assert set(without.values()) <= set(texts.read()["collectives"])
    wanted = [function_names(identity) for identity in own if identity not in without]
    assert found == set().union(*wanted)


@pytest.mark.parametrize("dialect", running.DIALECTS)
@pytest.mark.parametrize("name", movement.movements())
def test_pictures_show_what_the_collectives_of_both_dialects_give(name: str, dialect: str) -> None:
    shown = running.example(name)
    assert shown is not None
    numbers = [tuple(map(int, re.findall(r"\d+", text))) for text in shown[dialect].outputs]
    assert tuple(numbers) == movement.movements()[name].after


@pytest.mark.parametrize("language", mapping.LANGUAGES)
@pytest.mark.parametrize("name", [*movement.movements(), "barrier"])
def test_pictures_are_well_formed(name: str, language: str) -> None:
    if name == "barrier":
        drawn = picture.draw_barrier(language)
        numbers = 0
    else:
        moved = movement.movements()[name]
        drawn = picture.draw(name, moved, language)
        numbers = sum(map(len, (*moved.before, *moved.after)))
    root = ElementTree.fromstring(drawn)
    assert sum(each.get("class") == "number" for each in root.iter("text")) == numbers
    assert sum(each.get("class") == "rank" for each in root.iter("text")) == running.RANKS


@pytest.mark.parametrize("language", mapping.LANGUAGES)
def test_a_page_has_all_that_the_table_says(language: str) -> None:
    page = collective_page.page("all_reduce", language)
    entry = mapping.load()["all_reduce"]
    for call in entry.calls:
        assert call.path in page
    for fault in entry.faults:
        assert collective_page.inline(getattr(fault.page, language)) in page
    for item in entry.differences:
        assert collective_page.inline(getattr(item.text, language)) in page
    # Two programs with their output for the picture and for each difference.
    assert page.count("```output\n[") == 2 * (1 + len(entry.differences))


def test_an_example_that_fails_or_prints_nothing_is_an_error() -> None:
    def wrong(rank: int) -> None:
        raise KeyError(rank)

    def silent(rank: int) -> None:
        pass

    with pytest.raises(KeyError) as raised:
        running.run(wrong)
    assert any("in the example" in note for note in raised.value.__notes__)
    with pytest.raises(ValueError, match="prints nothing"):
        running.run(silent)


def check_record(python: str, name: str) -> None:
    """Run the examples that need a framework; those of another framework are not looked at."""
    done = subprocess.run(
        [python, ROOT / "docs" / "record_examples.py", "--check"], capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert name in running.RECORD.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_examples_with_torch_print_what_is_stored() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    check_record(sys.executable, "all_reduce.gradient_in_place_torch")


@pytest.mark.thorough
def test_examples_with_mindspore_print_what_is_stored() -> None:
    check_record(mindspore_python(), "all_reduce.gradient_in_place_mindspore")


def test_every_error_is_explained() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.UnisonoError)
    }
    assert set(texts.read()["error"]) == kinds
    page = errors_page.page("en")
    programs = inspect.getmembers(error_examples, inspect.isfunction)
    assert page.count("```output\n") == len(programs) == 7


def test_examples_of_docstrings_become_code() -> None:
    page = api_page.page("unisono", "en")
    assert "```pycon\n>>> from unisono.core import groups\n" in page
    assert not re.search(r"^>>>(?![^`]*```)", page, re.MULTILINE)


@pytest.mark.parametrize("module", [markdown, movement, running, texts])
def test_examples_in_docstrings(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 0


def test_texts_are_in_both_languages() -> None:
    data = texts.read()
    for section in ("picture", "collectives", "api", "errors", "sharp_edges", "modules"):
        for key, text in data[section].items():
            assert set(text) == set(mapping.LANGUAGES), f"{section}.{key}"
    chinese = Path(texts.__file__).with_name("texts.toml").read_text(encoding="utf-8")
    assert not re.search(r'en = "[^"]*[\u4e00-\u9fff]', chinese)


def test_chinese_texts_have_no_english_sentences() -> None:
    """Names of functions are in backticks; three words in a row are no name."""
    told = [errors_page._tree("zh"), *chinese_texts(texts.read())]
    assert len(told) > 50
    for text in told:
        prose = re.sub(r"`[^`]+`", "", text)
        assert not re.search(r"[A-Za-z]+ [A-Za-z]+ [A-Za-z]+", prose), text


def chinese_texts(part: dict[str, Any]) -> Iterator[str]:
    for key, text in part.items():
        if isinstance(text, dict):
            yield from chinese_texts(text)
        elif key == "zh":
            yield from [text] if isinstance(text, str) else text
