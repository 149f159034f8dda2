"""The collectives of a program, and the functions that make them, directly or through others."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from unisono import mapping
from unisono.port.program import Reference, SourceFile, SourceTree
from unisono.port.reach.definitions import Definition, Definitions, FunctionNode

__all__ = ["MadeCollective", "CollectiveCalls", "Step", "is_collective", "makes_group", "step"]

#: Messages join two ranks, and questions none.
_NOT_COLLECTIVE = {"send_recv", "groups"}
#: Of the calls about groups, these are made by all ranks, members or not.
_MAKE_GROUPS = ("torch.distributed.new_group", "torch.distributed.new_subgroups")
_WORLD_ENDS = ("WORLD", "WORLD_COMM_GROUP", "_world_group")


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of the program on the way to a collective."""

    name: str
    path: Path
    line: int


def step(target: Definition) -> Step:
    """Return a function as a step of a way."""
    return Step(target.name, target.file.path, getattr(target.node, "lineno", 1))


@dataclasses.dataclass(frozen=True, eq=False)
class MadeCollective:
    """A collective that a function makes at a call; `way` are the functions that the call runs.

    `group` is the text of the group, or None for the world. `path`, `file`, `line` and `column` say
    which collective it is, and where it stands.
    """

    call: ast.Call
    path: str
    group: str | None
    file: Path
    line: int
    column: int
    way: tuple[Step, ...] = ()


def is_collective(reference: Reference) -> bool:
    """Tell whether every rank of the group has to make a call."""
    if reference.call is None or reference.rest or reference.path not in _paths(built=False):
        return False
    # With this option only the members of the new group make the call.
    return not any(word.arg == "use_local_synchronization" for word in reference.call.keywords)


def makes_group(path: str) -> bool:
    """Tell whether a collective makes a new group."""
    return path.startswith(_MAKE_GROUPS)


@functools.cache
def _paths(built: bool) -> frozenset[str]:
    """Return the collectives of the table; primitives are built first, and called later."""
    return frozenset(
        call.path
        for entry in mapping.load().values()
        for call in entry.calls
        if (call.style == "built") == built
        and not call.name.startswith(("send_", "recv_"))
        and (entry.name not in _NOT_COLLECTIVE or makes_group(call.path))
    )


class CollectiveCalls:
    """For each call that makes collectives: which one, or which function of the program."""

    def __init__(
        self,
        program: SourceTree,
        definitions: Definitions,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._definitions = definitions
        #: Calls of collectives themselves, and calls of functions that make some.
        self.direct: dict[ast.Call, MadeCollective] = {}
        self.functions: dict[ast.Call, Definition] = {}
        #: Every function that makes a collective, by its file; and what such a call stands in.
        self.communicating: dict[SourceFile, list[FunctionNode]] = defaultdict(list)
        self.around: set[ast.AST] = set()
        self._inside: dict[ast.AST, list[ast.Call]] = defaultdict(list)
        self._has_primitives = bool(program.paths & _paths(built=True))
        if self._has_primitives or program.paths & _paths(built=False):
            self._follow(program, progress)

    def _follow(self, program: SourceTree, progress: Callable[[int, int], None]) -> None:
        """Find all collectives, and then the functions that lead to them."""
        callers: dict[ast.AST, list[tuple[ast.Call, SourceFile, FunctionNode]]] = defaultdict(list)
        targets: dict[ast.Call, Definition] = {}
        pending: list[ast.AST] = []
        seen: set[ast.AST] = set()
        for done, file in enumerate(program.files):
            progress(done, len(program.files))
            for call, home in _calls(file):
                if (found := self._collective(call, file)) is not None:
                    self.direct[call] = found
                    self._mark(call, home, file, pending, seen)
                elif (target := self._definitions.called(call, file)) is not None:
                    targets[call] = target
                    callers[target.node].append((call, file, home))
        progress(len(program.files), len(program.files))
        while pending:
            for call, file, home in callers[pending.pop()]:
                self.functions[call] = targets[call]
                self._mark(call, home, file, pending, seen)

    def first(self, target: Definition) -> MadeCollective | None:
        """Return a collective that a function makes, by the shortest way."""
        pending: list[tuple[ast.AST, tuple[Step, ...]]] = [(target.node, ())]
        seen = {target.node}
        for node, way in pending:
            for call in self._inside[node]:
                if call in self.direct:
                    return dataclasses.replace(self.direct[call], way=way)
                inner = self.functions[call]
                if inner.node not in seen:
                    seen.add(inner.node)
                    pending.append((inner.node, (*way, step(inner))))
        return None

    def _mark(
        self,
        call: ast.Call,
        home: FunctionNode,
        file: SourceFile,
        pending: list[ast.AST],
        seen: set[ast.AST],
    ) -> None:
        """Note that a function makes a collective at a call."""
        if home not in seen:
            seen.add(home)
            pending.append(home)
            self.communicating[file].append(home)
        self._inside[home].append(call)
        node: ast.AST = call
        while node is not home and node not in self.around:
            self.around.add(node)
            node = file.scopes.parents[node]

    def _collective(self, call: ast.Call, file: SourceFile) -> MadeCollective | None:
        reference = file.by_node.get(call.func)
        if reference is None or reference.building is not None:
            reference = self._primitive(call.func, file) if self._has_primitives else None
            if reference is None:
                return None
        elif not is_collective(reference):
            return None
        assert reference.call is not None
        place = call.func.lineno, call.func.col_offset + 1
        return MadeCollective(call, reference.path, _group(reference), file.path, *place)

    def _primitive(self, node: ast.expr, file: SourceFile) -> Reference | None:
        """Return the primitive of MindSpore that a call runs: built before, or on the spot."""
        built: list[Definition] = []
        if isinstance(node, ast.Call):
            built = [Definition(file, node)]
        elif isinstance(node, ast.Attribute):
            owner = self._definitions.owner(node.value, file)
            built = self._definitions.attribute(owner, node.attr) if owner is not None else []
        elif isinstance(node, ast.Name) and (found := self._definitions.find(node, file)):
            built = [found]
        if len(built) != 1 or not isinstance(built[0].node, ast.Call):
            return None
        reference = built[0].file.by_node.get(built[0].node.func)
        if reference is None or reference.call is None or reference.rest:
            return None
        return reference if reference.path in _paths(built=True) else None


def _calls(file: SourceFile) -> list[tuple[ast.Call, FunctionNode]]:
    """List the calls of a file, each with the function that makes it."""
    homes: dict[int, FunctionNode] = {}
    found = []
    for node, scope in file.scopes.scope_of.items():
        if not isinstance(node, ast.Call):
            continue
        if id(scope) not in homes:
            outer = scope
            while not isinstance(outer.node, FunctionNode) and outer.parent is not None:
                outer = outer.parent
            assert isinstance(outer.node, FunctionNode)
            homes[id(scope)] = outer.node
        found.append((node, homes[id(scope)]))
    return found


def _group(reference: Reference) -> str | None:
    """Return the text of the group that a call names; None if it is the world."""
    call = reference.call
    assert call is not None
    upstream = mapping.calls()[reference.path]
    names = [each.name for each in upstream.parameters if not each.keyword_only]
    value = next((word.value for word in call.keywords if word.arg == "group"), None)
    if value is None and "group" in names and names.index("group") < len(call.args):
        value = call.args[names.index("group")]
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return None
    text = ast.unparse(value).strip("'\"")
    return None if text.endswith(_WORLD_ENDS) else text
