"""One file of a program: its scopes, and its uses of the two dialects."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from unisono import mapping
from unisono.port.scopes import Binding, Reference, Scopes

if TYPE_CHECKING:
    from unisono.port.primitives.built import Primitive

__all__ = ["SourceFile"]


class SourceFile:
    """One parsed file: its scopes, and its uses of the two dialects."""

    def __init__(self, path: Path, name: str, source: str) -> None:
        self.path, self.name, self.source = path, name, source
        self.has_mark = False  # of the byte order, as some editors write it
        self.tree = ast.parse(source, str(path))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.scopes = Scopes(self.tree, package)
        self.references: list[Reference] = []
        self.by_node: dict[ast.AST, Reference] = {}
        #: Primitives by the use that builds them.
        self.primitives: dict[Reference, Primitive] = {}
        #: Names that take the place of expressions, whose values statements before compute.
        self.hoisted: dict[ast.AST, str] = {}
        #: Marks for what becomes of expressions that change where they stand.
        self.changed: dict[ast.AST, str] = {}
        self._given_out: set[str] = set()

    def is_free(self, name: str) -> bool:
        """Tell whether the file does not use a name yet."""
        return name not in self._names and name not in self._given_out

    def fresh_name(self, word: str) -> str:
        """Return a name that the file does not use yet."""
        name, count = word, 1
        while not self.is_free(name):
            count += 1
            name = f"{word}_{count}"
        self._given_out.add(name)
        return name

    def imports_of(self, binding: Binding) -> list[Binding]:
        """Return all imports that give a name its value, in a branch each or one after another."""
        scopes = self.scopes
        home = scopes.scope_of[binding.node].owner(binding.name, scopes.top)
        found = [each for each in home.bindings.get(binding.name, ()) if each.kind == "import"]
        return found or [binding]  # a star brings names without saying which

    def start_again(self) -> None:
        """Forget the names that were given out: another round of decisions begins."""
        self._given_out.clear()
        self.hoisted.clear()
        self.changed.clear()
        for word in ("result_name", "loop_names"):
            self.__dict__.pop(word, None)

    @functools.cached_property
    def _names(self) -> set[str]:
        """Return every name that stands anywhere in the file."""
        found = set()
        for node in ast.walk(self.tree):
            for field in ("id", "arg", "attr", "name", "asname"):
                if isinstance(word := getattr(node, field, None), str):
                    found.add(word.partition(".")[0])
        return found

    @functools.cached_property
    def calls(self) -> set[ast.AST]:
        """Return the calls of both dialects."""
        return {found.call for found in self.references if found.call is not None}

    @functools.cached_property
    def reading_calls(self) -> set[ast.AST]:
        """Return the calls that do not keep tensors that they are given: those of the table.

        What a layer above does with a tensor, such as `DTensor.from_local`, is not known.
        """
        known = mapping.calls()
        found = {each.call for each in self.references if each.path in known and not each.rest}
        keeping = {each.call for each in self.references if each.path.endswith(".P2POp")}
        return {call for call in found - keeping if call is not None}

    @functools.cached_property
    def functional_calls(self) -> set[ast.AST]:
        """Return the calls that return new tensors, and not memory that they were given."""
        known = mapping.calls()
        functional = set()
        for found in self.references:
            call = known.get(found.path)
            if call is not None and found.building is not None:
                same = mapping.same_function(call)
                call = same[0] if same else None
            given = call is not None and call.dialect == "torch" and _takes_memory(call)
            if call is not None and call.style == "functional" and not given:
                functional.add(found.call)
        return {call for call in functional if call is not None}

    @functools.cached_property
    def reads_underscore(self) -> bool:
        """Tell whether `_` means something in the file, as it does for translated texts."""
        return any(
            isinstance(node, ast.Name) and node.id == "_" and isinstance(node.ctx, ast.Load)
            for node in ast.walk(self.tree)
        )

    @functools.cached_property
    def result_name(self) -> str:
        """Return the name of a result that is used at once."""
        return self.fresh_name("result")

    @functools.cached_property
    def kept_names(self) -> tuple[str, str]:
        """Return the names of a tensor and of its result, where a list has them with a handle."""
        return self.fresh_name("tensor"), self.result_name

    @functools.cached_property
    def handle_name(self) -> str:
        """Return the name of a handle that goes into a list at once."""
        return self.fresh_name("handle")

    @functools.cached_property
    def loop_names(self) -> tuple[str, str]:
        """Return the two names of the loops that fill lists."""
        return self.fresh_name("part"), self.fresh_name("piece")

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        """Return what other modules can import from this one: names that it has imported."""
        return {
            name: binding.path
            for name, bindings in self.scopes.top.bindings.items()
            for binding in bindings
            if binding.path is not None
        }

    @functools.cached_property
    def lines(self) -> list[str]:
        """Return the lines of the source, as Python counts them: a form feed ends none."""
        return re.split(r"\r\n|\r|\n", self.source)


def _takes_memory(call: mapping.UpstreamCall) -> bool:
    """Tell whether a call of torch gets the memory for its result."""
    return any(argument.name.startswith("output") for argument in call.parameters)
