"""Write a trace as one HTML page that needs nothing else: no network and no other file."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from typing import Any

from unisono.core.trace import Record
from unisono.tools.formatting import plain
from unisono.tools.trace import lateness
from unisono.tools.trace.bars import Bar
from unisono.tools.trace.file import Trace
from unisono.tools.trace.lateness import CollectiveInstance

__all__ = ["page"]

#: Characters that could end the script element, or begin other markup in it.
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_FIELDS = [one.name for one in fields(Record) if one.name not in ("began", "ended")]


def page(trace: Trace, bars: Sequence[Bar], instances: Sequence[CollectiveInstance]) -> str:
    """Return the text of the page. What comes from the trace is data in it, never markup."""
    data = json.dumps(_data(trace, bars, instances), separators=(",", ":"))
    parts = {
        "title": html.escape(plain(f"unisono trace {trace.job}")),
        "style": _asset("page.css"),
        "data": data.translate(_UNSAFE),
        "draw": _asset("draw.js"),
        "interaction": _asset("interaction.js"),
    }
    # In one pass, so that nothing inside a part is taken for a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("unisono.tools.trace") / name).read_text("utf-8")


def _data(
    trace: Trace, bars: Sequence[Bar], instances: Sequence[CollectiveInstance]
) -> dict[str, Any]:
    """Return what the script draws. Texts are indices into one list, because most repeat."""
    texts: dict[str, int] = {}

    def packed(value: str | int | None) -> int | None:
        return texts.setdefault(value, len(texts)) if isinstance(value, str) else value

    rows: list[list[Any]] = [[] for _ in trace.ranks]
    for bar in bars:
        awaited = list(bar.missing) if bar.missing else bar.last
        record = [packed(getattr(bar.call, name)) for name in _FIELDS]
        rows[bar.rank].append([bar.begin, bar.length, bar.wait, bar.lane, awaited, *record])
    return {
        "job": trace.job,
        "written": trace.written,
        "reason": trace.reason,
        "by": trace.by,
        "fields": ["begin", "length", "wait", "lane", "awaited", *_FIELDS],
        "texts": list(texts),
        "textual": ["verb", "dtype", "op", "call_site", "state"],
        "ranks": [
            {"rank": rank.rank, "pid": rank.pid, "state": rank.state, "calls": rows[rank.rank]}
            for rank in trace.ranks
        ],
        "latest": [
            {"rank": one.last_rank, "group": one.group, "call": one.number, "late": one.late}
            for one in lateness.latest(instances)
        ],
        "lateness": [
            {"rank": rank, "calls": one.calls, "late": one.late}
            for rank, one in lateness.totals(instances)[0].items()
        ],
    }
