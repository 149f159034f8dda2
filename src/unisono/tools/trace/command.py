"""`unisono trace`: show a failure or a running job: who came late, who waits, and a timeline."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path

from unisono.errors import ArgumentError
from unisono.tools.formatting import plain
from unisono.tools.table import terminal_columns
from unisono.tools.trace import bars, chrome, page, torch_profile
from unisono.tools.trace.findings import examine
from unisono.tools.trace.report import report
from unisono.tools.trace.source import load

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono trace`."""
    parser.description = (
        "Read the trace that unisono writes when a call fails (the error names the file), or the "
        "last calls of a job that runs on this host: who came late, who waits for whom, where "
        "ranks disagree. Writes a timeline as an HTML page, and one for chrome://tracing and "
        "Perfetto."
    )
    parser.epilog = (
        "Exit codes: 0 the trace shows no failure; 1 a call failed, ranks disagreed or a rank was "
        "lost; 2 wrong usage, the file is not a trace, or an output file cannot be written."
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="the file of a trace; or the beginning of a job's name, or the pid of a rank",
    )
    parser.add_argument(
        "--html",
        metavar="OUT",
        type=Path,
        help="the HTML page (default: FILE with suffix .html; unisono-trace-JOB.html)",
    )
    parser.add_argument(
        "--chrome",
        metavar="OUT",
        type=Path,
        help="the file for chrome://tracing and Perfetto (default: FILE with suffix .chrome.json; "
        "unisono-trace-JOB.chrome.json)",
    )
    parser.add_argument(
        "--merge",
        metavar="PROFILE",
        type=Path,
        action="append",
        help="put the events that torch.profiler has exported for a rank into the Chrome trace; "
        "may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Write the timelines and print the findings; return 1 if the trace shows a failure."""
    trace, path = load(arguments.source)
    findings = examine(trace)
    page_path = arguments.html or path.with_suffix(".html")
    chrome_path = arguments.chrome or path.with_suffix(".chrome.json")
    if len({one.resolve() for one in (path, page_path, chrome_path)}) < 3:
        raise ArgumentError("the trace, the page and the Chrome trace must be different files")
    drawn = bars.bars(trace, findings.instances)
    if arguments.merge:
        profiles = [torch_profile.read_profile(one) for one in arguments.merge]
        events = torch_profile.merge(trace, drawn, profiles)
    else:
        events = chrome.chrome(trace, drawn)
    _store(page_path, page.page(findings, drawn))
    _store(chrome_path, json.dumps(events))
    if arguments.json:
        answer = {**findings.as_data(), "html": str(page_path), "chrome": str(chrome_path)}
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join(report(findings, terminal_columns())))
        print(f"\ntimeline: {plain(str(page_path))}")
        print(f"for chrome://tracing or ui.perfetto.dev: {plain(str(chrome_path))}")
    return 1 if findings.failed else 0


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
            f"cannot write {str(path)!r}: {error.strerror}; choose where the timelines go with "
            "--html and --chrome"
        ) from error
