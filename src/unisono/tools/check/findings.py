"""What `unisono check` has found: each use of a dialect with its decision, and the warnings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from unisono.port.decision import decide
from unisono.port.plan import Action, Decision
from unisono.port.program import Reference, SourceTree, Unreadable
from unisono.port.reach import unreached
from unisono.port.rules import Target

__all__ = ["Finding", "Checked", "find"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One use of a dialect: where it is, what becomes of it, and who may not reach it."""

    path: Path
    decision: Decision
    warning: str | None

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
    unreadable: tuple[Unreadable, ...]

    @property
    def counts(self) -> Counter[str]:
        """Count the uses by what becomes of them."""
        return Counter(finding.decision.verdict for finding in self.found)

    @property
    def warnings(self) -> int:
        """Count the collectives that only some ranks may reach."""
        return sum(finding.warning is not None for finding in self.found)

    @property
    def need_a_person(self) -> bool:
        """Tell whether something cannot be left to `unisono port`."""
        return bool(self.counts[Action.LEAVE] or self.warnings or self.unreadable)


def find(
    program: SourceTree, target: Target | None, progress: Callable[[int, int], None]
) -> Checked:
    """Decide on every use of a dialect in a program."""
    found: list[Finding] = []
    for done, file in enumerate(program.files):
        progress(done, len(program.files))
        if file.references:
            warnings: dict[Reference, str] = unreached(file)
            found += [
                Finding(file.path, decision, warnings.get(decision.reference))
                for decision in decide(program, file, target)
            ]
    progress(len(program.files), len(program.files))
    lines = sum(file.source.count("\n") for file in program.files)
    return Checked(len(program.files), lines, tuple(found), tuple(program.unreadable))
