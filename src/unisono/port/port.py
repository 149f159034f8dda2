"""Port a program: read its files, decide, and return what each file becomes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from unisono.errors import Unsupported
from unisono.port.decision import decide
from unisono.port.imports.changes import import_changes
from unisono.port.imports.prefix import prefix_changes
from unisono.port.plan import Action, Decision
from unisono.port.program import SourceFile, SourceTree
from unisono.port.rules import Target

__all__ = ["PortedFile", "port_file", "port_source"]


@dataclasses.dataclass(frozen=True)
class PortedFile:
    """What became of one file."""

    path: Path
    before: str
    after: str
    decisions: tuple[Decision, ...]


def port_file(program: SourceTree, file: SourceFile, target: Target) -> PortedFile:
    """Port one file of a program that was resolved."""
    from unisono.port.rewrite import rewrite  # LibCST is needed only here

    if target.dialect == "unisono":
        decisions, changes = prefix_changes(program, file)
    else:
        decisions = decide(program, file, target)
        changes = import_changes(program, file, decisions)
    try:
        after = rewrite(file, decisions, changes)
    except Unsupported as error:
        reason = str(error)
        after, decisions = (
            file.source,
            [
                dataclasses.replace(each, verdict=Action.LEAVE, reason=reason, plan=None)
                for each in decisions
            ],
        )
    return PortedFile(file.path, file.source, after, tuple(decisions))


def port_source(source: str, to: str, roots: tuple[str, ...] = ()) -> str:
    """Port one source text.

    >>> program = "import torch.distributed as dist\\n\\nprint(dist.get_world_size())\\n"
    >>> print(port_source(program, "mindspore"), end="")
    import mindspore.communication as comm
    <BLANKLINE>
    print(comm.get_group_size())
    """
    program = SourceTree(roots)
    file = program.add(Path("program.py"), source)
    program.resolve()
    return port_file(program, file, Target.parse(to)).after
