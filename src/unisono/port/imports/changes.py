"""Which imports a changed file needs, under which names, and which it does not need any more."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from unisono.port.plan import Decision, Plan
from unisono.port.program import Reference, SourceFile, SourceTree
from unisono.port.scopes import Binding, Scopes, block_of

__all__ = ["ImportChanges", "Part", "bound_names", "import_changes", "modules_in"]

_PLACEHOLDER = re.compile("«([^»]+)»")
#: The name that a file gives to a module, unless the name is taken.
_LOCAL_NAMES = {
    "mindspore.communication": "comm",
    "mindspore.communication.comm_func": "comm_func",
    "mindspore.mint.distributed": "dist",
    "mindspore.ops": "ops",
    "torch.distributed": "dist",
}


@dataclasses.dataclass(frozen=True)
class Part:
    """An import statement with some of the names that it binds, and a prefix before its module."""

    names: frozenset[str]
    prefix: str = ""


@dataclasses.dataclass(frozen=True)
class ImportChanges:
    """The new statements in place of import statements, and the local name of each module."""

    statements: dict[ast.stmt, tuple[str | Part, ...]]
    names: dict[str, str]

    def fill(self, text: str) -> str:
        """Put local names in place of modules."""
        return _PLACEHOLDER.sub(lambda found: self.names[found[1]], text)


def modules_in(plan: Plan) -> Iterator[str]:
    """Yield the modules that a change needs."""
    if plan.function:
        yield plan.function.rpartition(".")[0]
    for text in plan.texts:
        yield from _PLACEHOLDER.findall(text)


def import_changes(
    program: SourceTree,
    file: SourceFile,
    decisions: Iterable[Decision],
    present_names: Mapping[str, str] | None = None,
) -> ImportChanges:
    """Say how the imports of a file change when decisions are carried out.

    `present_names` are modules that the file imports already, with their names.
    """
    done = [decision for decision in decisions if decision.plan is not None]
    moved = [*(each.reference for each in done), *(ref for each in done for ref in each.consumed)]
    dropped = _unused(program, file, moved)
    names = dict(present_names or {})
    present: set[tuple[int, str]] = set()  # blocks, and modules that they import
    added: dict[ast.stmt, list[str]] = {}
    for decision in done:
        assert decision.plan is not None
        statements_here = [each.node for each in file.imports_of(decision.reference.binding)]
        for module in dict.fromkeys(modules_in(decision.plan)):
            if module not in names:
                names[module] = _existing(file, module, dropped) or _choose(file, module, dropped)
            if module in (present_names or {}) or _existing(file, module, dropped):
                continue
            for statement in statements_here:
                assert isinstance(statement, ast.stmt)
                blocks = _blocks_around(statement, file.scopes)
                if not any((block, module) in present for block in blocks):
                    present.add((blocks[0], module))
                    added.setdefault(statement, []).append(_import(module, names[module]))
    statements: dict[ast.stmt, tuple[str | Part, ...]] = {}
    for statement in {*added, *(binding.node for binding in dropped)}:
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        gone = {binding.name for binding in dropped if binding.node is statement}
        kept = bound_names(statement) - gone
        lines: list[str | Part] = [Part(kept)] if kept else []
        lines += added.get(statement, [])
        if not lines and len(block_of(statement, file.scopes)) == 1:
            lines = ["pass"]
        statements[statement] = tuple(lines)
    return ImportChanges(statements, names)


def _blocks_around(statement: ast.stmt, scopes: Scopes) -> list[int]:
    """Return the identities of the blocks that a statement stands in, from the inside out."""
    chain = scopes.chain(statement)
    return [id(block_of(each, scopes)) for each in chain if isinstance(each, ast.stmt)]


def bound_names(statement: ast.Import | ast.ImportFrom) -> frozenset[str]:
    """Return the names that an import statement binds."""
    return frozenset(
        alias.asname
        or (alias.name.partition(".")[0] if isinstance(statement, ast.Import) else alias.name)
        for alias in statement.names
    )


def _unused(program: SourceTree, file: SourceFile, moved: list[Reference]) -> set[Binding]:
    """Return the imports that nothing needs any more."""
    roots: set[ast.AST] = set()
    for reference in moved:
        node: ast.AST = reference.node
        while isinstance(node, ast.Attribute):
            node = node.value
        roots.add(node)
    exported = {node.value for node in ast.walk(file.tree) if isinstance(node, ast.Constant)}
    found = set()
    for binding in {reference.binding for reference in moved}:
        scope = file.scopes.scope_of[binding.node]
        remaining = [
            name
            for name in scope.uses[binding.name]
            if name not in roots and isinstance(name.ctx, ast.Load)
        ]
        passed_on = (file.name, binding.name) in program.passed_on or binding.name in exported
        # A name that another statement binds too, such as `dist = None`, must keep its place.
        needed = remaining or passed_on or len(scope.bindings.get(binding.name, ())) > 1
        if not needed and file.path.name != "__init__.py":
            found.add(binding)
    return found


def _existing(file: SourceFile, module: str, dropped: set[Binding]) -> str | None:
    """Return the name under which the file has a module already, at its top."""
    for name, bindings in file.scopes.top.bindings.items():
        binding = bindings[0]
        stays = len(bindings) == 1 and binding.path == module and binding not in dropped
        if stays and file.scopes.parents[binding.node] is file.tree:
            return name
    return None


def _choose(file: SourceFile, module: str, dropped: set[Binding]) -> str:
    word = _LOCAL_NAMES.get(module.removeprefix("unisono."), module.rpartition(".")[2])
    scopes = {id(scope): scope for scope in file.scopes.scope_of.values()}
    holders = [item for scope in scopes.values() for item in scope.bindings.get(word, ())]
    if holders and all(binding in dropped for binding in holders):
        return word
    outer = module.removeprefix("unisono.").rpartition(".")[0].rpartition(".")[2]
    return file.fresh_name(word if file.is_free(word) or not outer else f"{outer}_{word}")


def _import(module: str, name: str) -> str:
    outer, _, last = module.rpartition(".")
    if last == name:
        return f"from {outer} import {last}" if outer else f"import {last}"
    return f"import {module} as {name}"
