"""A trace as one page for the browser, which needs nothing else: no network, no other file."""

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
from unisono.tools.trace.lateness import Meeting

__all__ = ["page"]

#: What would end the script element, or begin something else in it.
_UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
_FIELDS = [one.name for one in fields(Record) if one.name not in ("began", "ended")]


def page(trace: Trace, bars: Sequence[Bar], meetings: Sequence[Meeting]) -> str:
    """The text of the page; whatever comes from the trace is data there, and never markup."""
    data = json.dumps(_data(trace, bars, meetings), separators=(",", ":"))
    parts = {
        "title": html.escape(plain(f"unisono trace {trace.job}")),
        "style": _asset("page.css"),
        "data": data.translate(_UNSAFE),
        "draw": _asset("draw.js"),
        "interaction": _asset("interaction.js"),
    }
    # In one go, so that nothing in a part can be taken for a mark.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("unisono.tools.trace") / name).read_text("utf-8")


def _data(trace: Trace, bars: Sequence[Bar], meetings: Sequence[Meeting]) -> dict[str, Any]:
    """Everything the script draws; texts are numbers into one list, for most are the same."""
    texts: dict[str, int] = {}

    def packed(value: str | int | None) -> int | None:
        return texts.setdefault(value, len(texts)) if isinstance(value, str) else value

    rows: list[list[Any]] = [[] for _ in trace.ranks]
    for bar in bars:
        whom = list(bar.missing) if bar.missing else bar.last
        record = [packed(getattr(bar.call, name)) for name in _FIELDS]
        rows[bar.rank].append([bar.begin, bar.length, bar.wait, bar.lane, whom, *record])
    return {
        "job": trace.job,
        "written": trace.written,
        "reason": trace.reason,
        "by": trace.by,
        "fields": ["begin", "length", "wait", "lane", "whom", *_FIELDS],
        "texts": list(texts),
        "textual": ["verb", "dtype", "op", "place", "state"],
        "ranks": [
            {"rank": rank.rank, "pid": rank.pid, "state": rank.state, "calls": rows[rank.rank]}
            for rank in trace.ranks
        ],
        "latest": [
            {"rank": one.last, "group": one.group, "call": one.number, "late": one.late}
            for one in lateness.latest(meetings)
        ],
        "tardy": [
            {"rank": rank, "calls": one.calls, "late": one.late}
            for rank, one in lateness.tardy(meetings)[0].items()
        ],
    }
