"""The prefix rule: `unisono.` in front of an import, and the rest of the file stays as it is."""

from __future__ import annotations

import ast
import importlib.util
from collections import defaultdict

from unisono import mapping
from unisono.port.imports.changes import ImportChanges, Part, bound_names, import_changes
from unisono.port.plan import Action, Decision, Plan
from unisono.port.program import Reference, SourceFile, SourceTree, is_module
from unisono.port.scopes import Binding

__all__ = ["prefix_changes"]

_PREFIX = "unisono."
#: Modules that unisono has; its mindspore.ops hands on what it does not have itself.
_MODULES = (
    "mindspore.communication",
    "mindspore.mint.distributed",
    "mindspore.ops",
    "torch.distributed",
)


def prefix_changes(program: SourceTree, file: SourceFile) -> tuple[list[Decision], ImportChanges]:
    """Decide on all uses in a file, and say how its imports change."""
    by_binding: dict[Binding, list[Reference]] = defaultdict(list)
    for reference in file.references:
        built_elsewhere = reference.building is not None  # its import is that of the building
        if not reference.prefixed and reference.through is None and not built_elsewhere:
            by_binding[reference.binding].append(reference)
    decisions: list[Decision] = []
    prefixed: set[Binding] = set()
    for binding, references in by_binding.items():
        obstacle = next(filter(None, map(_obstacle, references)), None)
        if obstacle is None:
            prefixed |= {each for each in file.imports_of(binding) if _home(program, each)}
        decisions += [_decision(program, reference, obstacle) for reference in references]
    for bindings in file.scopes.top.bindings.values():
        reexported = [each for each in bindings if (file.name, each.name) in program.reexported]
        prefixed |= {each for each in reexported if each.kind == "import" and _home(program, each)}
    present = {
        f"{_PREFIX}{binding.path}": binding.name
        for binding in prefixed
        if file.scopes.parents[binding.node] is file.tree
    }
    changes = import_changes(program, file, decisions, present)
    statements = dict(changes.statements)
    for statement in {binding.node for binding in prefixed}:
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        names = {binding.name for binding in prefixed if binding.node is statement}
        statements[statement] = _prefixed(statement, names)
    return decisions, ImportChanges(statements, changes.names)


def _obstacle(reference: Reference) -> str | None:
    """Return why unisono cannot take the place of upstream for a use."""
    calls = mapping.calls()
    names = {item.path for entry in mapping.load().values() for item in entry.names}
    for entry in mapping.load().values():
        for item in entry.missing:
            if item.path == reference.path:
                return f"unisono has no {reference.path}: {item.reason.en}"
    if reference.path in calls or reference.path in names or is_module(reference.path):
        return None
    return f"unisono has no {reference.path}"


def _home(program: SourceTree, binding: Binding) -> str | None:
    """Return the face module that a binding reads, or None if it reads another module."""
    path = program.follow(binding.path or "")[0]
    if binding.path is None or not binding.path.startswith(("torch.", "mindspore.")):
        return None
    if not any(path == module or path.startswith(f"{module}.") for module in _MODULES):
        return None
    node = binding.node
    module = node.module if isinstance(node, ast.ImportFrom) else binding.path
    try:
        found = importlib.util.find_spec(f"{_PREFIX}{module}")
    except ModuleNotFoundError:
        return None
    return module if found else None


def _decision(program: SourceTree, reference: Reference, obstacle: str | None) -> Decision:
    target = f"{_PREFIX}{reference.path}"
    if obstacle is not None:
        return Decision(reference, Action.LEAVE, obstacle)
    if _home(program, reference.binding):
        return Decision(reference, Action.REWRITE, "its import gets the prefix", target)
    if program.is_third_party(reference.binding.path or ""):
        return Decision(
            reference, Action.LEAVE, "it is a third party's, which imports torch itself"
        )
    if not (reference.binding.path or "").startswith(("torch", "mindspore")):
        reason = "it comes from another file of the program"
        return Decision(reference, Action.REWRITE, reason, target)
    if is_module(reference.path):
        return Decision(
            reference, Action.LEAVE, "the module is used as a value; import it by a name"
        )
    reason = "its module is imported with the prefix"
    return Decision(reference, Action.REWRITE, reason, target, plan=Plan(target))


def _prefixed(statement: ast.Import | ast.ImportFrom, names: set[str]) -> tuple[str | Part, ...]:
    """Divide an import statement: names that get the prefix, and the others."""
    every = bound_names(statement)
    kept = (Part(every - names),) if every - names else ()
    if isinstance(statement, ast.ImportFrom) and "*" in every:  # which may bring other names too
        aliases = [ast.alias(name) for name in sorted(names)]
        return (*kept, ast.unparse(ast.ImportFrom(f"{_PREFIX}{statement.module}", aliases, 0)))
    return (*kept, Part(frozenset(names), _PREFIX))
