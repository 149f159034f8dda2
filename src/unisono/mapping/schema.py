"""The schema of the mapping table: a dataclass field for each key that a file may have."""

from __future__ import annotations

import ast
import dataclasses
import functools
from typing import Any

from unisono.errors import UnisonoError

__all__ = [
    "Argument",
    "Difference",
    "Entry",
    "Fault",
    "LANGUAGES",
    "MappingError",
    "Missing",
    "Name",
    "Outcome",
    "Pair",
    "Parameter",
    "Result",
    "Text",
    "UpstreamCall",
    "arguments",
]

LANGUAGES = ("en", "zh")


class MappingError(UnisonoError):
    """A file of the mapping table breaks the schema."""


def _array(name: str) -> Any:
    return dataclasses.field(default=(), metadata={"key": name})


def _one_of(list_name: str, **default: Any) -> Any:
    return dataclasses.field(**default, metadata={"keys": list_name})


def _some_of(list_name: str) -> Any:
    return dataclasses.field(default=(), metadata={"keys": list_name})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """One statement in both languages."""

    en: str
    zh: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Argument:
    """One parameter of a signature; `default` is its source text, or None without a default."""

    name: str
    default: str | None
    keyword_only: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpstreamCall:
    """One function or class of an upstream framework; `path` is what a program imports.

    `arguments` are those of a primitive's call, after it was built with `signature`. `same_as` is
    the function of comm_func that does the same as a primitive, or as a function of torch that
    returns its result, called with their arguments; tensors correspond as in the pair of torch's
    call with the same name. `fixed` are the values of a primitive's other arguments for which that
    holds; N is the size of the group. `alias_of` is the call of which this is another name: what
    the table says of that one holds for this one. `gradient` is the backward of a call of MindSpore
    that takes tensors, or of a function of torch that returns its result.
    """

    path: str
    signature: str
    style: str = _one_of("style")
    gradient: str | None = _one_of("gradient", default=None)
    arguments: str | None = None
    same_as: str | None = None
    fixed: str | None = None
    alias_of: str | None = None
    since: str | None = None
    deprecated: str | None = None
    successor: str | None = None

    @property
    def dialect(self) -> str:
        """Return "torch" or "mindspore"."""
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        """Return the last word of the path."""
        return self.path.rpartition(".")[2]

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """Return the parameters of the signature."""
        return arguments(self.signature)

    @property
    def call_parameters(self) -> tuple[Argument, ...]:
        """Return the parameters of a primitive's call."""
        return arguments(self.arguments or "()")

    @property
    def fixed_parameters(self) -> tuple[Argument, ...]:
        """Return the parameters for whose default the primitive is the same as a function."""
        return arguments(self.fixed or "()")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One row: a parameter in both dialects, or in only one."""

    role: str = _one_of("role")
    torch: str | None = None
    mindspore: str | None = None
    changes: tuple[str, ...] = _some_of("change")
    difference: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one dialect does: what it returns, where the data is, its shape and its value.

    `data` is the name of a parameter, or `result` for what is returned. Shapes are written with
    N for the size of the group and S, or (d0, ...), for the shape of the input.
    """

    returns: str = _one_of("returns")
    data: str | None = None
    shape: str | None = None
    value: str | None = _one_of("value", default=None)
    error: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome in both dialects, for one kind of rank and one mode of the call."""

    mode: str = _one_of("mode")
    rank: str = _one_of("rank")
    torch: Outcome
    mindspore: Outcome
    difference: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two calls that do the same; None where a dialect has no such call."""

    name: str
    torch: str | None = None
    mindspore: str | None = None
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Result, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One way in which the dialects, or unisono and upstream, differ, and why."""

    id: str
    kind: str = _one_of("kind")
    text: Text
    reason: Text
    pairs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A point where an official page and the software disagree.

    `unisono` is the side that unisono follows; `number` counts the faults of the official pages.
    """

    id: str
    page: Text
    software: Text
    unisono: str = _one_of("side")
    number: int | None = None
    pairs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """An upstream name that the faces do not have, and the nearest one that they have."""

    path: str
    reason: Text
    nearest: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Name:
    """A class or a constant, and the difference that explains it."""

    path: str
    difference: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of the table."""

    name: str
    title: Text
    calls: tuple[UpstreamCall, ...]
    names: tuple[Name, ...] = ()
    pairs: tuple[Pair, ...] = _array("pair")
    pages: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = _array("difference")
    faults: tuple[Fault, ...] = _array("fault")
    missing: tuple[Missing, ...] = _array("missing")


@functools.cache
def arguments(signature: str) -> tuple[Argument, ...]:
    """Parse a signature.

    >>> [argument.name for argument in arguments("(tensor, op='sum')")]
    ['tensor', 'op']
    """
    try:
        function = ast.parse(f"def f{signature}: ...").body[0]
    except SyntaxError:
        raise MappingError(f"{signature!r} is not a signature") from None
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    found = [
        Argument(name=argument.arg, default=ast.unparse(default) if default else None)
        for argument, default in zip(plain, defaults, strict=True)
    ]
    found += [
        Argument(
            name=argument.arg, default=ast.unparse(default) if default else None, keyword_only=True
        )
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return tuple(found)
