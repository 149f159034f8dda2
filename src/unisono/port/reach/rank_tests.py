"""Tests of the rank: which there are, what is known after one, and which ranks pass it.

A test is put into a form in which the rank is a symbol (see rank_names.py). Names that are assigned
once are replaced by what they are assigned, also `self.name` of a class; calls of the program's own
functions by what these return. A form that has only one symbol, the size of the world and numbers
is evaluated for the ranks of a job of 64, so `rank % 2 == 0` and `rank % 2` are known to exclude
each other, and `local_rank == -1` and `rank < 0` to hold nowhere. Every other form that has a
symbol is a question with two answers that are not known: `rank == source`, `rank in members`.
Forms without a symbol have the same answer on all ranks. Of these, `world_size > 1` and
`is_initialized()` are true: ranks can only wait for each other if there are some.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

__all__ = [
    "Facts",
    "Split",
    "assume_rank",
    "decide",
    "depends_on_rank",
    "has_known_ranks",
    "one_rank",
    "split",
]

_SIZE = 64
_ALL = frozenset(range(_SIZE))
_LARGEST = 10**6
#: Ranks that are surely spread over all these numbers; some groups have one rank.
_KNOWN = ("@rank", "@local_rank")
#: Forms whose answers are kept: each is asked many times.
_KEPT = 4096
#: Stands for every symbol that nothing else is known about.
_ANY = "@"
#: What is known on a path: the ranks that a symbol can be, and the answers of other questions.
Facts = dict[str, bool | frozenset[int]]

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv, ast.BitAnd: operator.and_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
    ast.Not: operator.not_, ast.USub: operator.neg,
}  # fmt: skip
_OPPOSITE = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}


@dataclasses.dataclass(frozen=True)
class Split:
    """What is known on both sides of a test: where it holds, and where it does not.

    `alone` says of each side whether only one rank of the world is there; `group` is the group
    whose ranks are asked, if one is.
    """

    sides: tuple[Facts, Facts]
    alone: tuple[bool, bool]
    group: str | None
    certain: bool


@functools.lru_cache(_KEPT)
def depends_on_rank(form: ast.expr) -> bool:
    """Tell whether a form has a symbol of the rank."""
    return any(isinstance(node, ast.Name) and node.id.startswith("@") for node in ast.walk(form))


def one_rank(rank: int) -> Facts:
    """Return what a rank knows that has the same number in every group."""
    return {_ANY: frozenset({rank})}


def decide(form: ast.expr, facts: Facts) -> bool | None:
    """Return the answer of a test where it is known."""
    key, sense = _atom(form)
    known = facts.get(key)
    if isinstance(known, bool):
        return known == sense
    if isinstance(form, ast.UnaryOp) and isinstance(form.op, ast.Not):
        answer = decide(form.operand, facts)
        return None if answer is None else not answer
    if (found := _passing(form)) is not None:
        ranks = _ranks(facts, found.symbol)
        passing = len(ranks & found.ranks)
        return None if 0 < passing < len(ranks) else passing > 0
    if (of_any_size := _answer_of_any_size(form)) is not None:
        return of_any_size
    if isinstance(form, ast.BoolOp):
        ends = isinstance(form.op, ast.Or)
        parts = [decide(part, facts) for part in form.values]
        if ends in parts:
            return ends
        return None if None in parts else not ends
    return None


def _assume(form: ast.expr, answer: bool, facts: Facts) -> Facts:
    """Return what is known where a test has an answer."""
    if isinstance(form, ast.UnaryOp) and isinstance(form.op, ast.Not):
        return _assume(form.operand, not answer, facts)
    if (found := _passing(form)) is not None:
        ranks = _ranks(facts, found.symbol)
        left = ranks & found.ranks if answer else ranks - found.ranks
        return {**facts, found.symbol: left}
    if isinstance(form, ast.BoolOp) and isinstance(form.op, ast.And) == answer:
        for part in form.values:
            facts = _assume(part, answer, facts)
        return facts
    key, sense = _atom(form)
    return {**facts, key: answer == sense}


def assume_rank(form: ast.expr, answer: bool, facts: Facts) -> Facts:
    """Return what is known of the rank where a test has an answer; other things may change."""
    return _assume(form, answer, facts) if depends_on_rank(form) else facts


def has_known_ranks(form: ast.expr) -> bool:
    """Tell whether it is known which ranks of the world, or of a host, pass a test."""
    found = _passing(form)
    return found is not None and found.symbol in _KNOWN


def split(form: ast.expr, facts: Facts) -> Split | None:
    """Divide the ranks by a test; None if all of them give the same answer.

    Of a test such as `distributed and rank == 0` the parts that are the same on all ranks are
    taken to leave the answer to the rank.
    """
    if not depends_on_rank(form) or decide(form, facts) is not None:
        return None
    if isinstance(form, ast.UnaryOp) and isinstance(form.op, ast.Not):
        inner = split(form.operand, facts)
        if inner is None:
            return None
        return dataclasses.replace(inner, sides=inner.sides[::-1], alone=inner.alone[::-1])
    known = _passing(form)
    if isinstance(form, ast.BoolOp) and known is None:
        return _split_parts(form, facts)
    sides = _assume(form, True, facts), _assume(form, False, facts)
    if known is not None:
        name = known.symbol
        counts = [len(_ranks(side, name)) for side in sides]
        alone = (name == "@rank" and counts[0] == 1, name == "@rank" and counts[1] == 1)
        group = name[6:-1] if name.startswith("@rank(") else None
        return Split(sides, alone, group, certain=name in _KNOWN)
    return Split(sides, (False, False), None, certain=False)


def _split_parts(form: ast.BoolOp, facts: Facts) -> Split | None:
    every = isinstance(form.op, ast.And)
    varying = [part for part in form.values if depends_on_rank(part)]
    others = [part for part in form.values if part not in varying]
    only_rank = all(decide(part, facts) is every for part in others)
    for part in others:
        facts = _assume(part, every, facts)
    for part in varying:
        found = split(part, facts)
        if found is None:
            continue
        sides = list(found.sides)
        here = 0 if every else 1  # the side on which the whole test has the answer of its parts
        for other in varying:
            if other is not part:
                sides[here] = _assume(other, every, sides[here])
        certain = found.certain and only_rank
        return dataclasses.replace(found, sides=(sides[0], sides[1]), certain=certain)
    return None


@functools.lru_cache(_KEPT)
def _atom(form: ast.expr) -> tuple[str, bool]:
    """Return the text of a question, and whether the form asks it or its opposite."""
    if isinstance(form, ast.UnaryOp) and isinstance(form.op, ast.Not):
        key, sense = _atom(form.operand)
        return key, not sense
    if isinstance(form, ast.Compare) and len(form.ops) == 1:
        opposite = _OPPOSITE.get(type(form.ops[0]))
        if opposite is not None:
            return ast.unparse(ast.Compare(form.left, [opposite()], form.comparators)), False
    return ast.unparse(form), True


# ---- evaluation ----------------------------------------------------------------------------------


def _ranks(facts: Facts, name: str) -> frozenset[int]:
    known = facts.get(name, facts.get(_ANY, _ALL))
    assert isinstance(known, frozenset)
    return known


@dataclasses.dataclass(frozen=True)
class _Passing:
    """The ranks that pass a test, and the symbol that stands for them."""

    symbol: str
    ranks: frozenset[int]


@functools.lru_cache(_KEPT)
def _passing(form: ast.expr) -> _Passing | None:
    """Return which ranks pass a test; None if that cannot be evaluated."""
    names = {node.id for node in ast.walk(form) if isinstance(node, ast.Name)} - {"#size", "range"}
    if len(names) != 1 or not (name := names.pop()).startswith("@") or name.startswith("@?"):
        return None
    try:
        ranks = frozenset(rank for rank in _ALL if _value(form, rank))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return _Passing(name, ranks)


@functools.lru_cache(_KEPT)
def _answer_of_any_size(form: ast.expr) -> bool | None:
    """Return the answer of a test that every job with two ranks or more gives, as `size > 1`."""
    names = {node.id for node in ast.walk(form) if isinstance(node, ast.Name)} - {"range"}
    if not names <= {"#size"}:
        return None
    try:
        answers = {bool(_value(form, 0, size)) for size in range(2, _SIZE)}
    except (ArithmeticError, TypeError, ValueError):
        return None
    return answers.pop() if len(answers) == 1 else None


def _value(form: ast.expr, rank: int, size: int = _SIZE) -> Any:
    """Evaluate a form for one rank; ValueError if it has anything but numbers and tests."""
    inner = functools.partial(_value, rank=rank, size=size)
    if isinstance(form, ast.Name):
        return size if form.id == "#size" else rank
    if isinstance(form, ast.Constant) and not isinstance(form.value, bytes):
        if isinstance(form.value, int) and abs(form.value) > _LARGEST:
            raise ValueError
        return form.value
    if isinstance(form, ast.Tuple | ast.List | ast.Set):
        return [inner(item) for item in form.elts]
    if isinstance(form, ast.BoolOp):
        answers = [inner(part) for part in form.values]
        return all(answers) if isinstance(form.op, ast.And) else any(answers)
    if isinstance(form, ast.UnaryOp) and type(form.op) in _OPERATORS:
        return _OPERATORS[type(form.op)](inner(form.operand))
    if isinstance(form, ast.BinOp) and type(form.op) in _OPERATORS:
        return _OPERATORS[type(form.op)](inner(form.left), inner(form.right))
    if isinstance(form, ast.Compare):
        values = [inner(item) for item in (form.left, *form.comparators)]
        return all(
            _OPERATORS[type(each)](one, other)
            for each, one, other in zip(form.ops, values, values[1:], strict=False)
        )
    if isinstance(form, ast.Call) and isinstance(form.func, ast.Name) and form.func.id == "range":
        return range(*(inner(item) for item in form.args))
    raise ValueError
