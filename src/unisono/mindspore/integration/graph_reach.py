"""Whether a cell of the program calls a collective. Needs MindSpore."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from mindspore import nn
from mindspore.graph._parse.resources import convert_object_map

from unisono.mindspore.ops._primitive import CommunicationPrimitive

__all__ = ["communicates"]


def communicates(cell: nn.Cell) -> bool:
    """Whether this cell, or what it calls, is one of our collectives."""
    return _communicates(cell, set())


def _communicates(thing: Any, seen: set[int]) -> bool:
    """Whether a cell, a function, or what they know, is one of our collectives, or calls one."""
    if isinstance(thing, types.MethodType):
        return _communicates(thing.__self__, seen) or _communicates(thing.__func__, seen)
    if id(thing) in seen:
        return False
    seen.add(id(thing))
    if isinstance(thing, CommunicationPrimitive):
        return True
    if isinstance(thing, type):
        return issubclass(thing, CommunicationPrimitive)
    if isinstance(thing, nn.Cell):
        return any(_communicates(part, seen) for part in _parts_of_cell(thing))
    if isinstance(thing, list | tuple):
        return any(_communicates(part, seen) for part in thing)
    if not isinstance(thing, types.FunctionType):
        return False
    if thing in convert_object_map:
        return (thing.__module__ or "").startswith("unisono.")
    # What MindSpore itself calls is known: its table has its collectives.
    own = not (thing.__module__ or "").startswith("mindspore.")
    return own and any(_communicates(part, seen) for part in _parts_of_function(thing))


def _parts_of_cell(cell: nn.Cell) -> Iterator[Any]:
    yield from vars(cell).values()
    yield from cell.cells()
    for name in dir(type(cell)):
        # The methods of the program's own classes.
        value = inspect.getattr_static(type(cell), name)
        if isinstance(value, types.FunctionType):
            yield value


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    names = set(_names_in(function.__code__))
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    # Of `mindspore.ops.AllReduce`, all three names are in the code.
    known: list[dict[str, Any]] = [function.__globals__]
    for namespace in known:
        for name in names & namespace.keys():
            value = namespace[name]
            yield value
            if isinstance(value, types.ModuleType) and not any(
                vars(value) is other for other in known
            ):
                known.append(vars(value))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
