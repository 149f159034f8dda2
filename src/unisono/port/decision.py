"""Decide for every use of a dialect in a file what becomes of it in the other."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator

from unisono import mapping
from unisono.port.plan import Action, Decision, Plan
from unisono.port.program import Reference, SourceFile, SourceTree, known_paths
from unisono.port.rules import Rule, Target, difference_text, rule_for
from unisono.port.site import Refused, Site, given_arguments
from unisono.port.to_mindspore import plan_to_mindspore
from unisono.port.to_torch import plan_to_torch

__all__ = ["decide", "explain", "other_dialect"]

_GROUP = "torch.distributed.ProcessGroup"


def other_dialect(reference: Reference, target: Target | None) -> Target | None:
    """Return where a use goes: to the target, or to the other dialect; None if it is there."""
    if target is None:
        name = "mindspore" if reference.dialect == "torch" else "torch"
        return Target.parse(name)
    return None if target.dialect == reference.dialect else target


def decide(program: SourceTree, file: SourceFile, target: Target | None) -> list[Decision]:
    """Decide on all uses in a file; those that are arguments of others go with them.

    Without a target each use goes to the other dialect. Uses of the target's own dialect are not
    in the list.
    """
    decisions = []
    for reference in file.references:
        there = other_dialect(reference, target)
        if there is not None:
            decisions.append(_decide(program, file, reference, there))
    decisions = _together(decisions)
    consumed = {used for decision in decisions for used in decision.consumed}
    return [decision for decision in decisions if decision.reference not in consumed]


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


def _decide(
    program: SourceTree, file: SourceFile, reference: Reference, target: Target
) -> Decision:
    differences: list[str] = []
    try:
        if not _is_where_python_says(reference, file):
            raise Refused("it stands inside a formatted text; give its value a name first")
        if reference.through is not None:
            raise Refused(f"it is called through the variable {reference.through!r}")
        if reference.call is None or reference.rest:
            return _value(reference, target, file)
        rule = _rule(reference, target)
        site = Site(program, file, reference, rule, target)
        differences = site.differences
        plan_for = plan_to_torch if target.dialect == "torch" else plan_to_mindspore
        verdict, reason, plan = plan_for(site)
        return Decision(
            reference,
            verdict,
            reason,
            rule.target.path,
            _differences(rule, site),
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
            consumed=tuple(_values_inside(reference, file)),
        )


def _is_where_python_says(reference: Reference, file: SourceFile) -> bool:
    """Tell whether the place of a name is right; before Python 3.12 some in f-strings are not."""
    if not any(isinstance(node, ast.JoinedStr) for node in file.scopes.chain(reference.node)):
        return True
    text = ast.get_source_segment(file.source, reference.node)
    return text is not None and text.startswith(ast.unparse(reference.node))


def _values_inside(reference: Reference, file: SourceFile) -> Iterator[Reference]:
    """Yield operators and groups in the arguments of a call that stays: they stay with it."""
    for node in ast.walk(reference.call) if reference.call is not None else ():
        found = file.by_node.get(node)
        if found is not None and found is not reference and found.call is None:
            yield found


def _rule(reference: Reference, target: Target) -> Rule:
    assert reference.call is not None
    calls = mapping.calls()
    given = frozenset[str]()
    if reference.path in calls:
        given = frozenset(given_arguments(reference.call, calls[reference.path]))
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
    found = list(site.differences)
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
    return tuple(dict.fromkeys(found))


def _value(reference: Reference, target: Target, file: SourceFile) -> Decision:
    """Decide on a name that is not called: a function as a value, a constant, a type."""
    if reference.path == _GROUP and not reference.rest and _is_annotation(reference.node, file):
        reason, name = "groups are names in MindSpore", "groups.object-or-name"
        plan = Plan("", elsewhere=((reference.node, "str"),))
        return Decision(reference, Action.REWRITE, reason, "str", (name,), plan)
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
