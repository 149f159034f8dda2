"""The examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import unisono

#: These need MindSpore, and have no examples.
LEFT_OUT = "unisono.mindspore.integration."

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(unisono.__path__, "unisono.")
    if not found.name.endswith(("__main__", "_native")) and not found.name.startswith(LEFT_OUT)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    assert sum(doctest.testmod(module).attempted for module in modules) > 10
