"""Where a program builds communication primitives, and where it calls them.

A primitive is followed if it is called at once, if one assignment gives it to a variable, or if one
assignment in `__init__` gives it to an attribute of `self`; and if nothing but calls uses it.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unisono import mapping
from unisono.port.scopes import Reference, Scope, Scopes

if TYPE_CHECKING:
    from unisono.port.program import SourceFile, SourceTree

__all__ = [
    "Primitive",
    "bases_of",
    "class_of",
    "is_free_attribute",
    "is_name_set_once",
    "may_skip_init",
    "may_take_attributes",
    "method_of",
    "own_attributes",
    "primitives_in",
    "self_name",
    "set_once",
]

_HIDDEN = "the primitive is kept in a way that hides where it is called"
_TWICE = "{!r} gets its value in more than one place, so which primitive is called is not known"
#: Names that a tensor has too, and that programs give to primitives.
_TENSOR_METHODS = {"gather", "max", "mean", "min", "prod", "scatter", "sum"}
#: Methods that decide which attributes an object gets.
_OBJECT_METHODS = {"__getstate__", "__new__", "__reduce__", "__setattr__", "__setstate__"}
_BRANCH = "the primitive is built in a branch or a loop, so which one is called is not known"


@dataclasses.dataclass(frozen=True, eq=False)
class Primitive:
    """A primitive that a file builds, and its calls.

    `place` is the name or the attribute of `self` that keeps it, None if it is called at once.
    `obstacle` says why the program may use it in ways that cannot be seen, or None.
    """

    building: Reference
    place: ast.Name | ast.Attribute | None = None
    calls: tuple[Reference, ...] = ()
    obstacle: str | None = None


def primitives_in(program: SourceTree, file: SourceFile) -> Iterator[Primitive]:
    """Yield the primitives that a file builds; a call belongs to one of them only."""
    known, seen = mapping.calls(), set[ast.Call]()
    for reference in file.references:
        call = known.get(reference.path)
        if call is None or call.style != "built" or reference.rest or reference.call is None:
            continue
        if reference.through is None:
            found = _follow(program, file, reference)
            calls = tuple(each for each in found.calls if each.call not in seen)
            seen |= {each.call for each in calls if each.call is not None}
            yield dataclasses.replace(found, calls=calls)


def _follow(program: SourceTree, file: SourceFile, building: Reference) -> Primitive:
    assert building.call is not None
    parent = file.scopes.parents[building.call]
    if isinstance(parent, ast.Call) and parent.func is building.call:
        return Primitive(building, None, (_called(building, parent),))
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name):
            return _variable(program, file, building, target)
        if isinstance(target, ast.Attribute):
            return _attribute(program, file, building, target)
    return Primitive(building, obstacle=_HIDDEN)


def _called(building: Reference, call: ast.Call) -> Reference:
    return dataclasses.replace(building, node=call.func, call=call, building=building)


def _calls(
    uses: list[ast.expr], building: Reference, file: SourceFile
) -> tuple[tuple[Reference, ...], str | None]:
    """Return the calls among the uses of a primitive, and what else it is used for."""
    calls, obstacle = [], None
    for use in uses:
        parent = file.scopes.parents[use]
        if isinstance(parent, ast.Call) and parent.func is use:
            calls.append(_called(building, parent))
        elif obstacle is None:
            obstacle = f"the program also uses {ast.unparse(use)!r} without calling it"
    return tuple(calls), obstacle


def _variable(
    program: SourceTree, file: SourceFile, building: Reference, target: ast.Name
) -> Primitive:
    scope = file.scopes.scope_of[target].find(target.id)
    if scope is None or isinstance(scope.node, ast.ClassDef):
        return Primitive(building, target, obstacle=_HIDDEN)
    uses: list[ast.expr] = [use for use in scope.uses[target.id] if isinstance(use.ctx, ast.Load)]
    calls, obstacle = _calls(uses, building, file)
    block = file.scopes.parents[file.scopes.statement(target)]
    if len(scope.bindings[target.id]) > 1:
        obstacle = _TWICE.format(target.id)
    elif not isinstance(block, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        obstacle = _BRANCH
    elif scope is file.scopes.top and _is_shared(program, file, target.id):
        obstacle = f"other files, or a text in this one, name {target.id!r}, and may call it"
    return Primitive(building, target, calls, obstacle)


def _attribute(
    program: SourceTree, file: SourceFile, building: Reference, target: ast.Attribute
) -> Primitive:
    scopes, name = file.scopes, target.attr
    method, home = method_of(target, scopes), class_of(target, scopes)
    if method is None or home is None or ast.unparse(target.value) != self_name(method):
        return Primitive(building, target, obstacle=_HIDDEN)
    own = own_attributes(home, name, scopes)
    uses: list[ast.expr] = [use for use in own if isinstance(use.ctx, ast.Load)]
    calls, obstacle = _calls(uses, building, file)
    if len(own) - len(uses) > 1:
        obstacle = _TWICE.format(f"self.{name}")
    elif method.name != "__init__":
        obstacle = f"the primitive is built in {method.name}, not in __init__"
    elif scopes.statement(target) not in method.body:
        obstacle = _BRANCH
    elif scopes.scope_of[building.binding.node] is not scopes.top:
        obstacle = "a function imports what the primitive is built from, for itself alone"
    elif _is_used_elsewhere(program, home, name):
        obstacle = f"code outside the class uses {name!r} too, and may mean this primitive"
    elif _is_shared(program, file, name):
        obstacle = f"a text in this file names {name!r}, and may be used to reach it"
    return Primitive(building, target, calls, obstacle)


def _is_shared(program: SourceTree, file: SourceFile, name: str) -> bool:
    if (file.name, name) in program.passed_on:
        return True
    return any(
        isinstance(node, ast.Constant) and node.value == name for node in file.scopes.parents
    )


# ---- classes -------------------------------------------------------------------------------------


def method_of(node: ast.AST, scopes: Scopes) -> ast.FunctionDef | None:
    """Return the method that a node stands in, also inside functions of the method."""
    chain = scopes.chain(node)
    for inner, outer in itertools.pairwise(chain):
        if isinstance(outer, ast.ClassDef):
            return inner if isinstance(inner, ast.FunctionDef) and self_name(inner) else None
    return None


def class_of(node: ast.AST, scopes: Scopes) -> ast.ClassDef | None:
    """Return the class whose method a node stands in."""
    method = method_of(node, scopes)
    outer = scopes.parents[method] if method is not None else None
    return outer if isinstance(outer, ast.ClassDef) else None


def self_name(method: ast.FunctionDef) -> str | None:
    """Return what a method calls its object, or None if it has none."""
    names = {getattr(decorator, "id", None) for decorator in method.decorator_list}
    given = [*method.args.posonlyargs, *method.args.args]
    return None if not given or names & {"staticmethod", "classmethod"} else given[0].arg


def own_attributes(home: ast.ClassDef, name: str, scopes: Scopes) -> list[ast.Attribute]:
    """Return the uses of an attribute of `self` inside a class."""
    return [
        node
        for node in ast.walk(home)
        if isinstance(node, ast.Attribute)
        and node.attr == name
        and _is_own(node, scopes)
        and class_of(node, scopes) is home
    ]


def _is_own(node: ast.Attribute, scopes: Scopes) -> bool:
    method = method_of(node, scopes)
    if method is None or not isinstance(node.value, ast.Name):
        return False
    home = scopes.scope_of[node.value].find(node.value.id)
    return node.value.id == self_name(method) and home is scopes.scope_of[method]


def may_skip_init(program: SourceTree, home: ast.ClassDef) -> bool:
    """Tell whether a class of the program derives from another without its `__init__`."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and isinstance(owner := file.scopes.parents[node], ast.ClassDef)
        and home.name in bases_of(program, owner)
        and ".__init__(" not in ast.unparse(node)
        for file in program.files
        for node in file.scopes.parents
    )


def may_take_attributes(program: SourceTree, home: ast.ClassDef) -> bool:
    """Tell whether `__init__` of a class can give every object of it another attribute."""
    names = {home.name, *bases_of(program, home)}
    return not any(
        isinstance(node, ast.ClassDef) and node.name in names and _is_particular(node)
        for file in program.files
        for node in file.scopes.parents
    )


def _is_particular(node: ast.ClassDef) -> bool:
    """Tell whether a class has a say in which attributes its objects have, and how they begin."""
    return any(
        (isinstance(inner, ast.Name) and inner.id == "__slots__")
        or (isinstance(inner, ast.Attribute) and inner.attr == "__new__")
        or (isinstance(inner, ast.FunctionDef) and inner.name in _OBJECT_METHODS)
        for inner in ast.walk(node)
    )


def is_name_set_once(program: SourceTree, file: SourceFile, scope: Scope, name: str) -> bool:
    """Tell whether one statement gives a name its value, and no other file sets it either."""
    if not file.scopes.is_bound_once(scope, name):
        return False
    return scope is not file.scopes.top or not any(
        _is_store(node) and not _is_own(node, other.scopes)
        for other, node in program.attributes.get(name, ())
    )


def is_free_attribute(program: SourceTree, name: str) -> bool:
    """Tell whether no object of the program has an attribute or a method with a name."""
    methods = any(
        isinstance(node, ast.FunctionDef) and node.name == name
        for file in program.files
        for node in file.scopes.parents
    )
    return not methods and all(_is_upstream(node, file) for file, node in program.attributes[name])


def set_once(program: SourceTree, home: ast.ClassDef, name: str, scopes: Scopes) -> ast.stmt | None:
    """Return the only statement of the program that sets an attribute of a class."""
    stores = [use for use in own_attributes(home, name, scopes) if _is_store(use)]
    if len(stores) != 1 or _is_used_elsewhere(program, home, name, reads=False):
        return None
    return scopes.statement(stores[0])


def _is_used_elsewhere(
    program: SourceTree, home: ast.ClassDef, name: str, reads: bool = True
) -> bool:
    """Tell whether something outside the class may mean the same attribute."""
    for other, node in program.attributes[name]:
        scopes = other.scopes
        if _is_upstream(node, other) or not (reads or _is_store(node)):
            continue
        if _is_own(node, scopes):
            owner = class_of(node, scopes)
            assert owner is not None
            if owner is home:
                continue
            stores = [use for use in own_attributes(owner, name, scopes) if _is_store(use)]
            if stores and not _are_related(program, owner, home):
                continue
        elif reads and name in _TENSOR_METHODS:
            continue  # if it is not the tensor's, the program ends with an error, not with a result
        elif isinstance(node.value, ast.Name):
            scope = scopes.scope_of[node.value].find(node.value.id)
            if scope and all(each.kind == "import" for each in scope.bindings[node.value.id]):
                continue  # a module
        return True
    return False


def _is_upstream(node: ast.AST, file: SourceFile) -> bool:
    """Tell whether an attribute is a part of a name of a dialect."""
    while isinstance(node, ast.Attribute):
        if node in file.by_node:
            return True
        node = file.scopes.parents[node]
    return False


def _is_store(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _are_related(program: SourceTree, first: ast.ClassDef, second: ast.ClassDef) -> bool:
    """Tell whether one of two classes derives from the other, as far as names tell."""
    return second.name in bases_of(program, first) or first.name in bases_of(program, second)


def bases_of(program: SourceTree, home: ast.ClassDef) -> set[str]:
    """Return the names of all classes that a class derives from, as far as the program has them."""
    found: set[str] = set()
    pending = [home.name]
    while pending:
        for bases in program.classes.get(pending.pop(), ()):
            pending += bases - found
            found |= bases
    return found
