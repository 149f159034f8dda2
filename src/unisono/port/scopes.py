"""The scopes of a module: which name is bound where, by what, and where it is used; its blocks."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict

__all__ = [
    "Binding",
    "Reference",
    "Scope",
    "Scopes",
    "block_of",
    "is_alone",
    "loops_around",
    "only_imports",
    "position",
]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_BLOCKS = ("body", "orelse", "finalbody")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value; `path` is what an import binds, as it is written."""

    name: str
    node: ast.AST
    kind: str  # "import", "parameter", "assignment", "loop", "definition" or "other"
    path: str | None = None
    value: ast.expr | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """One use of an upstream name; `path` is the name in the table, `rest` what follows it.

    `node` is the name with all its dots. `call` is the call of it, or None where it is used as a
    value. `through` says by which other name the program reaches it, or None. For the call of a
    primitive, `node` is what is called, and `building` the use that has built it.
    """

    path: str
    rest: str
    node: ast.expr
    binding: Binding
    call: ast.Call | None
    prefixed: bool = False
    through: str | None = None
    building: Reference | None = None

    @property
    def dialect(self) -> str:
        """Return "torch" or "mindspore"."""
        return self.path.partition(".")[0]


@dataclasses.dataclass(eq=False)
class Scope:
    """A module, a class, a function or a comprehension."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    uses: dict[str, list[ast.Name]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    elsewhere: set[str] = dataclasses.field(default_factory=set)  # global and nonlocal
    captured: set[str] = dataclasses.field(default_factory=set)  # used by functions inside

    @property
    def transparent(self) -> bool:
        """Tell whether the code of this scope runs where it stands, as a comprehension's does."""
        return isinstance(self.node, _COMPREHENSIONS)

    def owner(self, name: str, top: Scope) -> Scope:
        """Return the scope whose name an import in this one binds: after `global`, the top."""
        return top if name in self.elsewhere else self

    def find(self, name: str) -> Scope | None:
        """Return the scope that a name in this scope belongs to, or None for a builtin."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            own_class = first or not isinstance(scope.node, ast.ClassDef)
            if own_class and name in scope.bindings and name not in scope.elsewhere:
                return scope
            first = first and scope.transparent
            scope = scope.parent
        return None


class Scopes:
    """All scopes of a module, the parent of each node, and the scope of each name and call."""

    def __init__(self, tree: ast.Module, package: str) -> None:
        self.package = package
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope_of: dict[ast.AST, Scope] = {}
        self.stars: list[ast.ImportFrom] = []
        self.top = self.scope_of[tree] = Scope(tree, None)
        for child in tree.body:
            self._visit(child, tree, self.top)
        self._link_uses()

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node stands in."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def chain(self, node: ast.AST) -> list[ast.AST]:
        """Return a node and all that it stands in, from the inside out."""
        found = [node]
        while found[-1] in self.parents:
            found.append(self.parents[found[-1]])
        return found

    def is_bound_once(self, scope: Scope, name: str) -> bool:
        """Tell whether one statement alone gives a name its value, also by way of `global`."""
        others = any(name in other.elsewhere for other in self.scope_of.values())
        return len(scope.bindings[name]) == 1 and not others

    # ---- building ----

    def _visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self.parents[node] = parent
        if isinstance(node, ast.Name):
            self.scope_of[node] = scope
            if not isinstance(node.ctx, ast.Load):
                self._bind_target(node, scope)
            scope.uses[node.id].append(node)
            return
        if isinstance(node, ast.Call):
            self.scope_of[node] = scope
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._bind_import(node, scope)
            return
        elif isinstance(node, ast.Global | ast.Nonlocal):
            scope.elsewhere.update(node.names)
            return
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, ast.MatchAs | ast.MatchStar) and node.name
        ):
            scope.bindings[node.name].append(Binding(node.name, node, "other"))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope.bindings[node.name].append(Binding(node.name, node, "definition"))
        if isinstance(node, _FUNCTIONS):
            self._visit_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            inner = Scope(node, scope)
            for child in ast.iter_child_nodes(node):
                self._visit(child, node, inner if child in node.body else scope)
        elif isinstance(node, _COMPREHENSIONS):
            inner = Scope(node, scope)
            for child in ast.iter_child_nodes(node):
                self._visit(child, node, inner)
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child, node, scope)

    def _visit_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope
    ) -> None:
        inner = Scope(node, scope)
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        plain = [*given.posonlyargs, *given.args]
        defaults: dict[str, ast.expr] = {
            argument.arg: default
            for argument, default in [
                *zip(plain[len(plain) - len(given.defaults) :], given.defaults, strict=True),
                *zip(given.kwonlyargs, given.kw_defaults, strict=True),
            ]
            if default is not None
        }
        for argument in every:
            if argument is not None:
                inner.bindings[argument.arg].append(
                    Binding(argument.arg, argument, "parameter", value=defaults.get(argument.arg))
                )
        self.scope_of[node] = inner
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in ast.iter_child_nodes(node):
            self._visit(child, node, inner if child in body else scope)

    def _bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                path = alias.name if alias.asname else name
            elif alias.name == "*":
                self.stars.append(node)
                continue
            else:
                name = alias.asname or alias.name
                path = f"{self.module_of(node)}.{alias.name}"
            home = scope.owner(name, self.top)
            home.bindings[name].append(Binding(name, node, "import", path))
        self.scope_of[node] = scope

    def module_of(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a from-import reads."""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - node.level + 1] if node.level else []
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _bind_target(self, name: ast.Name, scope: Scope) -> None:
        node: ast.AST = name
        while isinstance(self.parents[node], ast.Tuple | ast.List | ast.Starred):
            node = self.parents[node]
        parent = self.parents[node]
        while scope.transparent and isinstance(parent, ast.NamedExpr) and scope.parent:
            scope = scope.parent
        kind, value = "other", None
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            kind = "assignment" if node is name else "other"
            value = parent.value if node is name else None
        elif isinstance(parent, ast.AugAssign):
            kind = "augmented"
        elif isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
            kind = "loop"
        elif isinstance(parent, ast.Delete):
            return
        scope.bindings[name.id].append(Binding(name.id, parent, kind, value=value))

    def _link_uses(self) -> None:
        """Give every use of a name to the scope that the name belongs to."""
        scopes = {id(scope): scope for scope in self.scope_of.values()}
        pending = list(scopes.values())
        for scope in pending:
            if scope.parent is not None and id(scope.parent) not in scopes:
                scopes[id(scope.parent)] = scope.parent
                pending.append(scope.parent)
        for scope in list(scopes.values()):
            for name, nodes in list(scope.uses.items()):
                home = scope.find(name)
                if home is None or home is scope:
                    continue
                home.uses[name].extend(nodes)
                between: Scope | None = scope
                while between is not None and between is not home:
                    if not between.transparent:
                        home.captured.add(name)
                    between = between.parent


def block_of(statement: ast.stmt, scopes: Scopes) -> list[ast.stmt]:
    """Return the block that a statement stands in."""
    outer = scopes.parents[statement]
    for field in _BLOCKS:
        block = getattr(outer, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def is_alone(statement: ast.stmt, scopes: Scopes) -> bool:
    """Tell whether a statement shares its line with no other, so that there is room for more."""
    outer = scopes.parents[statement]
    neighbours = [one.lineno for one in block_of(statement, scopes) if one is not statement]
    inline = not isinstance(outer, ast.Module) and getattr(outer, "lineno", 0) == statement.lineno
    return not inline and statement.lineno not in neighbours


def loops_around(node: ast.AST, scopes: Scopes) -> set[ast.AST]:
    """Return the loops of the function that a node stands in."""
    found: set[ast.AST] = set()
    for outer in scopes.chain(node):
        if isinstance(outer, _FUNCTIONS):
            break
        if isinstance(outer, _LOOPS):
            found.add(outer)
    return found


def position(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return where a node begins, to say which of two comes first in the text."""
    return node.lineno, node.col_offset


def only_imports(bindings: list[Binding]) -> bool:
    """Tell whether a name is always what was imported, or None where that failed."""
    return all(
        binding.kind == "import"
        or (isinstance(binding.value, ast.Constant) and binding.value.value is None)
        for binding in bindings
    )
