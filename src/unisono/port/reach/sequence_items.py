"""What a sequence of collectives consists of: collectives, choices, loops, points of leaving."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

from unisono.port.reach.collective_calls import MadeCollective, makes_group
from unisono.port.reach.rank_tests import Facts, decide, depends_on_rank

__all__ = [
    "Choice",
    "Item",
    "Leave",
    "Loop",
    "Whole",
    "choice",
    "collectives",
    "decided",
    "key",
    "leaves",
    "mapped",
    "may_return",
    "only_raises",
    "summed_up",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """A test whose answer is not known, and what is made in both cases."""

    form: ast.expr
    first: tuple[Item, ...]
    second: tuple[Item, ...]

    @functools.cached_property
    def test(self) -> str:
        """Return the text of the test."""
        return ast.unparse(self.form)


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """What is made in each round of a loop."""

    body: tuple[Item, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Leave:
    """A point at which code leaves its block: return, raise, break, continue."""

    kind: str


@dataclasses.dataclass(frozen=True, eq=False)
class Whole:
    """All that a long function makes, or one that calls itself."""

    function: ast.AST
    first: MadeCollective | None


Item = MadeCollective | Choice | Loop | Leave | Whole


def key(item: Item) -> object:
    """Return what two items must have in common so that ranks can meet there."""
    if isinstance(item, MadeCollective):
        return item.path, item.group is not None
    if isinstance(item, Choice):
        return item.test, tuple(map(key, item.first)), tuple(map(key, item.second))
    if isinstance(item, Loop):
        return "loop", tuple(map(key, item.body))
    return item.kind if isinstance(item, Leave) else item.function


def collectives(items: Iterable[Item]) -> list[MadeCollective]:
    """Return all collectives of a sequence, in order."""
    found: list[MadeCollective] = []
    for item in items:
        if isinstance(item, MadeCollective):
            found.append(item)
        elif isinstance(item, Choice):
            found += collectives((*item.first, *item.second))
        elif isinstance(item, Loop):
            found += collectives(item.body)
        elif isinstance(item, Whole) and item.first is not None:
            found.append(item.first)
    return found


def leaves(items: Sequence[Item]) -> bool:
    """Tell whether a sequence always leaves its block."""
    last = items[-1] if items else None
    if isinstance(last, Choice):
        return leaves(last.first) and leaves(last.second)
    return isinstance(last, Leave)


def may_return(items: Iterable[Item]) -> bool:
    """Tell whether a sequence has a point at which the function returns."""
    for item in items:
        if isinstance(item, Leave) and item.kind == "return":
            return True
        if isinstance(item, Choice) and may_return((*item.first, *item.second)):
            return True
        if isinstance(item, Loop) and may_return(item.body):
            return True
    return False


def _has_content(items: Iterable[Item]) -> bool:
    return any(
        _has_content((*item.first, *item.second)) if isinstance(item, Choice) else True
        for item in items
    )


def only_raises(items: Sequence[Item]) -> bool:
    """Tell whether a sequence does nothing but raise."""
    return len(items) == 1 and isinstance(items[0], Leave) and items[0].kind == "raise"


def choice(form: ast.expr, first: Sequence[Item], second: Sequence[Item]) -> list[Item]:
    """Join two branches; one that raises is not taken by a program that goes on."""
    for one, other in ((first, second), (second, first)):
        if only_raises(one):
            return list(other)
    if not _has_content(first) and not _has_content(second):
        return []
    if list(map(key, first)) == list(map(key, second)):
        return list(first)
    return [Choice(form, tuple(first), tuple(second))]


def decided(
    form: ast.expr, first: Sequence[Item], second: Sequence[Item], facts: Facts
) -> list[Item]:
    """Return the branch that a test takes, or both where its answer is not known."""
    answer = decide(form, facts)
    if answer is not None:
        return list(first if answer else second)
    return choice(form, first, second)


def summed_up(items: Iterable[Item], under_test: bool = False) -> tuple[Item, ...]:
    """Leave out the points at which code leaves, and what only some ranks make.

    A group under a test is left out too: functions keep groups that they have made once.
    """
    found: list[Item] = []
    for item in items:
        if isinstance(item, Choice):
            first, second = summed_up(item.first, True), summed_up(item.second, True)
            if depends_on_rank(item.form):
                found += min(first, second, key=lambda side: len(collectives(side)))
            elif first or second:
                found.append(dataclasses.replace(item, first=first, second=second))
        elif isinstance(item, Loop):
            body = summed_up(item.body, under_test)
            found += [Loop(body)] if body else []
        elif isinstance(item, MadeCollective) and under_test and makes_group(item.path):
            continue
        elif not isinstance(item, Leave):
            found.append(item)
    return tuple(found)


def mapped(
    items: Iterable[Item],
    change: Callable[[MadeCollective], MadeCollective],
    arguments: dict[str, ast.expr],
    facts: Facts,
) -> list[Item]:
    """Return what a function makes as its caller sees it: tests of arguments may be decided."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, MadeCollective):
            found.append(change(item))
        elif isinstance(item, Choice):
            form = _Arguments(arguments).visit(copy.deepcopy(item.form))
            first = mapped(item.first, change, arguments, facts)
            second = mapped(item.second, change, arguments, facts)
            found += decided(form, first, second, facts)
        elif isinstance(item, Loop):
            found.append(Loop(tuple(mapped(item.body, change, arguments, facts))))
        elif isinstance(item, Whole) and item.first is not None:
            found.append(dataclasses.replace(item, first=change(item.first)))
        else:
            found.append(item)
    return found


class _Arguments(ast.NodeTransformer):
    """Replaces parameters by arguments."""

    def __init__(self, arguments: dict[str, ast.expr]) -> None:
        self._arguments = arguments

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._arguments.get(node.id, node)
