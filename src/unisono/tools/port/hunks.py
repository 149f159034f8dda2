"""The places of a file at which something was decided or changed: lines before and after."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence

from unisono.port.plan import Decision
from unisono.port.port import PortedFile

__all__ = ["Hunk", "find_hunks"]


@dataclasses.dataclass(frozen=True)
class Hunk:
    """Lines before and after, the number of the first of each, and the decisions on them."""

    before: list[str]
    after: list[str]
    before_line: int
    after_line: int
    decisions: list[Decision]


def find_hunks(file: PortedFile) -> list[Hunk]:
    """Return the places of a file in order; each decision is in one of them."""
    before, after = _lines(file.before), _lines(file.after)
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    spans = {decision: _span(decision) for decision in file.decisions}
    changed = [(first, last) for tag, first, last, _, _ in blocks if tag != "equal"]
    found = []
    for first, last in _joined([*changed, *spans.values()]):
        new_first, new_last = _after(blocks, first, last)
        inside = [each for each, span in spans.items() if first <= span[0] < max(last, first + 1)]
        inside.sort(key=lambda each: spans[each])
        found.append(
            Hunk(before[first:last], after[new_first:new_last], first + 1, new_first + 1, inside)
        )
    return found


def _lines(text: str) -> list[str]:
    """Split as Python counts lines; `splitlines` also splits at form feeds and others."""
    return re.split(r"\r\n|\r|\n", text)


def _span(decision: Decision) -> tuple[int, int]:
    """The lines of a use, from 0, and the one after them."""
    node = decision.reference.call or decision.reference.node
    return node.lineno - 1, node.end_lineno or node.lineno


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that have a line in common, and an insertion with the line that it precedes."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and (first < joined[-1][1] or first == joined[-1][0]):
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _after(
    blocks: Sequence[tuple[str, int, int, int, int]], first: int, last: int
) -> tuple[int, int]:
    """The lines of the new text that correspond to old ones."""
    covered = []
    for tag, begin, end, new_begin, new_end in blocks:
        if tag == "equal":
            cut = (max(begin, first), min(end, last))
            if cut[0] < cut[1]:
                covered += [new_begin + place - begin for place in cut]
        elif first <= begin and end <= last and (begin < last or first == last):
            covered += [new_begin, new_end]
    return min(covered), max(covered)
