"""The findings of `unisono trace` as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unisono.core.trace import Record
from unisono.tools import lateness
from unisono.tools.calls import age_text, call_site, call_text, current_call, seconds_since
from unisono.tools.formatting import NANOSECOND, duration, plain, plural, rank_list
from unisono.tools.lateness import CollectiveInstance, Lateness
from unisono.tools.table import table, wrap
from unisono.tools.trace.findings import Findings

__all__ = ["report"]

#: How many ranks, lines and disagreements are shown: the worst, or the last.
_SHOWN = 5

_Rows = list[Sequence[str]]


def report(findings: Findings, columns: int) -> Iterator[str]:
    """Yield the lines, none of them wider than `columns`."""
    trace = findings.trace
    script = f", {plain(trace.script)}" if trace.script else ""
    size = plural(len(trace.ranks), "rank")
    when = f"{'seen' if trace.by is None else 'written'} {plain(trace.written)}"
    yield from wrap(f"job {plain(trace.job)}{script}, {size}, {when}", columns)
    for number, line in enumerate(trace.reason.splitlines()):
        prefix = f"rank {trace.by}: " if number == 0 else ""
        yield from wrap(prefix + plain(line), columns)
    yield from _section("ranks", _rank_rows(findings), columns)
    by_rank, by_line = lateness.totals(findings.instances)
    yield from _section("came last, by rank", _lateness_rows("rank", by_rank), columns)
    yield from _section("came last, by line", _lateness_rows("line", by_line), columns)
    latest = lateness.latest(findings.instances)
    yield from _section("largest lateness", _latest_rows(latest), columns)
    for instance in findings.disagreements[-_SHOWN:]:
        title = f"ranks disagree in call {instance.number} of group {instance.group}"
        yield from _section(title, _disagreement_rows(instance), columns)


def _section(title: str, rows: _Rows, columns: int) -> Iterator[str]:
    if len(rows) > 1:  # the first row is the header
        yield from ("", title)
        yield from table(rows, columns, indent="  ")


def _rank_rows(findings: Findings) -> _Rows:
    titles = ("rank", "pid", "state", "waiting", "call", "number", "at", "time", "waits for")
    rows: _Rows = [titles]
    for rank in findings.trace.ranks:
        call = current_call(rank.calls)
        cells = ("none", "", "", "")
        if call is not None:
            age = age_text(call, seconds_since(call, findings.trace.clock))
            cells = (call_text(call), _call_number(call), call_site(call.call_site), age)
        missing = rank_list(findings.waits_for(rank))
        share = f"{findings.activity[rank.rank].waiting:.0%}"
        rows.append((str(rank.rank), str(rank.pid), plain(rank.state), share, *cells, missing))
    return rows


def _call_number(call: Record) -> str:
    """Write the number of a call, and its group unless that is the world."""
    group = "" if call.group == 0 else f" in group {call.group}"
    return "" if call.call is None else f"{call.call}{group}"


def _lateness_rows(what: str, late: Mapping[Any, Lateness]) -> _Rows:
    rows: _Rows = [(what, "calls", "late in total", "at most")]
    for name, one in list(late.items())[:_SHOWN]:
        total, worst = duration(one.late * NANOSECOND), duration(one.worst * NANOSECOND)
        rows.append((call_site(str(name)), str(one.calls), total, worst))
    return rows


def _latest_rows(latest: Sequence[CollectiveInstance]) -> _Rows:
    rows: _Rows = [("call", "number", "last", "after median", "after first", "at")]
    for instance in latest:
        call = instance.calls[instance.last_rank]
        rows.append(
            (
                call_text(call),
                _call_number(call),
                f"rank {instance.last_rank}",
                duration(instance.late * NANOSECOND),
                duration((instance.last_arrival - instance.first_arrival) * NANOSECOND),
                call_site(call.call_site),
            )
        )
    return rows


def _disagreement_rows(instance: CollectiveInstance) -> _Rows:
    sides: dict[tuple[str, str], list[int]] = {}
    for rank, call in instance.calls.items():
        sides.setdefault((call_text(call), call_site(call.call_site)), []).append(rank)
    rows: _Rows = [("ranks", "call", "at")]
    return rows + [(rank_list(ranks), *side) for side, ranks in sides.items()]
