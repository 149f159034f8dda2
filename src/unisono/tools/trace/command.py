"""`unisono trace`: what a recorded run says: who came late, who waits for whom, and a timeline."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.core.trace import Rank, Record
from unisono.errors import ArgumentError
from unisono.tools.formatting import current, describe, duration, listed, plain, spot
from unisono.tools.table import table, wrap
from unisono.tools.trace import bars, chrome, file, lateness, page
from unisono.tools.trace.file import Trace
from unisono.tools.trace.lateness import Meeting, Tardy

__all__ = ["Findings", "configure", "examine", "main", "show"]

#: How many of the latest calls, ranks and lines people get to see.
_WORST = 5
_WIDEST = 140
_NARROWEST = 60


@dataclasses.dataclass(frozen=True)
class Findings:
    """What a trace shows."""

    trace: Trace
    meetings: Sequence[Meeting]

    @property
    def disagreements(self) -> list[Meeting]:
        """The calls in which ranks called different things."""
        return [meeting for meeting in self.meetings if meeting.disagree]

    @property
    def worst(self) -> list[Meeting]:
        """The calls to which somebody came latest."""
        return lateness.latest(self.meetings, _WORST)

    @property
    def failed(self) -> bool:
        """Tell whether a call failed, ranks disagreed, or a rank ended without leaving."""
        calls = (call for rank in self.trace.ranks for call in rank.calls)
        return (
            any(rank.state not in ("running", "left", "starting") for rank in self.trace.ranks)
            or any(call.state not in ("running", "done") for call in calls)
            or bool(self.disagreements)
        )

    def waits_for(self, rank: Rank) -> tuple[int, ...]:
        """The ranks that have not come to the call in which this one is."""
        call = current(rank.calls)
        for meeting in self.meetings:
            if call is not None and (meeting.group, meeting.number) == (call.group, call.call):
                return meeting.missing
        return ()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono trace`."""
    parser.description = (
        "Read the trace that unisono writes when a call fails (the error names the file): who came "
        "late, who waits for whom, where ranks disagree. Writes a timeline as an HTML page, and "
        "one for chrome://tracing and Perfetto."
    )
    parser.epilog = (
        "Exit codes: 0 the trace shows no failure, 1 a call failed, ranks disagreed or a rank was "
        "lost, 2 wrong usage, or a file that is no trace or cannot be written."
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the trace")
    parser.add_argument(
        "--html", metavar="OUT", type=Path, help="the page (default: FILE with .html at its end)"
    )
    parser.add_argument(
        "--chrome",
        metavar="OUT",
        type=Path,
        help="for chrome://tracing and Perfetto (default: FILE with .chrome.json at its end)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Write the timelines and print the findings; return 1 if the trace shows a failure."""
    findings = examine(arguments.file)
    page_path = arguments.html or arguments.file.with_suffix(".html")
    chrome_path = arguments.chrome or arguments.file.with_suffix(".chrome.json")
    if len({path.resolve() for path in (arguments.file, page_path, chrome_path)}) < 3:
        raise ArgumentError("the trace, the page and the Chrome trace must be different files")
    drawn = bars.bars(findings.trace, findings.meetings)
    _store(page_path, page.page(findings.trace, drawn, findings.meetings))
    _store(chrome_path, json.dumps(chrome.chrome(findings.trace, drawn)))
    if arguments.json:
        answer = {**_plain_data(findings), "html": str(page_path), "chrome": str(chrome_path)}
        print(json.dumps(answer, indent=2))
    else:
        columns = min(max(shutil.get_terminal_size((100, 24)).columns, _NARROWEST), _WIDEST)
        for line in show(findings, columns):
            print(line)
        print(f"\ntimeline: {plain(str(page_path))}")
        print(f"for chrome://tracing or ui.perfetto.dev: {plain(str(chrome_path))}")
    return 1 if findings.failed else 0


def examine(path: Path) -> Findings:
    """Read a trace and put the calls of its ranks side by side."""
    trace = file.read(path)
    return Findings(trace, lateness.meetings(trace.ranks))


def _store(path: Path, text: str) -> None:
    """Write a file that only its owner can read, as the trace itself; all of it or nothing."""
    draft = None
    try:
        handle, draft = tempfile.mkstemp(prefix=".unisono-trace-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).replace(path)
    except OSError as error:
        if draft is not None:
            with contextlib.suppress(OSError):
                Path(draft).unlink()
        raise ArgumentError(
            f"cannot write {str(path)!r}: {error.strerror}; choose with --html and --chrome where "
            "the timelines go"
        ) from error


# ---- for people ----------------------------------------------------------------------------------


def show(findings: Findings, columns: int) -> Iterator[str]:
    """The findings as lines of a terminal."""
    trace = findings.trace
    yield f"job {plain(trace.job)}, {len(trace.ranks)} ranks, written {plain(trace.written)}"
    for number, line in enumerate(trace.reason.splitlines()):
        said = f"rank {trace.by}: " if number == 0 else ""
        yield from wrap(said + plain(line), columns)
    yield from _section("ranks", _rank_rows(findings), columns)
    by_rank, by_place = lateness.tardy(findings.meetings)
    yield from _section("came last, by rank", _tardy_rows("rank", by_rank), columns)
    yield from _section("came last, by line", _tardy_rows("line", by_place), columns)
    yield from _section("the latest", _worst_rows(findings.worst), columns)
    for meeting in findings.disagreements[-_WORST:]:
        title = f"ranks disagree in call {meeting.number} of group {meeting.group}"
        yield from _section(title, _side_rows(meeting), columns)


def _section(title: str, rows: Sequence[Sequence[str]], columns: int) -> Iterator[str]:
    if len(rows) > 1:
        yield from ("", title)
        yield from table(rows, columns)


def _rank_rows(findings: Findings) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("rank", "pid", "state", "call", "number", "at", "time", "waits for")
    ]
    for rank in findings.trace.ranks:
        call = current(rank.calls)
        words = ("none", "", "", "")
        if call is not None:
            time = _time(call, findings.trace.clock)
            words = (describe(call), _number(call), spot(call.place), time)
        missing = listed(findings.waits_for(rank))
        rows.append((str(rank.rank), str(rank.pid), plain(rank.state), *words, missing))
    return rows


def _number(call: Record) -> str:
    """The number of a call in its group, where that is not the world."""
    group = "" if call.group == 0 else f" in group {call.group}"
    return "" if call.call is None else f"{call.call}{group}"


def _time(call: Record, clock: int) -> str:
    if call.ended is None:
        return f"for {duration(max(clock - call.began, 0))}"
    if call.state == "done":
        return f"ended {duration(max(clock - call.ended, 0))} before"
    return f"{plain(call.state)} after {duration(call.ended - call.began)}"


def _tardy_rows(what: str, late: Mapping[Any, Tardy]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [(what, "calls", "late in all", "at most")]
    for name, one in list(late.items())[:_WORST]:
        rows.append((spot(str(name)), str(one.calls), duration(one.late), duration(one.worst)))
    return rows


def _worst_rows(worst: Sequence[Meeting]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("call", "number", "last", "after median", "after first", "at")]
    for meeting in worst:
        call = meeting.calls[meeting.last]
        rows.append(
            (
                describe(call),
                _number(call),
                f"rank {meeting.last}",
                duration(meeting.late),
                duration(meeting.arrived - meeting.first),
                spot(call.place),
            )
        )
    return rows


def _side_rows(meeting: Meeting) -> list[Sequence[str]]:
    sides: dict[tuple[str, str], list[int]] = {}
    for rank, call in meeting.calls.items():
        sides.setdefault((describe(call), spot(call.place)), []).append(rank)
    rows: list[Sequence[str]] = [("ranks", "call", "at")]
    return rows + [(listed(ranks), *side) for side, ranks in sides.items()]


# ---- for programs --------------------------------------------------------------------------------


def _plain_data(findings: Findings) -> dict[str, Any]:
    trace = findings.trace
    by_rank, by_place = lateness.tardy(findings.meetings)
    return {
        "job": trace.job,
        "written": trace.written,
        "by": trace.by,
        "reason": trace.reason,
        "failed": findings.failed,
        "ranks": [_rank_data(findings, rank) for rank in trace.ranks],
        "late_by_rank": [
            {"rank": rank, **dataclasses.asdict(one)} for rank, one in by_rank.items()
        ],
        "late_by_line": [
            {"place": place, **dataclasses.asdict(one)} for place, one in by_place.items()
        ],
        "latest": [
            {
                **_call_data(meeting.calls[meeting.last]),
                "last": meeting.last,
                "late": meeting.late,
                "after_first": meeting.arrived - meeting.first,
            }
            for meeting in findings.worst
        ],
        "disagreements": [
            {
                "group": meeting.group,
                "call": meeting.number,
                "ranks": {rank: _call_data(call) for rank, call in meeting.calls.items()},
            }
            for meeting in findings.disagreements
        ],
    }


def _rank_data(findings: Findings, rank: Rank) -> dict[str, Any]:
    call = current(rank.calls)
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "state": rank.state,
        "call": None if call is None else _call_data(call),
        "waits_for": list(findings.waits_for(rank)),
    }


def _call_data(call: Record) -> dict[str, Any]:
    return dataclasses.asdict(call)
