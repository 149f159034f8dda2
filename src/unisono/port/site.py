"""One call with its arguments: which parameter each is, and what it becomes on the other side."""

from __future__ import annotations

import ast
import copy
import re

from unisono.mapping import Argument
from unisono.port.flow import is_pure, may_be_none
from unisono.port.plan import NewArgument
from unisono.port.program import Reference, SourceFile, SourceTree
from unisono.port.rules import Row, Rule, Target, difference_text

__all__ = ["Refused", "Site", "given_arguments"]

_WORLD = {"torch.distributed.group", "torch.distributed.GroupMember"}
_WORLD_NAMES = {
    "mindspore.communication.GlobalComm",
    "mindspore.communication.HCCL_WORLD_COMM_GROUP",
    "mindspore.communication.NCCL_WORLD_COMM_GROUP",
    "mindspore.communication.MCCL_WORLD_COMM_GROUP",
}
#: The operators that both dialects have: torch's name and MindSpore's string.
_OPERATORS = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg"}
_MINDSPORE_OPERATORS = {text.upper(): text for text in _OPERATORS.values()}
#: Hints for a library of one vendor, which change no result.
_HINTS = {"device"}
#: The name of a library, which means nothing to the other dialect.
_BACKEND = "backend"
_WORLD_GROUP = "«mindspore.communication».GlobalComm.WORLD_COMM_GROUP"


class Refused(Exception):
    """A call that must stay as it is, and why."""

    def __init__(self, reason: str, difference: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.difference = reason, difference


def given_arguments(
    call: ast.Call, parameters: tuple[Argument, ...], function: str
) -> dict[str, tuple[int, ast.expr]]:
    """Return the arguments of a call by parameter: their number in the call, and their value."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        raise Refused("it passes arguments with * or **, so which ones is not known here")
    names = [argument.name for argument in parameters if not argument.keyword_only]
    if len(call.args) > len(names):
        raise Refused(f"{function} takes {len(names)} arguments, and this call has more")
    found = {
        name: (index, value)
        for index, (name, value) in enumerate(zip(names, call.args, strict=False))
    }
    known = {argument.name for argument in parameters}
    for index, keyword in enumerate(call.keywords, len(call.args)):
        assert keyword.arg is not None
        if keyword.arg not in known:
            raise Refused(f"{function} has no parameter {keyword.arg!r}")
        found[keyword.arg] = (index, keyword.value)
    return found


def _order(item: tuple[str, tuple[int | None, ast.expr]]) -> tuple[bool, int]:
    """Put arguments of the call first, in their order, and then those of a constructor."""
    index = item[1][0]
    return index is None, index or 0


class _Replaced(ast.NodeTransformer):
    """Put the names of values that are computed before in place of expressions."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.uses: list[ast.AST] = []
        self.names: list[str] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Return a copy of a node, with names in it; remember uses of a dialect that stay."""
        if (name := self.file.hoisted.get(node) or self.file.changed.get(node)) is not None:
            self.names.append(name)
            return ast.Name(name)
        if node in self.file.by_node:
            self.uses.append(node)
        return self.generic_visit(copy.copy(node))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Copy the lists of a copied node too."""
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, field, list(value))
        return super().generic_visit(node)


class Site:
    """A call, its rule, and what was found out about it on the way."""

    def __init__(
        self,
        program: SourceTree,
        file: SourceFile,
        reference: Reference,
        rule: Rule,
        target: Target,
    ) -> None:
        assert reference.call is not None
        self.program, self.file, self.reference = program, file, reference
        self.rule, self.target, self.call = rule, target, reference.call
        #: Arguments by parameter: their number in the call, None for those of a constructor.
        self.given: dict[str, tuple[int | None, ast.expr]] = {}
        #: What stands for the arguments of a constructor where the primitive is called.
        self.constructed: dict[ast.expr, str] = {}
        self._read_arguments()
        self.notes: list[str] = []
        self.differences: list[str] = []
        self.consumed: list[Reference] = []
        self.average = False
        if target.dialect == "mindspore" and rule.pair is None:
            self._check_lists()

    def _read_arguments(self) -> None:
        source, building = self.rule.source, self.reference.building
        if building is None:
            self.given |= given_arguments(self.call, source.parameters, source.name)
            return
        assert building.call is not None
        built = given_arguments(building.call, source.parameters, source.name)
        self.given |= given_arguments(self.call, source.call_parameters, source.name)
        self.given |= {name: (None, value) for name, (_, value) in built.items()}

    # ---- what the call says ----

    def value(self, *roles: str) -> ast.expr | None:
        """Return the argument with one of these roles."""
        for name, (_, value) in self.given.items():
            if self.rule.row(name).role in roles:
                return value
        return None

    def text(self, node: ast.expr) -> str:
        """Return the source of an argument, for a statement of its own."""
        if node in self.constructed:
            return self.constructed[node]
        replaced = _Replaced(self.file)
        text = ast.unparse(replaced.visit(node))
        if replaced.uses:
            raise Refused("an argument calls the other dialect itself; give it a name first")
        plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.Call)
        if replaced.names or not plain or node.lineno != node.end_lineno:
            return text
        line = self.file.lines[node.lineno - 1].encode()  # as it is written, with its quotes
        return line[node.col_offset : node.end_col_offset].decode()

    def reference_at(self, node: ast.expr) -> Reference | None:
        """Return the use of a dialect that an expression is."""
        return self.file.by_node.get(node)

    @property
    def _returns_tensors(self) -> bool:
        """Tell whether the target is comm_func or a primitive: no average, no None for a group."""
        target = self.rule.target
        return target.style == "built" or target.path.startswith("mindspore.communication.")

    @property
    def mode(self) -> str:
        """Return "sync", "async", or "open" if a variable decides."""
        value = self.value("async")
        if self.rule.source.name == "irecv":
            return "async"
        if value is None or (isinstance(value, ast.Constant) and not value.value):
            return "sync"
        return "async" if isinstance(value, ast.Constant) else "open"

    @property
    def group_text(self) -> str:
        """Return the group as an argument of another call, or nothing for the world."""
        value = self.value("group")
        if value is None or self.is_world(value):
            return ""
        text = self.text(value)
        if self.target.dialect == "mindspore" and may_be_none(value, self.file.scopes):
            if not is_pure(value):
                raise Refused(
                    "the group may be None, which MindSpore refuses; give it a name first"
                )
            return f"{text} if {text} is not None else {_WORLD_GROUP}"
        return text

    # ---- arguments ----

    def arguments(self, *first: str, **replaced: str) -> tuple[NewArgument, ...]:
        """Return the arguments of the new call.

        `first` are texts that come before all others, `replaced` are texts by the target's names.
        """
        order = [a.name for a in self.rule.target.parameters if not a.keyword_only]
        if self.rule.target.style == "built":
            order = []  # some belong to the constructor, and some to the call
        found = [NewArgument(None, text=text) for text in first]
        done: set[str] = set()
        for source, (index, value) in sorted(self.given.items(), key=_order):
            row = self.rule.row(source)
            target = row.target
            if target is None or source == _BACKEND:
                self._drop(row, source, value)
                continue
            done.add(target)
            argument: NewArgument | None = NewArgument(target, index, replaced.get(target))
            if target not in replaced:
                argument = self._argument(row, target, index, value)
            if argument is not None:
                positional = index is not None and index < len(self.call.args)
                here = all(other.keyword is None for other in found)
                if positional and here and order[len(found) : len(found) + 1] == [target]:
                    argument = NewArgument(None, argument.old, argument.text)
                found.append(argument)
        missing = [NewArgument(name, text=text) for name, text in replaced.items()]
        found += [argument for argument in missing if argument.keyword not in done]
        if self.reference.building is not None:  # two calls had their own orders
            found.sort(key=lambda one: order.index(one.keyword) if one.keyword else -1)
            if found and found[0].keyword == order[0]:
                found[0] = NewArgument(None, found[0].old, found[0].text)
        return tuple(found)

    def _argument(
        self, row: Row, target: str, index: int | None, value: ast.expr
    ) -> NewArgument | None:
        if row.role == "op":
            return self._operator(target, index, value)
        if row.role == "group":
            return self._group(target, index, value)
        if row.role in ("root", "peer") and isinstance(value, ast.Constant) and value.value is None:
            raise Refused(f"{row.source} is None", row.difference)
        return self._kept(target, index, value)

    def _kept(self, target: str, index: int | None, value: ast.expr) -> NewArgument:
        return NewArgument(target, index, self.text(value) if index is None else None)

    def _drop(self, row: Row, name: str, value: ast.expr) -> None:
        """Leave an argument out that the other side lacks, if that changes nothing."""
        harmless = isinstance(value, ast.Constant) and value.value in (None, False, "", -1)
        if name == _BACKEND:
            self.differences.append("groups.backends")
            self.notes.append("backend is left out: the other dialect chooses one by the device")
        elif row.role in _HINTS:
            self.notes.append(f"{name} is left out: it is a hint for one library")
        elif row.role not in ("output", "in_out", "template", "fixed") and not harmless:
            text = difference_text(row.difference)
            other = self.rule.target.path
            raise Refused(text or f"{other} has no parameter for {name}", row.difference)

    def _operator(self, target: str, index: int | None, value: ast.expr) -> NewArgument:
        self.differences.append("groups.operators")
        found = self.reference_at(value)
        if self.target.dialect == "torch":
            return self._torch_operator(target, index, value, found)
        if found is None or found.path != "torch.distributed.ReduceOp":
            raise Refused("the operator is a variable; its value may be a ReduceOp of torch")
        text = _OPERATORS.get(found.rest)
        if text is None:
            raise Refused(f"MindSpore has no operator {found.rest}", "groups.operators")
        if text == "avg":
            if self._returns_tensors:
                if self.mode != "sync" or self.value("in_out") is None:
                    raise Refused("MindSpore cannot average here; divide the sum yourself")
                self.average, text = True, "sum"
            elif self.target.version != "2.10":
                raise Refused("MindSpore has the operator avg since 2.10; divide the sum yourself")
        self.consumed.append(found)
        return NewArgument(target, index, f'"{text}"')

    def _torch_operator(
        self, target: str, index: int | None, value: ast.expr, found: Reference | None
    ) -> NewArgument:
        name = value.value if isinstance(value, ast.Constant) else None
        if found is not None and found.path == "mindspore.ops.ReduceOp":
            name = _MINDSPORE_OPERATORS.get(found.rest)
            self.consumed.append(found)
        for torch_name, text in _OPERATORS.items():
            if text == name:
                operator = f"«torch.distributed».ReduceOp.{torch_name}"
                return NewArgument(target, index, operator)
        raise Refused("the operator is a variable; its value may be a string")

    def is_world(self, value: ast.expr) -> bool:
        """Tell whether an argument means the group of all ranks."""
        if isinstance(value, ast.Constant):
            world = isinstance(value.value, str) and re.fullmatch(r"\w+_world_group", value.value)
            return value.value is None or bool(world)
        found = self.reference_at(value)
        if found is None or (found.path in _WORLD and found.rest != "WORLD"):
            return False
        if found.path in _WORLD | _WORLD_NAMES:
            self.consumed.append(found)
            return True
        return False

    def _group(self, target: str, index: int | None, value: ast.expr) -> NewArgument | None:
        if self.is_world(value):
            self.differences.append("groups.world")
            return None
        self.differences.append("groups.object-or-name")
        if self.target.dialect == "torch":
            if isinstance(value, ast.Constant):
                raise Refused(
                    "the group is a name; torch needs the object", "groups.object-or-name"
                )
            if "mindspore.communication.create_group" in self.program.paths:
                raise Refused(
                    "the group may be a name that create_group got", "groups.object-or-name"
                )
        elif self._returns_tensors and may_be_none(value, self.file.scopes):
            name = text = self.text(value)
            if not is_pure(value):
                name = self.file.fresh_name("group")
                text = f"({name} := {text})"
            text = f"{name} if {text} is not None else {_WORLD_GROUP}"
            return NewArgument(target, index, text)
        return self._kept(target, index, value)

    def _check_lists(self) -> None:
        """Refuse lists that only one rank has: mint's gather and scatter need them on all."""
        for name, difference in (
            ("gather_list", "gather.list-everywhere"),
            ("scatter_list", "scatter.full-shape-everywhere"),
        ):
            if self.rule.source.name != name.partition("_")[0]:
                continue
            value = self.given.get(name, (0, None))[1]
            if value is None or may_be_none(value, self.file.scopes):
                raise Refused(
                    f"{name} may be None on some ranks, and mint needs it on all", difference
                )
            if isinstance(value, ast.Name):
                home = self.file.scopes.scope_of[value].find(value.id)
                kinds = {binding.kind for binding in home.bindings[value.id]} if home else set()
                if kinds != {"assignment"}:
                    raise Refused(f"{name} is not known to be a list on all ranks", difference)
