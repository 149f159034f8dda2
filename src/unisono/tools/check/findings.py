"""What `unisono check` has found: each use of a dialect with its decision, and the warnings."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from unisono.port.decision import decide
from unisono.port.plan import Action, Decision
from unisono.port.program import TOO_DEEP, SourceFile, SourceTree, Unreadable
from unisono.port.reach.reach import Reach, Unreached
from unisono.port.rules import Target

__all__ = ["Checked", "Finding", "HangWarning", "find", "short"]


@dataclasses.dataclass(frozen=True)
class HangWarning:
    """A call with a collective that only some ranks may reach: the collective or a way to it."""

    path: Path
    unreached: Unreached
    name: str  # of what is called

    @property
    def line(self) -> int:
        """Return the line of the call."""
        return self.unreached.collective.call.lineno

    @property
    def column(self) -> int:
        """Return the column of the call, counted from 1."""
        return self.unreached.collective.call.col_offset + 1

    @property
    def text(self) -> str:
        """Say who does not reach it, and by which functions it gets to the collective."""
        made = self.unreached.collective
        if not made.way:
            return self.unreached.reason
        way = " -> ".join([*(step.name for step in made.way), short(made.path)])
        return f"{self.unreached.reason}: {way} ({made.file}:{made.line})"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One use of a dialect: where it is, what becomes of it, and who may not reach it."""

    path: Path
    decision: Decision
    warning: HangWarning | None = None

    @property
    def line(self) -> int:
        """Return the line of the use."""
        return self.decision.reference.node.lineno

    @property
    def column(self) -> int:
        """Return the column of the use, counted from 1."""
        return self.decision.reference.node.col_offset + 1

    @property
    def name(self) -> str:
        """Return the upstream name that is used."""
        reference = self.decision.reference
        return f"{reference.path}.{reference.rest}" if reference.rest else reference.path


@dataclasses.dataclass(frozen=True)
class Checked:
    """Everything that was found in a program."""

    files: int
    lines: int
    found: tuple[Finding, ...]
    warnings: tuple[HangWarning, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def counts(self) -> Counter[str]:
        """Count the uses by what becomes of them."""
        return Counter(finding.decision.verdict for finding in self.found)

    @property
    def need_a_person(self) -> bool:
        """Tell whether something cannot be left to `unisono port`."""
        return bool(self.counts[Action.LEAVE] or self.warnings or self.unreadable)


def find(
    program: SourceTree, target: Target | None, progress: Callable[[int, int], None]
) -> Checked:
    """Decide on every use of a dialect in a program, and compare what its ranks reach."""
    found: list[Finding] = []
    warnings: list[HangWarning] = []
    total = 2 * len(program.files)  # all calls are followed first
    reach = Reach(program, lambda done, _: progress(done, total))
    for done, file in enumerate(program.files, len(program.files)):
        progress(done, total)
        here: dict[ast.Call | None, HangWarning] = {
            each.collective.call: HangWarning(file.path, each, _name(each, file))
            for each in reach.unreached(file)
        }
        warnings += here.values()
        try:
            decisions = decide(program, file, target) if file.references else []
        except RecursionError:
            program.unreadable.append(Unreadable(file.path, 1, TOO_DEEP))
            continue
        found += [
            Finding(file.path, decision, here.get(decision.reference.call))
            for decision in decisions
        ]
    progress(total, total)
    lines = sum(file.source.count("\n") for file in program.files)
    unreadable = tuple(program.unreadable)
    return Checked(len(program.files), lines, tuple(found), tuple(warnings), unreadable)


def _name(unreached: Unreached, file: SourceFile) -> str:
    """Return the upstream name of a collective, or the function of the program that is called."""
    function = unreached.collective.call.func
    if function in file.by_node:
        return file.by_node[function].path
    return ast.unparse(function)


def short(name: str) -> str:
    """Return an upstream name as people write it."""
    return name.replace("torch.distributed.", "dist.").replace("mindspore.", "")
