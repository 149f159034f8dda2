"""Read a trace file, and check everything in it before it is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.core.trace import FIELDS, RankReport, Record
from unisono.errors import ArgumentError

__all__ = ["Trace", "read"]

_VERSION = 2
#: No clock, count or process number is larger, and the timeline could not be drawn to scale.
_LIMIT = 2**64
_TEXTS = {"verb", "dtype", "op", "call_site", "state"}
_OPTIONAL = {"call", "dtype", "count", "op", "root", "peer", "call_site", "ended"}


@dataclass(frozen=True)
class Trace:
    """A recorded run, or a look at a running one, which no rank wrote for a reason.

    `clock` is when it was written, by the clock that the records use.
    """

    job: str
    script: str
    written: str
    clock: int
    by: int | None
    reason: str
    ranks: tuple[RankReport, ...]


def read(path: Path) -> Trace:
    """Read the trace of a job, or raise an error that says why the file is not one."""
    if not path.exists():
        raise ArgumentError(f"there is no file {str(path)!r}; give the file that an error named")
    if not path.is_file():
        raise ArgumentError(f"{str(path)!r} is not a file; give the file that an error named")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ArgumentError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{str(path)!r} is not a trace, or only part of one: {error}; "
            "give a file that unisono wrote when a call failed"
        ) from error
    if not isinstance(content, dict) or content.get("unisono") != "trace":
        raise ArgumentError(
            f"{str(path)!r} is JSON, but not a trace of unisono; "
            "give a file that unisono wrote when a call failed"
        )
    if content.get("version") != _VERSION:
        raise ArgumentError(
            f"{str(path)!r} is a trace of version {content.get('version')!r}, and this unisono "
            f"reads version {_VERSION}; use the unisono that wrote it"
        )
    try:
        return _trace({"script": "", **content})  # older files do not have it
    except _BrokenError as error:
        raise ArgumentError(
            f"{str(path)!r} is a broken trace: {error}; it was changed after unisono wrote it"
        ) from error


class _BrokenError(Exception):
    """The file is not a valid trace; the text says where it is wrong."""


def _trace(content: dict[str, Any]) -> Trace:
    ranks = _list(content, "ranks", "the file")
    if tuple(_list(content, "fields", "the file")) != FIELDS:
        raise _BrokenError(f"the fields of its calls are not {', '.join(FIELDS)}")
    if len(ranks) != _number(content, "size", "the file") or not ranks:
        raise _BrokenError(f"it has {len(ranks)} ranks, and its size is {content['size']}")
    return Trace(
        _text(content, "job", "the file"),
        _text(content, "script", "the file"),
        _text(content, "written", "the file"),
        _number(content, "clock", "the file"),
        _number(content, "by", "the file"),
        _text(content, "reason", "the file"),
        tuple(_rank(entry, rank) for rank, entry in enumerate(ranks)),
    )


def _rank(entry: object, rank: int) -> RankReport:
    where = f"rank {rank}"
    if not isinstance(entry, dict) or _number(entry, "rank", where) != rank:
        raise _BrokenError(f"there is no {where} at its position in the list")
    calls = [
        _call(one, f"call {number} of {where}")
        for number, one in enumerate(_list(entry, "calls", where))
    ]
    return RankReport(rank, _number(entry, "pid", where), _text(entry, "state", where), calls)


def _call(entry: object, where: str) -> Record:
    if not isinstance(entry, list) or len(entry) != len(FIELDS):
        raise _BrokenError(f"{where} is not a list of {len(FIELDS)} fields")
    values = dict(zip(FIELDS, entry, strict=True))
    for name, value in values.items():
        if value is not None or name not in _OPTIONAL:
            (_text if name in _TEXTS else _number)(values, name, where)
    record = Record(**values)
    record.ended = record.ended or None  # 0 also means that it has not ended
    if record.ended is not None and record.ended < record.began:
        raise _BrokenError(f"{where} ends before it begins")
    return record


def _text(entry: dict[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise _BrokenError(f"{name!r} of {where} is not text")
    return value


def _number(entry: dict[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        raise _BrokenError(f"{name!r} of {where} is not a whole number in range")
    return value


def _list(entry: dict[str, Any], name: str, where: str) -> list[Any]:
    value = entry.get(name)
    if not isinstance(value, list):
        raise _BrokenError(f"{name!r} of {where} is not a list")
    return value
