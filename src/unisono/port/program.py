"""A program's files, and every use of the two dialects in them, however it was imported."""

from __future__ import annotations

import ast
import codecs
import dataclasses
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from unisono import mapping
from unisono.errors import ArgumentError
from unisono.port.primitives.built import primitives_in
from unisono.port.scopes import Binding, Reference, Scopes, only_imports
from unisono.port.source_file import SourceFile

__all__ = [
    "TOO_DEEP",
    "SourceTree",
    "Reference",
    "SourceFile",
    "Unreadable",
    "is_module",
    "known_paths",
    "module_name",
    "python_files",
    "read_program",
]

#: Other places from which upstream's own names can be imported.
_OTHER_PLACES = {
    "mindspore.communication.management": "mindspore.communication",
    "mindspore.mint.distributed.distributed": "mindspore.mint.distributed",
    "mindspore.ops.operations.comm_ops": "mindspore.ops",
    "mindspore.ops.operations": "mindspore.ops",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed.nn.functional": "torch.distributed.nn.functional",
    "torch.distributed.nn": "torch.distributed.nn.functional",
}
#: The modules whose names belong to a dialect; mindspore.ops only as far as the table has them.
_MODULES = (
    "torch.distributed",
    "mindspore.communication",
    "mindspore.mint.distributed",
    "mindspore.ops.communication",
)
_PREFIX = "unisono."
#: No file has imported a name.
_NO: tuple[str, str | None] = ("", None)
_IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A file that could not be read, and why."""

    path: Path
    line: int
    reason: str


#: Why a file is skipped whose code Python can follow, but not a program in Python.
TOO_DEEP = "an expression is nested too deeply"


@functools.cache
def known_paths() -> frozenset[str]:
    """Return every upstream name that the mapping table has."""
    paths: list[str] = []
    for entry in mapping.load().values():
        paths += [call.path for call in entry.calls] + [name.path for name in entry.names]
        paths += [item.path for item in entry.missing]
    return frozenset(paths)


def _canonical(path: str, roots: Sequence[str]) -> tuple[str, bool]:
    """Return the upstream name of a path, and whether it has unisono's prefix."""
    prefixed = path.startswith(_PREFIX)
    path = path.removeprefix(_PREFIX)
    for root in roots:
        if path == root or path.startswith(f"{root}."):
            moved = f"torch.distributed{path.removeprefix(root)}"
            # A module below it is the third party's own, unless torch has it too.
            path = moved if moved.count(".") <= 2 or _known_part(moved) else path
    for place, home in _OTHER_PLACES.items():
        if path == place or path.startswith(f"{place}."):
            return home + path.removeprefix(place), prefixed
    return path, prefixed


def _known_part(path: str) -> str | None:
    """Return the name of the table with which a path begins."""
    while "." in path and path not in known_paths():
        path = path.rpartition(".")[0]
    return path if "." in path else None


def _split(path: str) -> tuple[str, str] | None:
    """Divide a path into a name of the table and the rest; None if no dialect has it."""
    if name := _known_part(path):
        return name, path[len(name) :].lstrip(".")
    for module in _MODULES:
        if path.startswith(f"{module}.") and path != "mindspore.communication.comm_func":
            return path, ""
    return None


def is_module(path: str) -> bool:
    """Tell whether an upstream name is that of a module that belongs to a dialect."""
    return path in (*_MODULES, "mindspore.communication.comm_func")


class SourceTree:
    """All files that are looked at together; names are followed from one file to another."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self.roots = tuple(roots)
        self.files: list[SourceFile] = []
        self.unreadable: list[Unreadable] = []
        self.by_name: dict[str, SourceFile] = {}
        #: Names that one file of the program imports from another.
        self.passed_on: set[tuple[str, str]] = set()

    def read(self, path: Path) -> None:
        """Parse one file; a file that Python cannot parse is put on a list."""
        try:
            data = path.read_bytes()
            file = self.add(path, data.decode("utf-8-sig"))
            file.has_mark = data.startswith(codecs.BOM_UTF8)
        except SyntaxError as error:
            self.unreadable.append(Unreadable(path, error.lineno or 1, error.msg))
        except RecursionError:
            self.unreadable.append(Unreadable(path, 1, TOO_DEEP))
        except (OSError, ValueError) as error:
            self.unreadable.append(Unreadable(path, 1, str(error)))

    def add(self, path: Path, source: str) -> SourceFile:
        """Add a file whose source is known."""
        file = SourceFile(path, module_name(path), source)
        self.files.append(file)
        self.by_name.setdefault(file.name, file)
        return file

    def resolve(self) -> None:
        """Find the uses of both dialects in all files that were read."""
        for file in self.files:
            for scope in {id(scope): scope for scope in file.scopes.scope_of.values()}.values():
                for bindings in scope.bindings.values():
                    for binding in bindings:
                        module, _, name = (binding.path or "").rpartition(".")
                        if module in self.by_name:
                            self.passed_on.add((module, name))
        for file in self.files:
            file.references = sorted(self._references(file), key=_position)
            file.by_node = {found.node: found for found in file.references}
        for file in self.files:
            file.primitives = {found.building: found for found in primitives_in(self, file)}
            called = [call for found in file.primitives.values() for call in found.calls]
            if called:
                file.references = sorted([*file.references, *called], key=_position)
                file.by_node |= {found.node: found for found in called}

    @functools.cached_property
    def attributes(self) -> dict[str, list[tuple[SourceFile, ast.Attribute]]]:
        """Return every attribute that any file uses, by name."""
        found: dict[str, list[tuple[SourceFile, ast.Attribute]]] = defaultdict(list)
        for file in self.files:
            for node in file.scopes.parents:
                if isinstance(node, ast.Attribute):
                    found[node.attr].append((file, node))
        return found

    @functools.cached_property
    def classes(self) -> dict[str, list[set[str]]]:
        """Return the names of the bases of all classes that have a name."""
        found: dict[str, list[set[str]]] = defaultdict(list)
        for file in self.files:
            for node in file.scopes.parents:
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    found[node.name].append(bases)
        return found

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """Return every upstream name that the program uses, once it was resolved."""
        return frozenset(found.path for file in self.files for found in file.references)

    def follow(self, path: str) -> tuple[str, bool]:
        """Follow a path through the files of the program to the upstream name."""
        return _canonical(self._behind_files(path), self.roots)

    def is_third_party(self, path: str) -> bool:
        """Tell whether a path leads to a third party that has torch's names."""
        path = self._behind_files(path)
        return any(path == root or path.startswith(f"{root}.") for root in self.roots)

    @functools.cached_property
    def reexported(self) -> frozenset[tuple[str, str]]:
        """Return the names, with their modules, through which other files reach a dialect."""
        found: set[tuple[str, str]] = set()
        for file in self.files:
            for reference in file.references:
                self._behind_files(reference.binding.path or "", found)
        return frozenset(found)

    def _behind_files(self, path: str, reexported: set[tuple[str, str]] | None = None) -> str:
        for _ in range(10):
            module = path
            while module and module not in self.by_name:
                module = module.rpartition(".")[0]
            name, _, rest = path[len(module) + 1 :].partition(".")
            holder, target = self._exported(self.by_name[module], name) if module and name else _NO
            if target is None or target == path:
                break
            if reexported is not None:
                reexported.add((holder, name))
            path = f"{target}.{rest}" if rest else target
        return path

    def _exported(self, file: SourceFile, name: str, depth: int = 5) -> tuple[str, str | None]:
        """Return what a name means that a file has imported, also by a star, and which file has."""
        if name in file.imports:
            return file.name, file.imports[name]
        for star in file.scopes.stars if depth else ():
            inner = self.by_name.get(file.scopes.module_of(star))
            if inner is not None and (found := self._exported(inner, name, depth - 1))[1]:
                return found
        return _NO

    def _references(self, file: SourceFile) -> Iterator[Reference]:
        scopes = file.scopes
        yield from self._from_stars(file)
        for scope in {id(scope): scope for scope in scopes.scope_of.values()}.values():
            for name, bindings in list(scope.bindings.items()):
                imported = [binding for binding in bindings if binding.kind == "import"]
                if imported and only_imports(bindings):
                    yield from self._uses(file, scope.uses[name], imported, None)
                elif len(bindings) == 1 and bindings[0].kind == "assignment" and bindings[0].value:
                    # `gather = dist.all_gather_into_tensor`: calls of it go through a variable.
                    path = self._path_of(file, bindings[0].value)
                    named = isinstance(bindings[0].value, ast.Name)
                    if path and (not named or is_module(self.follow(path)[0])):
                        found = dataclasses.replace(bindings[0], path=path)
                        yield from self._uses(file, scope.uses[name], [found], name)

    def _from_stars(self, file: SourceFile) -> Iterator[Reference]:
        """Yield uses of names that `from module import *` may have brought."""
        scopes = file.scopes
        for star in scopes.stars:
            module = scopes.module_of(star)
            for scope in {id(scope): scope for scope in scopes.scope_of.values()}.values():
                for name, uses in list(scope.uses.items()):
                    path = self.follow(f"{module}.{name}")[0]
                    own = _canonical(f"{module}.{name}", self.roots)[0]
                    passed_on = module in self.by_name and path != own
                    if (passed_on or path in known_paths()) and scope.find(name) is None:
                        binding = Binding(name, star, "import", f"{module}.{name}")
                        yield from self._uses(file, uses, [binding], None)

    def _path_of(self, file: SourceFile, node: ast.expr) -> str | None:
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node not in file.scopes.scope_of:
            return None
        home = file.scopes.scope_of[node].find(node.id)
        for binding in home.bindings[node.id] if home else ():
            if binding.kind == "import":
                return ".".join([binding.path or "", *reversed(names)])
        return None

    def _uses(
        self, file: SourceFile, names: list[ast.Name], bindings: list[Binding], through: str | None
    ) -> Iterator[Reference]:
        for name in names:
            if not isinstance(name.ctx, ast.Load):
                continue
            node: ast.expr = name
            words = []
            while isinstance(parent := file.scopes.parents[node], ast.Attribute):
                node = parent
                words.append(parent.attr)
            for binding in bindings:
                path, prefixed = self.follow(".".join([binding.path or "", *words]))
                found = _split(path)
                if found is None and is_module(path) and _may_keep(node, file.scopes):
                    found = path, ""
                if found is None:
                    continue
                call = parent if isinstance(parent, ast.Call) and parent.func is node else None
                yield Reference(*found, node, binding, call, prefixed, through)
                break


def _may_keep(module: ast.expr, scopes: Scopes) -> bool:
    """Tell whether a module goes somewhere as a value; tests whether there is one do not count."""
    parent = scopes.parents[module]
    if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "hasattr":
        return False
    tests = ast.Compare | ast.BoolOp | ast.UnaryOp | ast.If | ast.While | ast.Assert | ast.Expr
    return not isinstance(parent, tests | ast.Delete | ast.FormattedValue)


def _position(reference: Reference) -> tuple[int, int]:
    return reference.node.lineno, reference.node.col_offset


def read_program(
    paths: Iterable[Path], roots: Iterable[str], progress: Callable[[int, int], None]
) -> SourceTree:
    """Read all Python files among paths and inside folders; `progress` hears how many are done."""
    program = SourceTree(roots)
    files = python_files(paths)
    for done, path in enumerate(files):
        progress(done, len(files))
        program.read(path)
    progress(len(files), len(files))
    program.resolve()
    return program


def module_name(path: Path) -> str:
    """Return the name under which a program imports a file: folders with __init__.py count."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.absolute().parent
    while (folder / "__init__.py").exists() and folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def python_files(paths: Iterable[Path]) -> list[Path]:
    """List the Python files among paths and inside folders, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                raise ArgumentError(f"the folder {path} cannot be read")
            for inner in sorted(path.rglob("*.py")):
                folders = inner.relative_to(path).parts[:-1]
                hidden = any(part in _IGNORED_FOLDERS or part[0] == "." for part in folders)
                # Not a pipe either: nobody may ever write into it.
                if not hidden and (inner.is_file() or not inner.exists()):
                    found[inner] = None
        elif path.exists():
            found[path] = None
        else:
            raise ArgumentError(f"there is no file or folder {path}")
    return list(found)
