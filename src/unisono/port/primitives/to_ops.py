"""torch.distributed to MindSpore's primitives: built in `__init__` where that is possible.

A method's call gets a primitive that `__init__` of its class builds, if the arguments of the
constructor are known there: constants, names of the module, attributes that `__init__` itself sets.
All other calls build the primitive where they call it.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable

from unisono.mapping import Argument
from unisono.port.flow import is_pure
from unisono.port.plan import ARGUMENT, Lines, NewArgument, Plan
from unisono.port.primitives.built import (
    bases_of,
    class_of,
    is_free_attribute,
    is_name_set_once,
    may_skip_init,
    may_take_attributes,
    method_of,
    own_attributes,
    self_name,
    set_once,
)
from unisono.port.program import SourceFile, SourceTree
from unisono.port.rules import difference_text
from unisono.port.site import Refused, Site

__all__ = ["Buildings"]

_Planner = Callable[[Site], tuple[str, str, Plan]]
_OPS = "«mindspore.ops»"
_COMM = "«mindspore.communication»"


class Buildings:
    """The primitives that a file gets, each once in a class."""

    def __init__(self, program: SourceTree, file: SourceFile) -> None:
        self.program, self.file = program, file
        self._attributes: dict[tuple[ast.ClassDef, str], str] = {}

    def plan(self, site: Site, for_function: _Planner) -> tuple[str, str, Plan]:
        """Return the verdict, its reason, and the change for one call; or raise Refused.

        `for_function` plans the call of comm_func that does the same.
        """
        target = site.rule.target
        if target.style != "built":
            return for_function(site)
        if site.mode != "sync":
            raise Refused("primitives have no async_op; comm_func and mint have it")
        if target.name == "AlltoAllV":
            raise Refused(difference_text("all_to_all.elements"), "all_to_all.elements")
        verdict, reason, plan = for_function(site)
        return verdict, reason, self._with_primitive(site, plan)

    def _with_primitive(self, site: Site, plan: Plan) -> Plan:
        target = site.rule.target
        given = {argument.keyword: argument for argument in plan.arguments or ()}
        called = [argument.name for argument in target.call_parameters]
        arguments = tuple(
            dataclasses.replace(given[name], keyword=None) for name in called if name in given
        )
        constructor = _constructor(site, given)
        if target.name == "Broadcast":  # which takes a tuple, and returns one
            text = arguments[0].text or _argument_code(site, arguments[0].old)
            arguments = (NewArgument(None, arguments[0].old, f"({text},)"),)
            lines = tuple(line.replace("{call}", "{call}[0]") for line in plan.statements)
            plan = dataclasses.replace(plan, statements=lines)
        callee, later = f"{_OPS}.{target.name}({constructor})", plan.later
        before: tuple[Lines, ...] = ()
        place = self._place(site, set(given) - set(called))
        if place is not None:
            callee, new, after = self._attribute(site, place, callee)
            before, later = (() if after else new), (*later, *(new if after else ()))
        return dataclasses.replace(
            plan, arguments=arguments, callee=callee, before=before, later=later
        )

    # ---- in __init__ ----

    def _attribute(
        self, site: Site, place: tuple[ast.FunctionDef, int], building: str
    ) -> tuple[str, tuple[Lines, ...], bool]:
        """Return what is called, the new line, and whether it stands behind a statement."""
        init, position = place
        home, method = class_of(init, self.file.scopes), method_of(site.call, self.file.scopes)
        assert home is not None and method is not None
        name = self._attributes.get((home, building))
        owner = self_name(method)
        if name is not None:
            return f"{owner}.{name}", (), False
        name = self._free_attribute(site, home)
        self._attributes[home, building] = name
        line = f"{self_name(init)}.{name} = {building}"
        after = position == len(init.body)
        return f"{owner}.{name}", ((init.body[position - after], (line,)),), after

    def _free_attribute(self, site: Site, home: ast.ClassDef) -> str:
        operator = next((found.rest.lower() for found in site.consumed if found.rest), "sum")
        word, count = _in_words(site.rule.target.name), 1
        if operator in ("max", "min", "product"):
            word = f"{word}_{operator}"
        if bases_of(self.program, home) & self.program.classes.keys():
            # A base class of the program may get a primitive too, and must not lose it.
            word = f"{_in_words(home.name)}_{word}"
        taken = {name for (owner, _), name in self._attributes.items() if owner is home}
        name = word
        while name in taken or not is_free_attribute(self.program, name):
            count += 1
            name = f"{word}_{count}"
        return name

    def _place(self, site: Site, names: set[str | None]) -> tuple[ast.FunctionDef, int] | None:
        """Return `__init__` and where in it the primitive can be built, or None."""
        scopes = self.file.scopes
        home, method = class_of(site.call, scopes), method_of(site.call, scopes)
        if home is None or method is None or method.name == "__init__":
            return None
        if scopes.scope_of[site.reference.binding.node] is not scopes.top:
            return None  # the import is that of one function
        init = next((one for one in home.body if getattr(one, "name", "") == "__init__"), None)
        if not isinstance(init, ast.FunctionDef) or self_name(init) is None:
            return None
        if may_skip_init(self.program, home) or not may_take_attributes(self.program, home):
            return None
        if scopes.scope_of[site.call].find(self_name(method) or "") is not scopes.scope_of[method]:
            return None  # a function inside uses the name for something else
        if site.rule.target.name == "Receive" or site.rule.target.fixed:
            return None  # it needs a shape, or the size of the group, which has to exist then
        position = _first_place(init)
        for name, (_, value) in site.given.items():
            if site.rule.row(name).target in names and site.rule.row(name).role != "op":
                known = 0 if site.is_world(value) else self._known_from(value, home, init)
                if known is None:
                    return None
                position = max(position, known)
        return (init, position) if _has_room(init, position) else None

    def _known_from(self, value: ast.expr, home: ast.ClassDef, init: ast.FunctionDef) -> int | None:
        """Return the first statement of `__init__` that can use an argument, or None."""
        scopes = self.file.scopes
        if isinstance(value, ast.Constant):
            return 0
        if isinstance(value, ast.Name):
            scope = scopes.scope_of[value].find(value.id)
            top = scope is scopes.top
            once = top and is_name_set_once(self.program, self.file, scopes.top, value.id)
            return 0 if once else None
        if not isinstance(value, ast.Attribute):
            return None
        if value not in own_attributes(home, value.attr, scopes):
            return None
        statement = set_once(self.program, home, value.attr, scopes)
        return init.body.index(statement) + 1 if statement in init.body else None


def _in_words(name: str) -> str:
    """Write the name of a class as that of an attribute.

    >>> _in_words("AllReduce"), _in_words("AlltoAll")
    ('all_reduce', 'all_to_all')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.replace("Allto", "AllTo")).lower()


def _first_place(init: ast.FunctionDef) -> int:
    """Return the number of the first statement after the text and the start of base classes."""
    position = 0
    for number, statement in enumerate(init.body):
        value = statement.value if isinstance(statement, ast.Expr) else None
        is_text = number == 0 and isinstance(value, ast.Constant)
        if is_text or (isinstance(value, ast.Call) and ".__init__" in ast.unparse(value.func)):
            position = number + 1
    return position


def _has_room(init: ast.FunctionDef, position: int) -> bool:
    """Tell whether a statement can be put there, and every object gets it."""
    lines = [statement.lineno for statement in init.body]
    returns = any(
        isinstance(node, ast.Return) for before in init.body[:position] for node in ast.walk(before)
    )
    return not returns and len({init.lineno, *lines}) == len(lines) + 1


def _constructor(site: Site, given: dict[str | None, NewArgument]) -> str:
    """Return the arguments of the constructor, as text."""
    texts: list[str] = []
    positional = True
    for argument in site.rule.target.parameters:
        text = _argument_text(site, given, argument)
        if text is None or text == '"sum"':  # what every primitive does by itself
            positional = False
        else:
            texts.append(text if positional else f"{argument.name}={text}")
    return ", ".join(texts)


def _argument_text(
    site: Site, given: dict[str | None, NewArgument], argument: Argument
) -> str | None:
    rule, name = site.rule, argument.name
    if name in given:
        return given[name].text or _argument_code(site, given[name].old)
    for fixed in rule.target.fixed_parameters:
        if fixed.name == name:
            size = f"{_COMM}.get_group_size({site.group_text})"
            return size if fixed.default == "N" else fixed.default
    if argument.default is not None:
        return None
    if rule.target.name == "Receive" and name in ("shape", "dtype"):
        tensor = site.value("template")
        if tensor is None or not is_pure(tensor):
            raise Refused("what it receives into is an expression; give it a name first")
        return f"{site.text(tensor)}.{name}"
    source = next(row.source for row in rule.rows if row.target == name)
    return next(each.default for each in rule.source.parameters if each.name == source)


def _argument_code(site: Site, number: int | None) -> str:
    """Return the source of an argument, or where it uses the dialect itself, a mark for it."""
    assert number is not None
    values = [*site.call.args, *(keyword.value for keyword in site.call.keywords)]
    try:
        return site.text(values[number])
    except Refused:
        return ARGUMENT.format(number)
