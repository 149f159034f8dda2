"""From the mapping table to rules: which call becomes which, and how its arguments correspond."""

from __future__ import annotations

import ast
import dataclasses
import functools

from unisono import mapping
from unisono.errors import ArgumentError
from unisono.mapping import Entry, Pair, UpstreamCall

__all__ = ["Row", "Rule", "Target", "difference_text", "rule_for", "with_gradient"]

_FAMILIES = {
    "comm_func": "mindspore.communication.comm_func",
    "mint": "mindspore.mint.distributed",
    "ops": "mindspore.ops",
}
#: Where the table has two counterparts: mint's new_group is called by every rank and returns what
#: can be handed on, as torch's does; create_group is called by members only.
_PREFERRED = {"torch.distributed.new_group": "new_group (mint)"}


@dataclasses.dataclass(frozen=True)
class Target:
    """Where code goes: a dialect, and for MindSpore the module with the collectives."""

    dialect: str  # "torch", "mindspore" or "unisono"; "": for each use the other dialect
    family: str = ""
    version: str = ""

    @classmethod
    def parse(cls, text: str, version: str | None = None) -> Target:
        """Read `torch`, `unisono`, `mindspore`, or `mindspore:` with one of its modules."""
        dialect, _, family = text.partition(":")
        version = _known_version(version)
        if text in ("torch", "unisono"):
            return cls(dialect, version=version)
        if dialect == "mindspore" and family in ("", *_FAMILIES):
            return cls(dialect, family or "comm_func", version)
        known = ", ".join(f"mindspore:{name}" for name in _FAMILIES)
        raise ArgumentError(f"no target {text!r}; there are torch, {known} and unisono")

    @classmethod
    def other(cls, version: str | None = None) -> Target:
        """Return the other dialect, whichever that is."""
        return cls("", version=_known_version(version))

    @property
    def text(self) -> str:
        """Return what a user writes."""
        return f"{self.dialect}:{self.family}" if self.family else self.dialect


def _known_version(version: str | None) -> str:
    """Return this version of MindSpore, or the newest one, if the mapping table has it."""
    version = version or mapping.vocabulary()["checked"]["mindspore"]
    if version not in mapping.vocabulary()["versions"]["mindspore"]:
        known = ", ".join(mapping.vocabulary()["versions"]["mindspore"])
        raise ArgumentError(f"MindSpore {version!r} is not in the mapping table; it has {known}")
    return version


@dataclasses.dataclass(frozen=True)
class Row:
    """One parameter: its name on both sides, None where a side lacks it."""

    role: str
    source: str | None
    target: str | None
    changes: tuple[str, ...] = ()
    difference: str | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """One call and its counterpart."""

    source: UpstreamCall
    target: UpstreamCall
    rows: tuple[Row, ...]
    pair: Pair | None  # of torch and comm_func; None where both sides have torch's shape

    @property
    def same_shape(self) -> bool:
        """Tell whether both sides write into their arguments, or neither returns a tensor."""
        styles = {self.source.style, self.target.style}
        return len(styles) == 1 or styles == {"plain", "built"}

    @property
    def primitive(self) -> UpstreamCall | None:
        """Return the primitive that one side is, if one is."""
        return next((side for side in (self.source, self.target) if side.style == "built"), None)

    def row(self, name: str) -> Row:
        """Return the row of a parameter of the source."""
        return next(row for row in self.rows if row.source == name)

    def returns(self, mode: str) -> str:
        """Return what MindSpore's call returns on a rank that gets the result."""
        assert self.pair is not None
        for result in self.pair.results:
            if result.mode in (mode, "any") and result.rank in ("every", "root"):
                returns = result.mindspore.returns
                return returns.removesuffix("_none") if self.primitive else returns
        return "absent"

    @property
    def shape(self) -> str | None:
        """Return the shape of what MindSpore's call returns."""
        assert self.pair is not None
        return self.pair.results[0].mindspore.shape

    @property
    def only_root(self) -> bool:
        """Tell whether other ranks than the root get something that means nothing."""
        assert self.pair is not None
        return any(
            result.rank == "others" and result.mindspore.value in ("zeros", "undefined")
            for result in self.pair.results
        )


def difference_text(identifier: str | None) -> str:
    """Return the text of a difference."""
    return mapping.differences()[identifier].text.en if identifier else ""


def _paths(entry: Entry) -> set[str]:
    found = {call.path for call in entry.calls} | {name.path for name in entry.names}
    return found | {item.path for item in entry.missing}


@functools.cache
def _entry_of(path: str) -> Entry | None:
    return next(
        (entry for entry in mapping.load().values() if path in _paths(entry)),
        None,
    )


def rule_for(path: str, target: Target, given: frozenset[str]) -> Rule | str:
    """Return the rule for a call of `path` with the arguments `given`, or why there is none."""
    entry = _entry_of(path)
    if entry is None:
        return f"the mapping table does not have {path}"
    for item in entry.missing:
        if item.path == path:
            return item.reason.en
    for named in entry.names:
        if named.path == path:
            return difference_text(named.difference)
    found = _find(path, target, given, entry)
    if isinstance(found, Rule) and target.dialect == "mindspore":
        since = found.target.since
        versions = mapping.vocabulary()["versions"]["mindspore"]
        if since and versions.index(since) > versions.index(target.version):
            return f"{found.target.path} exists since MindSpore {since}, not in {target.version}"
    return found


def _find(path: str, target: Target, given: frozenset[str], entry: Entry) -> Rule | str:
    calls = mapping.calls()
    source = calls[path]
    if source.alias_of:
        rule = _find(source.alias_of, target, given, entry)
        return rule if isinstance(rule, str) else dataclasses.replace(rule, source=source)
    if source.style == "built":
        return _from_primitive(source, target, given, entry)
    if source.dialect == "torch" and source.style == "functional":
        return _from_functional(source, target, given, entry)
    if target.dialect == "mindspore" and target.family == "mint":
        return _by_name(source, _FAMILIES["mint"], entry)
    if target.dialect == "torch" and not path.startswith("mindspore.communication."):
        return _by_name(source, "torch.distributed", entry)
    pairs = [
        pair for pair in entry.pairs if getattr(pair, source.dialect) == path and _fits(pair, given)
    ]
    pairs.sort(key=lambda pair: _rank(pair, source))
    if not pairs:
        return f"the mapping table has no counterpart of {path}"
    pair = pairs[0]
    other = pair.mindspore if source.dialect == "torch" else pair.torch
    if other is None:
        for item in entry.differences:
            if pair.name in item.pairs:
                return item.text.en
        return f"{target.dialect} has no counterpart of {source.name}"
    to_torch = source.dialect == "mindspore"
    rows = tuple(
        Row(
            row.role,
            row.mindspore if to_torch else row.torch,
            row.torch if to_torch else row.mindspore,
            row.changes,
            row.difference,
        )
        for row in pair.parameters
    )
    rule = Rule(source, calls[other], rows, pair)
    return _to_primitive(rule, given, entry) if target.family == "ops" else rule


# ---- primitives ----------------------------------------------------------------------------------


def _from_primitive(
    primitive: UpstreamCall, target: Target, given: frozenset[str], entry: Entry
) -> Rule | str:
    """Make a rule from that for the function that does the same."""
    same = mapping.same_function(primitive)
    if same is None:
        return f"torch.distributed has no call that does what {primitive.name} does"
    rule = _find(same[0].path, target, given, entry)
    if isinstance(rule, str):
        return rule
    names = _names(primitive)
    rows = [dataclasses.replace(row, source=names.get(row.source or "")) for row in rule.rows]
    rows += [Row("fixed", name, None) for name in _others(primitive, names)]
    return dataclasses.replace(rule, source=primitive, rows=tuple(rows))


def _to_primitive(rule: Rule, given: frozenset[str], entry: Entry) -> Rule | str:
    """Put the primitive that does the same in the place of a function of comm_func."""
    if not rule.target.path.startswith(_FAMILIES["comm_func"]):
        return rule
    fitting = [
        call
        for call in entry.calls
        if call.style == "built"
        and (same := mapping.same_function(call))
        and same[0].path == rule.target.path
    ]
    if not fitting:
        return f"MindSpore has no primitive for {rule.source.name}; comm_func and mint have a call"
    rules = [_with_primitive(rule, primitive) for primitive in fitting]
    return min(rules, key=lambda one: sum(one.row(name).target is None for name in given))


def _with_primitive(rule: Rule, primitive: UpstreamCall) -> Rule:
    names = _names(primitive)
    rows = []
    for row in rule.rows:
        target = names.get(row.target or "")
        kept = [key for key in row.changes if target or key != "tensors_to_shapes"]
        rows.append(dataclasses.replace(row, target=target, changes=tuple(kept)))
    rows += [Row("fixed", None, name) for name in _others(primitive, names)]
    return dataclasses.replace(rule, target=primitive, rows=tuple(rows))


def _names(call: UpstreamCall) -> dict[str, str]:
    """Return a call's names for the parameters of the function that does the same."""
    same = mapping.same_function(call)
    if same is None:
        return {argument.name: argument.name for argument in call.parameters}
    return {name: value.id for name, value in same[1].items() if isinstance(value, ast.Name)}


def _others(primitive: UpstreamCall, names: dict[str, str]) -> list[str]:
    """Return the parameters of a primitive that the function does not have."""
    every = (*primitive.parameters, *primitive.call_parameters)
    return [argument.name for argument in every if argument.name not in names.values()]


# ---- torch's functions that return their results -------------------------------------------------


def _from_functional(
    source: UpstreamCall, target: Target, given: frozenset[str], entry: Entry
) -> Rule | str:
    """Make a rule from that for the call with the same name that writes in place."""
    if target.family == "mint":
        return "mint's calls write in place and have no gradient; mindspore:comm_func has one"
    there = dataclasses.replace(target, family="comm_func")
    rule = _find(f"torch.distributed.{source.name}", there, given, entry)
    if isinstance(rule, str):
        return rule
    own, names = {argument.name for argument in source.parameters}, _names(source)
    rows = []
    for row in rule.rows:
        name = names.get(row.target or "") or (row.source if row.source in own else None)
        rows.append(dataclasses.replace(row, source=name))
    rule = dataclasses.replace(rule, source=source, rows=tuple(rows))
    return _to_primitive(rule, given, entry) if target.family == "ops" else rule


def with_gradient(rule: Rule) -> Rule | None:
    """Return the rule for torch's function that returns its result and has the same gradient."""
    source, same = rule.source, mapping.same_function(rule.source)
    path = same[0].path if same else source.path
    for call in mapping.calls().values():
        there = mapping.same_function(call) if call.dialect == "torch" else None
        if there is None or there[0].path != path or call.gradient != source.gradient:
            continue
        assert rule.pair is not None
        here, names = _names(source), _names(call)
        rows = [
            Row(row.role, here.get(row.mindspore), names.get(row.mindspore), row.changes)
            for row in rule.pair.parameters
            if row.mindspore
        ]
        rows += [row for row in rule.rows if row.role == "fixed"]
        return dataclasses.replace(rule, target=call, rows=tuple(rows))
    return None


# ---- choosing ------------------------------------------------------------------------------------


def _fits(pair: Pair, given: frozenset[str]) -> bool:
    """Tell whether a pair is meant: destroy_process_group with a group is another call."""
    if pair.name in ("release", "destroy_group") and pair.torch:
        return ("group" in given) == (pair.name == "destroy_group")
    return True


def _rank(pair: Pair, source: UpstreamCall) -> int:
    if _PREFERRED.get(source.path) == pair.name:
        return 0
    if source.dialect == "mindspore" and any(
        "list_to_tensor" in r.changes for r in pair.parameters
    ):
        return 2  # the counterpart that takes one tensor is nearer than that with a list
    return 1


def _by_name(source: UpstreamCall, module: str, entry: Entry) -> Rule | str:
    """Make a rule for two modules of torch's shape: the same names mean the same."""
    found = mapping.calls().get(f"{module}.{source.name}")
    if found is None:
        nearest = [item.text.en for item in entry.differences if source.name in item.pairs]
        return nearest[0] if nearest else f"{module} has no {source.name}"
    roles = {
        name: row
        for pair in entry.pairs
        for row in pair.parameters
        for name in (row.torch, row.mindspore)
        if name
    }
    names = {argument.name for argument in found.parameters}
    rows = []
    for argument in source.parameters:
        known = roles.get(argument.name)
        same = argument.name if argument.name in names else None
        role = known.role if known else "setting"
        difference = known.difference if known else None
        rows.append(Row(role, argument.name, same, () if same else ("drop",), difference))
    rows += [
        Row(roles[name].role if name in roles else "setting", None, name)
        for name in (argument.name for argument in found.parameters)
        if name not in {argument.name for argument in source.parameters}
    ]
    return Rule(source, found, tuple(rows), None)
