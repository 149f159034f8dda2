"""Primitives on the way to torch: a call needs the arguments that the constructor got.

Arguments that mean the same at the call are written there. Others are kept where the primitive was
kept: `self.sum = ops.AllReduce(group=group)` becomes `self.sum_group = group`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable

from unisono import mapping
from unisono.port.plan import Decision, Lines
from unisono.port.primitives.built import (
    Primitive,
    class_of,
    is_name_set_once,
    method_of,
    own_attributes,
    self_name,
    set_once,
)
from unisono.port.program import Reference, SourceFile, SourceTree
from unisono.port.site import Refused, Site

__all__ = ["Constructors"]


class Constructors:
    """The primitives of a file, and the arguments that they leave behind."""

    def __init__(self, program: SourceTree, file: SourceFile) -> None:
        self.program, self.file = program, file
        #: By primitive and parameter: the name or attribute that keeps an argument, and its text.
        self._kept: dict[Primitive, dict[str, tuple[str, str]]] = {}

    def prepare(self, site: Site) -> None:
        """Say what stands for the arguments of the constructor at a call; or raise Refused."""
        assert site.reference.building is not None
        primitive = self.file.primitives[site.reference.building]
        if primitive.obstacle is not None:
            raise Refused(primitive.obstacle)
        _check_fixed(site)
        inside = _names_inside(site)
        for name, (index, value) in site.given.items():
            row = site.rule.row(name)
            needed = row.target is not None or name in inside
            if index is None and needed and row.role != "op" and not site.is_world(value):
                site.constructed[value] = self._text(site, primitive, name, value)

    def _text(self, site: Site, primitive: Primitive, name: str, value: ast.expr) -> str:
        text = site.text(value)
        if primitive.place is None or all(
            self._same(name, value, call) for call in primitive.calls
        ):
            return text
        kept = self._kept.setdefault(primitive, {})
        if isinstance(primitive.place, ast.Name):
            if name not in kept:
                kept[name] = (self.file.fresh_name(f"{primitive.place.id}_{name}"), text)
            return kept[name][0]
        if name not in kept:
            kept[name] = (self.file.fresh_name(f"{primitive.place.attr}_{name}"), text)
        method = method_of(site.call, self.file.scopes)
        assert method is not None
        return f"{self_name(method)}.{kept[name][0]}"

    def _same(self, name: str, value: ast.expr, call: Reference) -> bool:
        """Tell whether an expression in the constructor means the same at a call."""
        assert call.call is not None
        scopes = self.file.scopes
        if name == "dtype" and isinstance(value, ast.Attribute):
            value = value.value  # `torch.float32` means the same wherever `torch` does
        if isinstance(value, ast.Attribute):
            return self._is_constant_attribute(value, call.call)
        for node in ast.walk(value):
            if isinstance(node, ast.Name):
                home = scopes.scope_of[node].find(node.id)
                there = scopes.scope_of[call.call].find(node.id)
                if home is None or home is not there:
                    return False
                if not is_name_set_once(self.program, self.file, home, node.id):
                    return False
            elif not isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Load):
                return False
        return True

    def _is_constant_attribute(self, value: ast.Attribute, call: ast.Call) -> bool:
        """Tell whether an expression is an attribute of `self` that only __init__ sets."""
        scopes = self.file.scopes
        home, method = class_of(value, scopes), method_of(call, scopes)
        if home is None or method is None or ast.unparse(value.value) != self_name(method):
            return False
        inside, statement = (
            method_of(value, scopes),
            set_once(self.program, home, value.attr, scopes),
        )
        return (
            value in own_attributes(home, value.attr, scopes)
            and inside is not None
            and statement in inside.body
        )

    # ---- after all calls ----

    def without_building(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Let the statements that build primitives go with the last of their calls."""
        found, done = [], set[Reference]()
        for decision in decisions:
            building, plan = decision.reference.building, decision.plan
            if building is not None and plan is not None:
                consumed = (*decision.consumed, building, *_inside(building, self.file))
                if building not in done:
                    done.add(building)
                    plan = dataclasses.replace(plan, replaced=self._replaced(building))
                decision = dataclasses.replace(decision, plan=plan, consumed=consumed)
            found.append(decision)
        return found

    def _replaced(self, building: Reference) -> tuple[Lines, ...]:
        primitive = self.file.primitives[building]
        if primitive.place is None:
            return ()
        kept = self._kept.get(primitive, {}).values()
        owner = ""
        if isinstance(primitive.place, ast.Attribute):
            owner = f"{ast.unparse(primitive.place.value)}."
        lines = tuple(f"{owner}{name} = {text}" for name, text in kept)
        return ((self.file.scopes.statement(primitive.place), lines),)


def _check_fixed(site: Site) -> None:
    """Refuse a primitive whose settings torch's call does not have."""
    source = site.rule.source
    for argument in source.fixed_parameters:
        value = site.given.get(argument.name, (None, None))[1]
        if argument.default == "N" or value is None:
            continue
        if ast.unparse(value) != argument.default:
            raise Refused(f"torch has {source.name} only with {argument.name}={argument.default}")
    if "group_back" in site.given:
        site.notes.append("group_back is left out: only the backward of MindSpore uses it")


def _names_inside(site: Site) -> set[str]:
    """Return the parameters that are a part of another parameter of the same function."""
    same = mapping.same_function(site.rule.source)
    assert same is not None
    return {
        node.id
        for value in same[1].values()
        for node in ast.walk(value)
        if isinstance(node, ast.Name)
    }


def _inside(building: Reference, file: SourceFile) -> Iterable[Reference]:
    """Yield the names of the dialect in the arguments of a constructor: they go with it."""
    assert building.call is not None
    for node in ast.walk(building.call):
        found = file.by_node.get(node)
        if found is not None and found.building is None and found.call is None:
            yield found
