"""Findings as SARIF 2.1.0, which code-review tools show beside the lines of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import unisono
from unisono.port.plan import Action
from unisono.tools.check.findings import Checked

__all__ = ["sarif"]

_RULES = {
    "some-ranks": ("error", "A collective that only some ranks may reach: the others wait for it."),
    "needs-a-person": ("warning", "A call that cannot be moved to the other dialect safely."),
    "copy-back": ("note", "A call whose result is copied back when it is moved."),
    "unreadable": ("error", "A file that cannot be read."),
}


def sarif(findings: Checked) -> dict[str, Any]:
    """Return the findings that a reviewer should see."""
    results = []
    for finding in findings.found:
        place = (finding.path, finding.line, finding.column)
        reason = f"{finding.name}: {finding.decision.reason}"
        if finding.warning:
            results.append(_result("some-ranks", f"{finding.name}: {finding.warning}", *place))
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
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": path.as_posix()},
                    "region": {"startLine": line, "startColumn": column},
                }
            }
        ],
    }
