"""Findings as SARIF 2.1.0, which code-review tools show beside the lines of a program."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import unisono
from unisono.port.plan import Action
from unisono.tools.check.findings import Checked, HangWarning

__all__ = ["sarif"]

_RULES = {
    "some-ranks": ("error", "A collective that only some ranks may reach: the others wait for it."),
    "needs-a-person": ("warning", "A call that cannot be moved to the other dialect safely."),
    "copy-back": ("note", "A call whose result is copied back when it is moved."),
    "unreadable": ("error", "A file that cannot be read."),
}


def sarif(findings: Checked) -> dict[str, Any]:
    """Return the findings that a reviewer should see."""
    results = [_warning(warning) for warning in findings.warnings]
    for finding in findings.found:
        place = (finding.path, finding.line, finding.column)
        reason = f"{finding.name}: {finding.decision.reason}"
        if finding.decision.verdict == Action.LEAVE:
            results.append(_result("needs-a-person", reason, *place))
        elif finding.decision.verdict == Action.COPY_BACK:
            results.append(_result("copy-back", reason, *place))
    results += [
        _result("unreadable", item.reason, item.path, item.line, 1) for item in findings.unreadable
    ]
    driver = {
        "name": "unisono check",
        "version": unisono.__version__,
        "rules": [
            {
                "id": name,
                "shortDescription": {"text": text},
                "defaultConfiguration": {"level": level},
            }
            for name, (level, text) in _RULES.items()
        ],
    }
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(rule: str, text: str, path: Path, line: int, column: int) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "level": _RULES[rule][0],
        "message": {"text": text},
        "locations": [_location(path, line, column)],
    }


def _location(path: Path, line: int, column: int) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": urllib.parse.quote(path.as_posix())},
            "region": {"startLine": line, "startColumn": column},
        }
    }


def _warning(warning: HangWarning) -> dict[str, Any]:
    """Return a collective that some ranks may not reach, and the functions on the way to it."""
    made = warning.unreached.collective
    text = f"{warning.name}: {warning.text}"
    found = _result("some-ranks", text, warning.path, warning.line, warning.column)
    if not warning.unreached.certain:
        found["level"] = "warning"
    if made.way:
        places = [(step.name, step.path, step.line, 1) for step in made.way]
        places.append((made.path, made.file, made.line, made.column))
        found["relatedLocations"] = [
            {"id": number, "message": {"text": name}, **_location(path, line, column)}
            for number, (name, path, line, column) in enumerate(places, 1)
        ]
    return found
