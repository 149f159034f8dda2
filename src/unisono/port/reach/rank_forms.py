"""Put a test into the form that rank_tests.py understands: what it asks about the rank."""

from __future__ import annotations

import ast
import copy
from collections.abc import Set

from unisono.port.program import SourceFile
from unisono.port.reach.definitions import Definition, Definitions, same_code
from unisono.port.reach.rank_names import environment_form, name_form, symbol
from unisono.port.reach.rank_tests import depends_on_rank
from unisono.port.scopes import Binding

__all__ = ["RankForms"]

#: Names that are replaced by their values one after the other.
_DEPTH = 8
_SIZES = {"get_world_size", "get_group_size"}
_STARTED = {"is_available", "is_initialized"}
_LOCAL = {"get_local_rank", "get_node_local_rank"}
_PARTS = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.Set,
)  # fmt: skip
#: A name that has such a value is no rank, whatever it is called, unless the value asks for one.
_NO_RANKS = (ast.Constant, ast.UnaryOp, ast.Compare, ast.BoolOp)
_NUMBERS = {"abs", "min", "max"}
#: What a `rank` that is counted in dimensions comes from.
_DIMENSIONS = {"dim", "len", "ndim", "ndimension"}
_Given = dict[str, ast.expr]


class RankForms:
    """The forms of the expressions of a program.

    What a function returns that communicates itself (`communicating`) is taken to be the same on
    all ranks: they have agreed on it.
    """

    def __init__(self, definitions: Definitions, communicating: Set[ast.AST]) -> None:
        self._definitions, self._communicating = definitions, communicating
        self._known: dict[ast.expr, ast.expr] = {}
        self._answers: dict[tuple[ast.AST, str], ast.expr | None] = {}
        self._depth = 0

    def form(self, node: ast.expr, file: SourceFile, given: _Given | None = None) -> ast.expr:
        """Return the form of an expression; `given` are the arguments of its function."""
        if not given and node in self._known:
            return self._known[node]
        if self._depth >= _DEPTH:
            return node
        self._depth += 1
        try:
            found = self._form(node, file, given or {})
        finally:
            self._depth -= 1
        if not given:
            self._known[node] = found
        return found

    def _form(self, node: ast.expr, file: SourceFile, given: _Given) -> ast.expr:
        if (found := environment_form(node)) is not None:
            return found
        if isinstance(node, ast.Name):
            return self._name(node, file, given)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, file)
        if isinstance(node, ast.Call):
            return self._call(node, file, given)
        if isinstance(node, ast.NamedExpr):
            return self.form(node.value, file, given)
        if isinstance(node, ast.IfExp):
            return self._either(node, file, given)
        if isinstance(node, _PARTS):
            return _without_texts(self._rebuilt(node, file, given))
        return node

    def _rebuilt(self, node: ast.expr, file: SourceFile, given: _Given) -> ast.expr:
        made = copy.copy(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(made, field, self.form(value, file, given))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                setattr(made, field, [self.form(item, file, given) for item in value])
        return made

    def _either(self, node: ast.IfExp, file: SourceFile, given: _Given) -> ast.expr:
        """Of `get_rank() if initialized else 0` take the part about the rank."""
        if depends_on_rank(self.form(node.test, file, given)):
            return symbol(f"@?{ast.unparse(node)}")
        return self._one_of([node.body, node.orelse], node, file, given)

    def _one_of(
        self, values: list[ast.expr], whole: ast.expr, file: SourceFile, given: _Given
    ) -> ast.expr:
        """Return the one form about the rank that an expression can have; others are constant."""
        forms = [self.form(value, file, given) for value in values]
        varying = {ast.unparse(form): form for form in forms if depends_on_rank(form)}
        if not varying:
            return whole
        plain = all(_is_constant(form) for form in forms if not depends_on_rank(form))
        if len(varying) == 1 and plain:
            return varying.popitem()[1]
        return symbol(f"@?{ast.unparse(whole)}")

    # ---- names ----

    def _name(self, node: ast.Name, file: SourceFile, given: _Given) -> ast.expr:
        by_name = name_form(node.id)
        home = file.scopes.scope_of[node].find(node.id) if node in file.scopes.scope_of else None
        if home is None:
            found = self._definitions.find(node, file)
            return self._defined(found, by_name or node)
        bindings = home.bindings[node.id]
        kinds = {binding.kind for binding in bindings}
        if kinds == {"loop"}:
            return node
        if kinds == {"parameter"} and node.id in given:
            return given[node.id]
        if "import" in kinds:
            return self._defined(self._definitions.find(node, file), by_name or node)
        values = [
            Definition(file, value) for each in bindings if (value := _value_of(each)) is not None
        ]
        return self._assigned(values, len(values) == len(bindings), by_name, node)

    def _defined(self, found: Definition | None, otherwise: ast.expr) -> ast.expr:
        if found is None or not isinstance(found.node, ast.expr):
            return otherwise
        form = self.form(found.node, found.file)
        return form if depends_on_rank(form) else otherwise

    def _assigned(
        self,
        values: list[Definition],
        complete: bool,
        by_name: ast.expr | None,
        node: ast.expr,
    ) -> ast.expr:
        """Return the form of a name by its values, or by what the name says."""
        forms = [
            self.form(each.node, each.file) for each in values if isinstance(each.node, ast.expr)
        ]
        if complete and len(forms) == 1:
            if depends_on_rank(forms[0]) or _is_size(forms[0]):
                return forms[0]
            if isinstance(values[0].node, _NO_RANKS) or _counts_dimensions(values[0].node):
                return node
        if by_name is not None:
            return by_name
        varies = any(map(depends_on_rank, forms))
        return symbol(f"@?{ast.unparse(node)}") if varies else node

    def _attribute(self, node: ast.Attribute, file: SourceFile) -> ast.expr:
        by_name = name_form(node.attr)
        owner = self._definitions.owner(node.value, file)
        if owner is None:
            return self._defined(self._definitions.find(node, file), by_name or node)
        member = self._definitions.member(owner, node.attr)
        if member is not None:
            found = self._returned(member, {}) if member.is_property else None
            return found or by_name or node
        values = self._definitions.attribute(owner, node.attr)
        return self._assigned(values, bool(values), by_name, node)

    # ---- calls ----

    def _call(self, node: ast.Call, file: SourceFile, given: _Given) -> ast.expr:
        name = _last_word(node.func)
        if name in ("int", "bool") and len(node.args) == 1:
            return self.form(node.args[0], file, given)
        if name == "range":
            return self._rebuilt(node, file, given)
        if name in _NUMBERS and isinstance(node.func, ast.Name):
            forms = [self.form(each, file, given) for each in node.args]
            return symbol(f"@?{ast.unparse(node)}") if any(map(depends_on_rank, forms)) else node
        reference = file.by_node.get(node.func)
        if reference is not None and not reference.rest:
            return self._question(reference.path.rpartition(".")[2], node, file, given)
        target = self._definitions.called(node, file)
        if target is not None:
            form = self._returned(target, self._arguments(node, target, file, given))
            if form is not None:
                return form
        by_name = name_form(name)
        if isinstance(by_name, ast.Name) and by_name.id == "@rank":
            if name == "rank" and isinstance(node.func, ast.Attribute) and not node.args:
                if self._definitions.is_module(node.func.value, file):
                    return by_name
                return symbol(f"@rank({ast.unparse(node.func.value)})")
            return self._rank_in(node, file, given)
        return by_name or node

    def _question(self, name: str, node: ast.Call, file: SourceFile, given: _Given) -> ast.expr:
        """Return the form of a question of either dialect."""
        if name == "get_rank":
            return self._rank_in(node, file, given)
        if name in _LOCAL:
            return symbol("@local_rank")
        if name in _STARTED:
            return ast.Constant(True)
        if name in _SIZES and not node.args and not node.keywords:
            return symbol("#size")
        return node

    def _rank_in(self, node: ast.Call, file: SourceFile, given: _Given) -> ast.expr:
        """Return the rank that a call asks for: in the world, or in the group that it names."""
        values = [*node.args, *(word.value for word in node.keywords if word.arg == "group")]
        form = self.form(values[0], file, given) if values else ast.Constant(None)
        text = ast.unparse(form)
        if text == "None" or text.endswith((".WORLD", "_WORLD_COMM_GROUP")):
            return symbol("@rank")
        return symbol("@rank" if depends_on_rank(form) else f"@rank({text})")

    def _arguments(
        self, call: ast.Call, target: Definition, file: SourceFile, given: _Given
    ) -> _Given:
        found = {}
        for name, value, where in self._definitions.arguments(call, target, file):
            found[name] = self.form(value, where, given if where is file else None)
        return found

    def _returned(self, target: Definition, given: _Given) -> ast.expr | None:
        """Return the form of what a function of the program returns, if it is about the rank."""
        texts = ",".join(f"{name}={ast.unparse(value)}" for name, value in given.items())
        key = target.node, texts
        if key not in self._answers:
            self._answers[key] = None  # for a function that calls itself
            self._answers[key] = self._answer(target, given)
        return self._answers[key]

    def _answer(self, target: Definition, given: _Given) -> ast.expr | None:
        if isinstance(target.node, ast.Lambda):
            form = self.form(target.node.body, target.file, given)
            return form if depends_on_rank(form) else None
        if target.node in self._communicating:
            return None
        values = [
            node.value
            for node in same_code(target.node)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        if not values:
            return None
        if all(map(_is_constant, values)):
            return self._answered(target, given)
        name = symbol(f"{target.name}()")
        form = self._one_of(values, name, target.file, given)
        return None if form is name else form

    def _answered(self, target: Definition, given: _Given) -> ast.expr | None:
        """Return the test of a function that returns one constant under it, and else another."""
        for node in same_code(target.node):
            if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Return):
                continue
            form = self.form(node.test, target.file, given)
            answer = node.body[0].value
            if depends_on_rank(form) and isinstance(answer, ast.Constant):
                return form if answer.value else ast.UnaryOp(ast.Not(), form)
        return None


def _is_constant(node: ast.expr) -> bool:
    """Tell whether an expression is a number, also a negative one, a text, True, False or None."""
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _value_of(binding: Binding) -> ast.expr | None:
    """Return what an assignment gives to a name, also as one of several."""
    node = binding.node
    if binding.kind == "other" and isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, given in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name) and one.id == binding.name:
                    return given
    return binding.value if binding.kind == "assignment" else None


def _is_size(form: ast.expr) -> bool:
    return isinstance(form, ast.Name) and form.id == "#size"


def _last_word(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _counts_dimensions(node: ast.AST) -> bool:
    word = _last_word(node.func if isinstance(node, ast.Call) else node)
    return word in _DIMENSIONS


def _without_texts(form: ast.expr) -> ast.expr:
    """Compare the rank with numbers: variables of the environment are texts."""
    if isinstance(form, ast.Compare) and depends_on_rank(form):
        form.comparators = [
            ast.Constant(int(item.value))
            if isinstance(item, ast.Constant)
            and isinstance(item.value, str)
            and item.value.lstrip("-").isdecimal()
            else item
            for item in form.comparators
        ]
    return form
