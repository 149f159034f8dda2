"""Read a trace file, and believe nothing of it before it is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.trace import FIELDS, Rank, Record
from unisono.errors import ArgumentError

__all__ = ["Trace", "read"]

_VERSION = 1
#: No clock, count or process number is larger, and a picture could not be scaled to one that is.
_LIMIT = 2**64
_TEXTS = {"verb", "dtype", "op", "place", "state"}
_OPTIONAL = {"call", "dtype", "count", "op", "root", "peer", "place", "ended"}


@dataclass(frozen=True)
class Trace:
    """A recorded run. `clock` is the time of writing, by the clock of the records."""

    job: str
    written: str
    clock: int
    by: int
    reason: str
    ranks: tuple[Rank, ...]


def read(path: Path) -> Trace:
    """Read the trace of a job, or say why this is none."""
    if not path.exists():
        raise ArgumentError(f"there is no file {str(path)!r}; errors name the trace of their job")
    if not path.is_file():
        raise ArgumentError(f"{str(path)!r} is not a file; name the trace of a job")
    try:
        page = json.loads(path.read_bytes())
    except OSError as error:
        raise ArgumentError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{str(path)!r} is not a trace, or only a part of one: {error}; "
            "name a file that unisono wrote when a call failed"
        ) from error
    if not isinstance(page, dict) or page.get("unisono") != "trace":
        raise ArgumentError(
            f"{str(path)!r} is JSON, but not a trace of unisono; "
            "name a file that unisono wrote when a call failed"
        )
    if page.get("version") != _VERSION:
        raise ArgumentError(
            f"{str(path)!r} is a trace of version {page.get('version')!r}, and this unisono reads "
            f"version {_VERSION}; use the unisono that wrote it"
        )
    try:
        return _trace(page)
    except _BrokenError as error:
        raise ArgumentError(
            f"{str(path)!r} is a broken trace: {error}; it was changed after unisono wrote it"
        ) from error


class _BrokenError(Exception):
    """What is wrong with the file, and where."""


def _trace(page: dict[str, Any]) -> Trace:
    ranks = _list(page, "ranks", "the file")
    if tuple(_list(page, "fields", "the file")) != FIELDS:
        raise _BrokenError(f"the fields of its calls are not {', '.join(FIELDS)}")
    if len(ranks) != _number(page, "size", "the file") or not ranks:
        raise _BrokenError(f"it has {len(ranks)} ranks, and its size is {page['size']}")
    return Trace(
        _text(page, "job", "the file"),
        _text(page, "written", "the file"),
        _number(page, "clock", "the file"),
        _number(page, "by", "the file"),
        _text(page, "reason", "the file"),
        tuple(_rank(one, place) for place, one in enumerate(ranks)),
    )


def _rank(entry: object, place: int) -> Rank:
    where = f"rank {place}"
    if not isinstance(entry, dict) or _number(entry, "rank", where) != place:
        raise _BrokenError(f"there is no {where} where it should be")
    calls = [
        _call(one, f"call {number} of {where}")
        for number, one in enumerate(_list(entry, "calls", where))
    ]
    return Rank(place, _number(entry, "pid", where), _text(entry, "state", where), calls)


def _call(entry: object, where: str) -> Record:
    if not isinstance(entry, list) or len(entry) != len(FIELDS):
        raise _BrokenError(f"{where} is no list of {len(FIELDS)} fields")
    values = dict(zip(FIELDS, entry, strict=True))
    for name, value in values.items():
        if value is not None or name not in _OPTIONAL:
            (_text if name in _TEXTS else _number)(values, name, where)
    record = Record(**values)
    record.ended = record.ended or None  # 0 means the same: it has not ended
    if record.ended is not None and record.ended < record.began:
        raise _BrokenError(f"{where} ends before it begins")
    return record


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise _BrokenError(f"{name!r} of {where} is no text")
    return value


def _number(entry: dict[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        raise _BrokenError(f"{name!r} of {where} is no whole number that can be")
    return value


def _list(entry: dict[str, Any], name: str, where: str) -> list[Any]:
    value = entry.get(name)
    if not isinstance(value, list):
        raise _BrokenError(f"{name!r} of {where} is no list")
    return value
