"""Names of modules that get something else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from unisono.core.patching.names import swap


def module(name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


def theirs() -> None:
    """What is replaced."""


def ours() -> None:
    """What replaces it."""


def test_every_name_of_every_module() -> None:
    first = module("first", one=theirs, two=theirs, other=print)
    second = module("second", three=theirs)
    table = {id(theirs): (theirs, ours)}
    assert swap([first, second, None, "no module"], table) == 3
    assert first.one is first.two is second.three is ours
    assert first.other is print
    assert swap([first, second], table) == 0


def test_our_own_modules_keep_what_they_have() -> None:
    own = module("unisono.somewhere", one=theirs)
    assert swap([own], {id(theirs): (theirs, ours)}) == 0
    assert own.one is theirs
