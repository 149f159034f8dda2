"""Findings as a table for a terminal, and as plain data."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from unisono import mapping
from unisono.port.plan import Action
from unisono.tools.check.findings import Checked, Finding, HangWarning, short
from unisono.tools.formatting import plain, plural
from unisono.tools.table import table, wrap

__all__ = ["as_data", "report"]

_BECOMES = {
    Action.REWRITE: "port rewrites it",
    Action.COPY_BACK: "port rewrites it, with a copy",
    Action.LEAVE: "needs a person",
}


def report(findings: Checked, columns: int) -> list[str]:
    """Lay out the findings by file, then the differences that they mention, and a summary."""
    lines: list[str] = []
    by_path: dict[Path, list[Finding | HangWarning]] = defaultdict(list)
    for finding in findings.found:
        by_path[finding.path].append(finding)
    shown = {finding.warning for finding in findings.found}
    for warning in findings.warnings:
        if warning not in shown:
            by_path[warning.path].append(warning)
    for path in sorted(by_path):
        lines.append(plain(str(path)))
        rows = [
            (str(each.line), short(each.name), _outcome(each))
            for each in sorted(by_path[path], key=lambda each: (each.line, each.column))
        ]
        lines += [*table(rows, columns, align="><<", indent="  "), ""]
    for item in findings.unreadable:
        lines += [f"{plain(str(item.path))}:{item.line}: cannot be read: {item.reason}", ""]
    mentioned = _mentioned(findings)
    if mentioned:
        lines.append("Differences")
        known = mapping.differences()
        for name in mentioned:
            lines.append(f"  {name}")
            lines += [f"    {line}" for line in wrap(known[name].text.en, columns - 4)]
        lines.append("")
    return [*lines, *_summary(findings)]


def _summary(findings: Checked) -> list[str]:
    """Say how much was found."""
    counts = findings.counts
    lines = [
        f"{plural(len(findings.found), 'use')} in {plural(findings.files, 'file')}: "
        f"{counts[Action.REWRITE]} to rewrite, {counts[Action.COPY_BACK]} with a copy back, "
        f"{counts[Action.LEAVE]} for a person"
    ]
    if findings.warnings:
        count = len(findings.warnings)
        lines.append(f"{plural(count, 'collective')} that some ranks may not reach")
    if findings.unreadable:
        lines.append(f"{plural(len(findings.unreadable), 'file')} could not be read")
    return lines


def _outcome(finding: Finding | HangWarning) -> str:
    if isinstance(finding, HangWarning):
        return _hangs(finding)
    decision = finding.decision
    target = f"{short(decision.target)}; " if decision.target else ""
    lines = [f"{target}{_BECOMES[decision.verdict]}: {decision.reason}"]
    if decision.differences:
        lines.append(f"differences: {', '.join(decision.differences)}")
    if finding.warning:
        lines.append(_hangs(finding.warning))
    return "\n".join(lines)


def _hangs(warning: HangWarning) -> str:
    return f"{'hangs' if warning.unreached.certain else 'may hang'}: {warning.text}"


def _mentioned(findings: Checked) -> list[str]:
    names = (name for finding in findings.found for name in finding.decision.differences)
    return sorted(dict.fromkeys(names))


def as_data(findings: Checked) -> dict[str, Any]:
    """Return the findings as data for JSON."""
    known = mapping.differences()
    return {
        "files": findings.files,
        "lines": findings.lines,
        "rewrite": findings.counts[Action.REWRITE],
        "copy_back": findings.counts[Action.COPY_BACK],
        "leave": findings.counts[Action.LEAVE],
        "uses": [
            {
                "file": str(finding.path),
                "line": finding.line,
                "column": finding.column,
                "name": finding.name,
                "target": finding.decision.target,
                "verdict": finding.decision.verdict,
                "reason": finding.decision.reason,
                "differences": list(finding.decision.differences),
                "some_ranks": finding.warning.text if finding.warning else None,
            }
            for finding in findings.found
        ],
        "some_ranks": [_warning_data(warning) for warning in findings.warnings],
        "unreadable": [
            {"file": str(item.path), "line": item.line, "reason": item.reason}
            for item in findings.unreadable
        ],
        "differences": {name: known[name].text.en for name in _mentioned(findings)},
    }


def _warning_data(warning: HangWarning) -> dict[str, Any]:
    made = warning.unreached.collective
    return {
        "file": str(warning.path),
        "line": warning.line,
        "column": warning.column,
        "name": warning.name,
        "reason": warning.unreached.reason,
        "certain": warning.unreached.certain,
        "collective": {
            "name": made.path,
            "file": str(made.file),
            "line": made.line,
            "column": made.column,
        },
        "way": [
            {"function": step.name, "file": str(step.path), "line": step.line} for step in made.way
        ],
    }
