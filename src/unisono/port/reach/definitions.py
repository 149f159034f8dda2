"""Which function of the program a call runs: by name, by import, as a method, as a constructor."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from unisono.port.program import SourceFile, SourceTree
from unisono.port.scopes import Binding

__all__ = ["Definition", "Definitions", "FunctionNode", "body_of", "same_code"]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
#: Names that are followed one after the other; cycles of imports end here.
_DEPTH = 12


@dataclasses.dataclass(frozen=True)
class Definition:
    """What a name stands for: a function, a class, or an expression; and the file it is in."""

    file: SourceFile
    node: ast.AST

    @property
    def name(self) -> str:
        """Return the name of a function as a program writes it, with its class."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            owner = self.file.scopes.parents.get(self.node)
            outer = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
            return f"{outer}{self.node.name}"
        return "lambda"

    @property
    def is_property(self) -> bool:
        """Tell whether a method runs when its name is read."""
        found = self.node.decorator_list if isinstance(self.node, ast.FunctionDef) else []
        return any(ast.unparse(each).endswith("property") for each in found)


def body_of(node: FunctionNode) -> list[ast.stmt]:
    """Return the statements of a function."""
    if isinstance(node, ast.Lambda):
        return [ast.copy_location(ast.Return(node.body), node.body)]
    return node.body


def same_code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is inside, without the functions and classes that it defines."""
    pending = [node]
    while pending:
        found = pending.pop()
        yield found
        children = ast.iter_child_nodes(found)
        pending += [each for each in children if not isinstance(each, FunctionNode | ast.ClassDef)]


class Definitions:
    """Where the names of a program are defined."""

    def __init__(self, program: SourceTree) -> None:
        self._modules: dict[str, list[SourceFile]] = defaultdict(list)
        for file in program.files:
            self._modules[file.name].append(file)
        self._members: dict[ast.ClassDef, dict[str, ast.AST]] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[ast.expr | None]]] = {}

    def called(self, call: ast.Call, file: SourceFile) -> Definition | None:
        """Return the function of the program that a call runs; for a class, its constructor."""
        found = self.find(call.func, file)
        if found is not None and isinstance(found.node, ast.ClassDef):
            found = self.member(found, "__init__")
        if found is None or not isinstance(found.node, FunctionNode) or found.is_property:
            return None
        return found

    def find(self, node: ast.expr, file: SourceFile, depth: int = _DEPTH) -> Definition | None:
        """Return what a name or an attribute stands for; None if the program does not say."""
        if not depth:
            return None
        if isinstance(node, ast.Name):
            return self._name(node, file, depth)
        if not isinstance(node, ast.Attribute):
            return None
        if (owner := self.owner(node.value, file)) is not None:
            return self.member(owner, node.attr)
        if _is_super(node.value):
            home = file.scopes.scope_of[node.value].node
            around = file.scopes.parents.get(home)
            if isinstance(around, ast.ClassDef):
                return self._inherited(Definition(file, around), node.attr, _DEPTH)
            return None
        if (path := self._path(node, file)) is not None:
            return self._at(path, file, depth)
        inner = self.find(node.value, file, depth - 1)
        if inner is not None and isinstance(inner.node, ast.ClassDef):
            return self.member(inner, node.attr)
        return None

    def owner(self, node: ast.expr, file: SourceFile) -> Definition | None:
        """Return the class whose object `self`, the first parameter of a method, is."""
        if not isinstance(node, ast.Name) or node not in file.scopes.scope_of:
            return None
        home = file.scopes.scope_of[node].find(node.id)
        if home is None or not isinstance(home.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        around, given = file.scopes.parents.get(home.node), home.node.args
        first = [*given.posonlyargs, *given.args][:1]
        if isinstance(around, ast.ClassDef) and first and first[0].arg == node.id:
            return Definition(file, around)
        return None

    def member(self, owner: Definition, name: str, depth: int = _DEPTH) -> Definition | None:
        """Return a method of a class or of its base classes in the program."""
        assert isinstance(owner.node, ast.ClassDef)
        if owner.node not in self._members:
            self._members[owner.node] = {
                node.name: node
                for node in owner.node.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            }
        if (found := self._members[owner.node].get(name)) is not None:
            return Definition(owner.file, found)
        return self._inherited(owner, name, depth)

    def attribute(self, owner: Definition, name: str, depth: int = _DEPTH) -> list[Definition]:
        """Return the values that the methods of a class, or its bases, give an attribute.

        A value that is not a plain assignment, as one from an unpacking, is an empty tuple.
        """
        assert isinstance(owner.node, ast.ClassDef)
        if owner.node not in self._attributes:
            self._attributes[owner.node] = _attributes(owner.node)
        found = [
            Definition(owner.file, value if value is not None else ast.Tuple([], ast.Load()))
            for value in self._attributes[owner.node].get(name, [])
        ]
        for base in self._bases(owner) if depth else ():
            found += self.attribute(base, name, depth - 1)
        return found

    def arguments(
        self, call: ast.Call, target: Definition, file: SourceFile
    ) -> Iterator[tuple[str, ast.expr, SourceFile]]:
        """Yield what the parameters of a function get in a call, and the files of the values."""
        assert isinstance(target.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        parameters = target.file.scopes.scope_of[target.node].bindings
        names = [each.arg for each in (*target.node.args.posonlyargs, *target.node.args.args)]
        around = target.file.scopes.parents.get(target.node)
        if isinstance(around, ast.ClassDef) and not (
            isinstance(target.node, ast.FunctionDef)
            and any(ast.unparse(each) == "staticmethod" for each in target.node.decorator_list)
        ):
            names = names[1:]
        given = dict(zip(names, call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg}
        for name, bindings in list(parameters.items()):
            binding = bindings[0]
            if name in given and not isinstance(given[name], ast.Starred):
                yield name, given[name], file
            elif binding.kind == "parameter" and binding.value is not None:
                yield name, binding.value, target.file

    def is_module(self, node: ast.expr, file: SourceFile) -> bool:
        """Tell whether an expression is an imported module."""
        return self._path(node, file) is not None

    # ---- following names ----

    def _inherited(self, owner: Definition, name: str, depth: int) -> Definition | None:
        for base in self._bases(owner) if depth else ():
            if (found := self.member(base, name, depth - 1)) is not None:
                return found
        return None

    def _bases(self, owner: Definition) -> Iterator[Definition]:
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            found = self.find(base, owner.file)
            if found is not None and isinstance(found.node, ast.ClassDef) and found != owner:
                yield found

    def _name(self, node: ast.Name, file: SourceFile, depth: int) -> Definition | None:
        if node not in file.scopes.scope_of:
            return None
        home = file.scopes.scope_of[node].find(node.id)
        if home is not None:
            return self._bound(home.bindings[node.id], file, depth)
        return self._from_stars(node.id, file, depth)

    def _from_stars(self, name: str, file: SourceFile, depth: int) -> Definition | None:
        for star in file.scopes.stars:
            found = self._at(f"{file.scopes.module_of(star)}.{name}", file, depth - 1)
            if found is not None:
                return found
        return None

    def _bound(self, bindings: list[Binding], file: SourceFile, depth: int) -> Definition | None:
        """Follow the last definition of a name, or its only import or value."""
        for binding in reversed(bindings):
            if binding.kind == "definition":
                return Definition(file, binding.node)
        imports = [binding for binding in bindings if binding.kind == "import"]
        for binding in imports:
            if (found := self._at(binding.path or "", file, depth - 1)) is not None:
                return found
        if len(bindings) == 1 and bindings[0].kind == "assignment" and bindings[0].value:
            value = bindings[0].value
            if isinstance(value, ast.Name | ast.Attribute):
                found = self.find(value, file, depth - 1)
                return found if found is not None else Definition(file, value)
            return Definition(file, value)
        return None

    def _path(self, node: ast.expr, file: SourceFile) -> str | None:
        """Return the dotted path of an attribute of something imported."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node not in file.scopes.scope_of:
            return None
        home = file.scopes.scope_of[node].find(node.id)
        for binding in home.bindings[node.id] if home else ():
            if binding.kind == "import":
                return ".".join([binding.path or "", *reversed(words)])
        return None

    def _at(self, path: str, near: SourceFile, depth: int) -> Definition | None:
        """Return what is at a dotted path of the program's modules."""
        module = path
        while module and module not in self._modules:
            module = module.rpartition(".")[0]
        name, _, rest = path[len(module) + 1 :].partition(".")
        if depth <= 0 or not module or not name:
            return None
        file = _nearest(self._modules[module], near)
        found: Definition | None = None
        if name in file.scopes.top.bindings:
            found = self._bound(file.scopes.top.bindings[name], file, depth - 1)
        if found is None:
            found = self._from_stars(name, file, depth - 1)
        for word in rest.split(".") if rest else ():
            if found is None or not isinstance(found.node, ast.ClassDef):
                return None
            found = self.member(found, word)
        return found


def _nearest(files: list[SourceFile], near: SourceFile) -> SourceFile:
    """Return the file whose folder has most in common with another's: scripts import neighbours."""
    if len(files) == 1:
        return files[0]
    parts = near.path.absolute().parts

    def common(file: SourceFile) -> int:
        count = 0
        for one, other in zip(file.path.absolute().parts, parts, strict=False):
            if one != other:
                break
            count += 1
        return count

    return max(files, key=common)


def _is_super(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def _attributes(owner: ast.ClassDef) -> dict[str, list[ast.expr | None]]:
    """Collect the values that methods give to the attributes of their object."""
    found: dict[str, list[ast.expr | None]] = defaultdict(list)
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or not method.args.args:
            continue
        own = method.args.args[0].arg
        code = list(same_code(method))
        values: dict[ast.AST, ast.expr | None] = {}
        for node in code:
            if isinstance(node, ast.Assign):
                values |= dict.fromkeys(node.targets, node.value)
            elif isinstance(node, ast.AnnAssign):
                values[node.target] = node.value
        for node in code:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == own
            ):
                found[node.attr].append(values.get(node))
    return found
