"""Decide for every use of a dialect in a file what becomes of it in the other."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator

from unisono import mapping
from unisono.port.gradients.forward_pass import function_with_gradient, gradient_difference
from unisono.port.gradients.from_functional import plan_from_functional
from unisono.port.gradients.to_functional import plan_to_functional
from unisono.port.plan import Action, Decision, Plan
from unisono.port.primitives.constructors import Constructors
from unisono.port.primitives.to_ops import Buildings
from unisono.port.program import Reference, SourceFile, SourceTree, is_module, known_paths
from unisono.port.rules import Rule, Target, difference_text, rule_for
from unisono.port.scopes import Binding
from unisono.port.site import Refused, Site, given_arguments
from unisono.port.to_mindspore import plan_to_mindspore
from unisono.port.to_torch import plan_to_torch

__all__ = ["decide", "explain", "other_dialect"]

_GROUP = "torch.distributed.ProcessGroup"


def other_dialect(reference: Reference, target: Target | None) -> Target | None:
    """Return where a use goes: to the target, or to the other dialect; None if it is there."""
    if target is None or not target.dialect:
        name = "mindspore" if reference.dialect == "torch" else "torch"
        return Target.parse(name, target.version if target is not None else None)
    return None if target.dialect == reference.dialect else target


def decide(program: SourceTree, file: SourceFile, target: Target | None) -> list[Decision]:
    """Decide on all uses in a file; those that are arguments of others go with them.

    Without a target each use goes to the other dialect. Uses of the target's own dialect are not
    in the list. A primitive counts by its calls; if one of them has to stay, all stay.
    """
    stay: dict[Reference, Decision] = {}
    while True:
        decisions = _Round(program, file, stay).decide(target)
        new = {
            decision.reference.building: decision
            for decision in decisions
            if decision.verdict == Action.LEAVE and decision.reference.building is not None
        }
        if new.keys() <= stay.keys():
            break
        stay = {**new, **stay}
    decisions = _together(decisions)
    consumed = {used for decision in decisions for used in decision.consumed}
    return [decision for decision in decisions if decision.reference not in consumed]


class _Round:
    """One round of decisions; `stay` are calls that keep their primitives from being ported."""

    def __init__(
        self, program: SourceTree, file: SourceFile, stay: dict[Reference, Decision]
    ) -> None:
        self.program, self.file, self.stay = program, file, stay
        self.constructors = Constructors(program, file)
        self.buildings = Buildings(program, file)
        file.start_again()

    def decide(self, target: Target | None) -> list[Decision]:
        """Decide on all uses, those inside a call before the call."""
        decisions = []
        for reference in sorted(self.file.references, key=_evaluated):
            there = other_dialect(reference, target)
            primitive = self.file.primitives.get(reference)
            if there is not None and (primitive is None or not primitive.calls):
                decisions.append(self._decide(reference, there))
        decisions = self.constructors.without_building(decisions)
        return sorted(decisions, key=lambda one: _position(one.reference.node))

    def _decide(self, reference: Reference, target: Target) -> Decision:
        differences: list[str] = []
        try:
            self._check(reference)
            if reference.call is None or reference.rest:
                return _value(reference, target, self.file)
            rule = _rule(reference, target)
            site = Site(self.program, self.file, reference, rule, target)
            differences = site.differences
            verdict, reason, plan = self._plan(site)
            return Decision(
                reference,
                verdict,
                reason,
                site.rule.target.path,
                _differences(site.rule, site),
                plan,
                tuple(site.consumed),
            )
        except Refused as refused:
            known = [*differences, *([refused.difference] if refused.difference else [])]
            return Decision(
                reference,
                Action.LEAVE,
                refused.reason,
                _target_path(reference, target),
                tuple(dict.fromkeys(known)),
                consumed=tuple(_values_inside(reference, self.file)),
            )

    def _check(self, reference: Reference) -> None:
        if not _is_where_python_says(reference, self.file):
            raise Refused("it stands inside a formatted text; give its value a name first")
        if reference.through is not None:
            raise Refused(f"it is called through the variable {reference.through!r}")
        self._check_import(reference.binding)
        primitive = self.file.primitives.get(reference)
        if primitive is not None:  # without calls, or they would have been decided on
            raise Refused(primitive.obstacle or "nothing in this file calls the primitive")
        known = self.stay.get(reference.building) if reference.building else None
        if known is not None:
            if known.reference is reference:
                difference = known.differences[-1] if known.differences else None
                raise Refused(known.reason, difference)
            raise Refused("the primitive stays, because another call of it stays")

    def _check_import(self, binding: Binding) -> None:
        """Refuse names of which it is not plain what they mean, and where they can be imported."""
        imports = self.file.imports_of(binding)
        if len({self.program.follow(each.path or "")[0] for each in imports}) > 1:
            raise Refused(
                f"{binding.name!r} is imported from several modules, and the program decides from "
                "which when it runs"
            )
        if binding.name in self.file.scopes.scope_of[binding.node].elsewhere:
            raise Refused(f"a function imports {binding.name!r} for the whole module")

    def _plan(self, site: Site) -> tuple[str, str, Plan]:
        if site.reference.building is not None:
            self.constructors.prepare(site)
        if site.target.dialect == "torch":
            function = function_with_gradient(site)
            if function is None:
                return plan_to_torch(site)
            site.rule = function
            return plan_to_functional(site)
        functional = site.rule.source.style == "functional"
        plan = plan_from_functional if functional else plan_to_mindspore
        if site.target.family == "ops":
            return self.buildings.plan(site, plan)
        return plan(site)


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _evaluated(reference: Reference) -> tuple[int, int]:
    """Return where a use ends: what is inside a call is evaluated before the call."""
    node = reference.call or reference.node
    return node.end_lineno or 0, node.end_col_offset or 0


def _together(decisions: list[Decision]) -> list[Decision]:
    """Leave calls that can only be ported together with one that stays."""
    while True:
        plans = {one.reference.call: one.plan for one in decisions if one.plan is not None}
        kept = [_with_others(one, plans) for one in decisions]
        if kept == decisions:
            return decisions
        decisions = kept


def _with_others(decision: Decision, plans: dict[ast.Call | None, Plan]) -> Decision:
    for call in decision.plan.needs if decision.plan is not None else ():
        other = plans.get(call)
        if other is None or decision.reference.call not in other.needs:
            reason = f"line {call.lineno} puts a handle into the same list, and stays as it is"
            return dataclasses.replace(decision, verdict=Action.LEAVE, reason=reason, plan=None)
    return decision


def _is_where_python_says(reference: Reference, file: SourceFile) -> bool:
    """Tell whether the place of a name is right; before Python 3.12 some in f-strings are not."""
    if not any(isinstance(node, ast.JoinedStr) for node in file.scopes.chain(reference.node)):
        return True
    text = ast.get_source_segment(file.source, reference.node)
    return text is not None and text.startswith(ast.unparse(reference.node))


def _values_inside(reference: Reference, file: SourceFile) -> Iterator[Reference]:
    """Yield operators and groups in the arguments of a call that stays: they stay with it."""
    outer = [reference.call, reference.building.call if reference.building else None]
    for node in (inner for call in outer if call is not None for inner in ast.walk(call)):
        found = file.by_node.get(node)
        if found is not None and found is not reference and found.call is None:
            yield found


def _rule(reference: Reference, target: Target) -> Rule:
    assert reference.call is not None
    calls = mapping.calls()
    given = frozenset[str]()
    if reference.path in calls and reference.building is None:
        upstream = calls[reference.path]
        given = frozenset(given_arguments(reference.call, upstream.parameters, upstream.name))
    rule = rule_for(reference.path, target, given)
    if isinstance(rule, str):
        raise Refused(_below(reference) or rule)
    return rule


def _below(reference: Reference) -> str | None:
    """Return why a name of a module below torch.distributed stays: the table ends above it."""
    parts = reference.path.split(".")
    if reference.path in known_paths() or parts[:2] != ["torch", "distributed"] or len(parts) < 4:
        return None
    module = ".".join(parts[:3])
    return f"the mapping table has what torch.distributed has itself, and not what {module} has"


def _target_path(reference: Reference, target: Target) -> str | None:
    rule = rule_for(reference.path, target, frozenset())
    return rule.target.path if isinstance(rule, Rule) else None


def _differences(rule: Rule, site: Site) -> tuple[str, ...]:
    """Return the differences that matter at this call: of what it passes, and of its result."""
    found = [*site.differences, *gradient_difference(site)]
    for name in site.given:
        row = rule.row(name)
        found += [row.difference] if row.difference else []
    if rule.pair is not None:
        modes = ("async", "any") if site.mode == "async" else ("sync", "any")
        found += [
            result.difference
            for result in rule.pair.results
            if result.difference and result.mode in modes and result.rank != "outside"
        ]
    if rule.primitive is not None:
        found = [name for name in found if name != "groups.tuple-or-handle"]  # it returns no pair
        found += ["broadcast.tuple"] if rule.primitive.name == "Broadcast" else []
    return tuple(dict.fromkeys(found))


def _value(reference: Reference, target: Target, file: SourceFile) -> Decision:
    """Decide on a name that is not called: a function as a value, a constant, a type."""
    if reference.path == _GROUP and not reference.rest and _is_annotation(reference.node, file):
        reason, name = "groups are names in MindSpore", "groups.object-or-name"
        plan = Plan("", values=((reference.node, "str"),))
        return Decision(reference, Action.REWRITE, reason, "str", (name,), plan)
    if is_module(reference.path):
        raise Refused("the module is used as a value, so what is called through it is not known")
    rule = rule_for(reference.path, target, frozenset())
    if isinstance(rule, str):
        named = {name.path: name for entry in mapping.load().values() for name in entry.names}
        if reference.path in named:
            word = reference.path.rpartition(".")[2]
            text = f"{word} is used as a value, and {target.dialect} writes it in another way"
            raise Refused(text, named[reference.path].difference)
        raise Refused(_below(reference) or rule)
    # P2POp takes isend and irecv, and passes them what both sides have.
    if reference.rest or rule.source.name not in ("isend", "irecv") or rule.pair is not None:
        raise Refused("the function is used as a value, so how it is called is not known here")
    reason = "the same function with another name"
    return Decision(reference, Action.REWRITE, reason, rule.target.path, (), Plan(rule.target.path))


def _is_annotation(node: ast.AST, file: SourceFile) -> bool:
    """Tell whether a name says what type something has."""
    for inner, outer in itertools.pairwise(file.scopes.chain(node)):
        if isinstance(outer, ast.arg | ast.AnnAssign):
            return outer.annotation is inner
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return outer.returns is inner
        if isinstance(outer, ast.stmt | ast.Call | ast.Compare):
            return False
    return False


def explain(decision: Decision) -> list[str]:
    """Return the texts of the differences that matter at a call."""
    return [difference_text(name) for name in decision.differences]
