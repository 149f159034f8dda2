"""The mapping table: how each call of one dialect corresponds to the other, as checked data.

There is one file for each collective, and `groups.toml` for start-up, ranks and groups. The
dataclasses of `schema.py` are the schema: an unknown key, a missing key, a value that is not in
`vocabulary.toml` and a text without its translation are all refused.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from unisono.mapping.schema import (
    LANGUAGES,
    Argument,
    Difference,
    Entry,
    Fault,
    MappingError,
    Missing,
    Name,
    Outcome,
    Pair,
    Parameter,
    Result,
    Text,
    UpstreamCall,
    arguments,
)

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
    "calls",
    "check_references",
    "differences",
    "face_path",
    "gradients",
    "load",
    "parse",
    "same_function",
    "vocabulary",
]

# ---- reading -------------------------------------------------------------------------------------


@functools.cache
def vocabulary() -> Mapping[str, Mapping[str, Any]]:
    """Read the closed lists of keys."""
    return types.MappingProxyType(_read("vocabulary.toml"))


@functools.cache
def load() -> Mapping[str, Entry]:
    """Read and check the whole table: entries by file name without suffix."""
    files = sorted(
        item.name for item in resources.files(__name__).iterdir() if item.name.endswith(".toml")
    )
    entries = {
        name.removesuffix(".toml"): parse(name.removesuffix(".toml"), _read(name))
        for name in files
        if name != "vocabulary.toml"
    }
    check_references(entries)
    return types.MappingProxyType(entries)


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))


def parse(name: str, data: Mapping[str, Any]) -> Entry:
    """Turn one file into an entry, or raise a MappingError that says where it is wrong."""
    entry: Entry = _build(Entry, data, name)
    if entry.name != name:
        raise MappingError(f"{name}: the entry has the name {entry.name!r}")
    _check_entry(entry)
    return entry


def _build(kind: Any, data: object, where: str) -> Any:
    """Build one dataclass from one table; the fields are the schema."""
    if not isinstance(data, Mapping):
        raise MappingError(f"{where}: expected a table, found {data!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.metadata.get("key", field.name): field for field in dataclasses.fields(kind)}
    if unknown := sorted(set(data) - set(fields)):
        raise MappingError(f"{where}: unknown key {unknown[0]!r}")
    values = {}
    for key, field in fields.items():
        if key not in data:
            if field.default is dataclasses.MISSING:
                raise MappingError(f"{where}: {key!r} is missing")
            continue
        value = _convert(hints[field.name], data[key], f"{where}.{key}")
        if "keys" in field.metadata:
            _check_keys(field.metadata["keys"], value, f"{where}.{key}")
        values[field.name] = value
    return kind(**values)


def _convert(hint: Any, value: object, where: str) -> Any:
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    if isinstance(hint, types.UnionType):  # every union here is "X or None"
        return _convert(choices[0], value, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise MappingError(f"{where}: expected an array, found {value!r}")
        return tuple(
            _convert(choices[0], item, f"{where}[{index}]") for index, item in enumerate(value)
        )
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    if type(value) is not hint:
        raise MappingError(f"{where}: expected {hint.__name__}, found {value!r}")
    if isinstance(value, str) and not value.strip():
        raise MappingError(f"{where}: the text is empty")
    return value


def _check_keys(list_name: str, value: Any, where: str) -> None:
    for key in (value,) if isinstance(value, str) else value:
        if key not in vocabulary()[list_name]:
            known = ", ".join(vocabulary()[list_name])
            raise MappingError(f"{where}: {key!r} is not in the list {list_name!r}; it has {known}")


# ---- checks across fields ------------------------------------------------------------------------


def _texts(value: object, where: str) -> Iterator[tuple[str, Text]]:
    """Yield every text inside a value, with its path."""
    if isinstance(value, Text):
        yield where, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}[{index}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name), f"{where}.{field.name}")


def _is_chinese(text: str) -> bool:
    return any("\u4e00" <= character <= "\u9fff" for character in text)


def _check_entry(entry: Entry) -> None:
    for where, text in _texts(entry, entry.name):
        if _is_chinese(text.en):
            raise MappingError(f"{where}.en: this is Chinese")
        if not _is_chinese(text.zh):
            raise MappingError(f"{where}.zh: this is not Chinese")
    known = {call.path: call for call in entry.calls}
    if len(known) != len(entry.calls):
        raise MappingError(f"{entry.name}: a call is listed twice")
    for call in entry.calls:
        _check_call(call, f"{entry.name}: {call.path}")
        if call.same_as or call.fixed:
            _check_same(call, known, f"{entry.name}: {call.path}")
        if call.alias_of:
            _check_alias(call, known, f"{entry.name}: {call.path}")
    for pair in entry.pairs:
        for dialect in ("torch", "mindspore"):
            path = getattr(pair, dialect)
            if path is None:
                if any(getattr(row, dialect) is not None for row in pair.parameters):
                    raise MappingError(f"{entry.name}: {pair.name} has no call in {dialect}")
                continue
            if path not in known or known[path].dialect != dialect:
                raise MappingError(
                    f"{entry.name}: {pair.name}: {path!r} is not a {dialect} call of this file"
                )
            _check_parameters(pair, dialect, known[path], f"{entry.name}: {pair.name}")
    names = [pair.name for pair in entry.pairs]
    if len(set(names)) != len(names):
        raise MappingError(f"{entry.name}: a pair is listed twice")
    items: list[Difference | Fault] = [*entry.differences, *entry.faults]
    for item in items:
        if not item.id.startswith(f"{entry.name}."):
            raise MappingError(f"{entry.name}: id {item.id!r} must begin with {entry.name!r}")
        if unknown := set(item.pairs) - set(names):
            raise MappingError(f"{item.id}: unknown pair {sorted(unknown)[0]!r}")


def _check_call(call: UpstreamCall, where: str) -> None:
    if call.dialect not in vocabulary()["versions"]:
        raise MappingError(f"{where}: a path begins with torch or mindspore")
    for version in filter(None, (call.since, call.deprecated)):
        if version not in vocabulary()["versions"][call.dialect]:
            raise MappingError(f"{where}: unknown version {version!r} of {call.dialect}")
    if call.deprecated and not call.successor:
        raise MappingError(f"{where}: deprecated, but without a successor")
    if call.gradient and call.dialect != "mindspore" and call.style != "functional":
        raise MappingError(
            f"{where}: 'gradient' belongs to calls of MindSpore and to functions of torch"
        )
    arguments(call.signature)
    if (call.arguments is None) == (call.style == "built"):
        raise MappingError(f"{where}: 'arguments' belongs to the style 'built', and only to it")
    if call.arguments:
        arguments(call.arguments)


def _check_same(call: UpstreamCall, known: Mapping[str, UpstreamCall], where: str) -> None:
    """Check that a call is compared with a function of its file, and with its own names."""
    if not call.same_as or call.style not in ("built", "functional"):
        raise MappingError(f"{where}: 'same_as' and 'fixed' belong to primitives and functions")
    _, given = _function(call.same_as, known, where)
    names = {argument.name for argument in (*call.parameters, *call.call_parameters)}
    fixed = {argument.name for argument in call.fixed_parameters}
    plain = {value.id for value in given.values() if isinstance(value, ast.Name)}
    if unknown := sorted((plain | fixed) - names):
        raise MappingError(f"{where}: {call.name} has no parameter {unknown[0]!r}")


def _check_alias(call: UpstreamCall, known: Mapping[str, UpstreamCall], where: str) -> None:
    """Check that a name is another one of a call that has a name of its own and is the same."""
    other = known.get(call.alias_of or "")
    if other is None or other.alias_of:
        raise MappingError(f"{where}: {call.alias_of!r} is not a call of this file, or an alias")
    if (other.dialect, other.style, other.signature) != (call.dialect, call.style, call.signature):
        raise MappingError(f"{where}: it is not the same as {other.path}")


def _function(
    text: str, known: Mapping[str, UpstreamCall], where: str
) -> tuple[str, dict[str, ast.expr]]:
    """Read a call of comm_func: its path, and its arguments by parameter."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        node = ast.Constant(None)
    if not isinstance(node, ast.Call):
        raise MappingError(f"{where}: {text!r} is not a call")
    path = f"mindspore.communication.{ast.unparse(node.func)}"
    if path not in known:
        raise MappingError(f"{where}: {path!r} is not a call of this file")
    names = [argument.name for argument in known[path].parameters]
    given = dict(zip(names, node.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in node.keywords if keyword.arg})
    return path, given


def _check_parameters(pair: Pair, dialect: str, call: UpstreamCall, where: str) -> None:
    """Check that every parameter of a signature has exactly one row."""
    rows = [name for row in pair.parameters if (name := getattr(row, dialect)) is not None]
    expected = [argument.name for argument in call.parameters]
    if sorted(rows) != sorted(expected):
        raise MappingError(f"{where}: rows for {rows}, but {call.path} takes {expected}")
    for row in pair.parameters:
        if row.torch is None and row.mindspore is None:
            raise MappingError(f"{where}: a row names no parameter")


def check_references(entries: Mapping[str, Entry]) -> None:
    """Check references between files: ids are unique, and every reference exists."""
    ids = [item.id for entry in entries.values() for item in entry.differences]
    ids += [item.id for entry in entries.values() for item in entry.faults]
    paths = [call.path for entry in entries.values() for call in entry.calls]
    paths += [name.path for entry in entries.values() for name in entry.names]
    for what, names in (("id", ids), ("call", paths)):
        if twice := {name for name in names if names.count(name) > 1}:
            raise MappingError(f"{what} {sorted(twice)[0]!r} is listed twice")
    for entry in entries.values():
        rows: list[Name | Parameter | Result] = [*entry.names]
        rows += [row for pair in entry.pairs for row in pair.parameters]
        rows += [row for pair in entry.pairs for row in pair.results]
        for row in rows:
            if row.difference is not None and row.difference not in ids:
                raise MappingError(f"{entry.name}: there is no difference {row.difference!r}")
        wanted = [call.successor for call in entry.calls]
        wanted += [missing.nearest for missing in entry.missing]
        for path in filter(None, wanted):
            if path not in paths and not path.startswith("unisono."):
                raise MappingError(f"{entry.name}: there is no call {path!r}")


# ---- queries -------------------------------------------------------------------------------------


def calls() -> dict[str, UpstreamCall]:
    """Return every call of the table by its path."""
    return {call.path: call for entry in load().values() for call in entry.calls}


def differences() -> dict[str, Difference]:
    """Return every difference of the table by its id."""
    return {item.id: item for entry in load().values() for item in entry.differences}


def gradients() -> dict[str, list[UpstreamCall]]:
    """Return the calls of MindSpore that have a gradient, by the key of their backward.

    >>> [call.name for call in gradients()["from_root"]]
    ['reduce', 'Reduce']
    """
    found: dict[str, list[UpstreamCall]] = {}
    for key in vocabulary()["gradient"]:
        those = [call for call in calls().values() if call.gradient == key]
        if kept := [call for call in those if call.dialect == "mindspore"]:
            found[key] = kept
    return found


@functools.cache
def same_function(call: UpstreamCall) -> tuple[UpstreamCall, dict[str, ast.expr]] | None:
    """Return the function of comm_func that does what a call does, and its arguments.

    >>> function, given = same_function(calls()["mindspore.ops.Broadcast"])
    >>> function.name, {name: ast.unparse(value) for name, value in given.items()}
    ('broadcast', {'tensor': 'input_x', 'src': 'root_rank', 'group': 'group'})
    """
    if call.same_as is None:
        return None
    known = calls()
    path, given = _function(call.same_as, known, call.path)
    return known[path], given


def face_path(path: str) -> str:
    """Return the name under which unisono offers an upstream name."""
    return f"unisono.{path}"
