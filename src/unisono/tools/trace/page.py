"""Write a trace as one HTML page that needs nothing else: no network and no other file."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from unisono.core.trace import Record
from unisono.tools import lateness
from unisono.tools.formatting import plain, rank_list
from unisono.tools.html_page import fill_page, page_part
from unisono.tools.trace.bars import Bar
from unisono.tools.trace.file import Trace
from unisono.tools.trace.findings import Findings

__all__ = ["page"]

_PACKAGE = "unisono.tools.trace"

#: Characters that could end the script element, or begin other markup in it.
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_FIELDS = [one.name for one in fields(Record) if one.name not in ("began", "ended")]


def page(findings: Findings, bars: Sequence[Bar]) -> str:
    """Return the text of the page. What comes from the trace is data in it, never markup."""
    data = json.dumps(_data(findings, bars), separators=(",", ":"))
    scripts = ("timeline.js", "draw.js", "map.js", "pointer.js", "tables.js")
    parts = {
        "title": html.escape(plain(_title(findings.trace))),
        "style": page_part(_PACKAGE, "page.css"),
        "data": data.translate(_UNSAFE),
        "script": "".join(page_part(_PACKAGE, name) for name in scripts),
    }
    return fill_page(_PACKAGE, parts)


def _title(trace: Trace) -> str:
    return f"{trace.script or f'job {trace.job}'}, {_local_time(trace.written)}"


def _local_time(written: str) -> str:
    """Write a time as the clock of this host shows it; the file may hold anything."""
    try:
        return datetime.fromisoformat(written).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return written


def _data(findings: Findings, bars: Sequence[Bar]) -> dict[str, Any]:
    """Return what the script draws. Texts are indices into one list, because most repeat."""
    trace = findings.trace
    texts: dict[str, int] = {}

    def packed(value: str | int | None) -> int | None:
        return texts.setdefault(value, len(texts)) if isinstance(value, str) else value

    rows: list[list[Any]] = [[] for _ in trace.ranks]
    members: dict[int, set[int]] = {}
    for bar in bars:
        awaited = list(bar.missing) if bar.missing else bar.last
        record = [packed(getattr(bar.call, name)) for name in _FIELDS]
        rows[bar.rank].append([bar.begin, bar.length, bar.wait, bar.lane, awaited, *record])
        members.setdefault(bar.call.group, set()).add(bar.rank)
    return {
        "job": trace.job,
        "reason": trace.reason,
        "by": trace.by,
        "fields": ["begin", "length", "wait", "lane", "awaited", *_FIELDS],
        "texts": list(texts),
        "textual": ["verb", "dtype", "op", "call_site", "state"],
        "groups": [
            {"group": group, "ranks": rank_list(ranks)} for group, ranks in sorted(members.items())
        ],
        "ranks": [
            {
                "rank": rank.rank,
                "pid": rank.pid,
                "state": rank.state,
                "calls": rows[rank.rank],
                **asdict(findings.activity[rank.rank]),
            }
            for rank in trace.ranks
        ],
        "latest": [
            {"rank": one.last_rank, "group": one.group, "call": one.number, "late": one.late}
            for one in lateness.latest(findings.instances)
        ],
    }
