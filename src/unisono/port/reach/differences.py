"""Where the sequences of two kinds of ranks part."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence

from unisono.port.reach.collective_calls import MadeCollective
from unisono.port.reach.rank_tests import Split
from unisono.port.reach.sequence_items import Choice, Item, Leave, Loop, choice, collectives, key

__all__ = ["Missed", "differences"]


_Way = tuple[object, ...] | None


@dataclasses.dataclass(frozen=True)
class Missed:
    """A collective that ranks of one side make, and the others do not, or not then.

    `unconditional` says that nothing but the rank decides whether it is made.
    """

    collective: MadeCollective
    unconditional: bool


def differences(
    passed: Sequence[Item], failed: Sequence[Item], found: Split, unconditional: bool = True
) -> Iterator[Missed]:
    """Yield the collectives of one side in each place at which two sequences part.

    Choices with the same test, and loops, are compared inside. They do not part if each has the
    same collectives on all its ways.
    """
    while passed and failed and key(passed[0]) == key(failed[0]):
        passed, failed = passed[1:], failed[1:]
    ways = [
        _only_way(_concerned(items, found, side)) for side, items in enumerate((passed, failed))
    ]
    if ways[0] is not None and ways[0] == ways[1]:
        return
    keys = [[key(item) for item in side] for side in (passed, failed)]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for what, begin, end, other_begin, other_end in matcher.get_opcodes():
        if what == "equal":
            continue
        parts = passed[begin:end], failed[other_begin:other_end]
        one, other = parts[0][:1], parts[1][:1]
        if one and other and _alike(one[0], other[0]):
            yield from _inside(one[0], other[0], found)
            parts = parts[0][1:], parts[1][1:]
        for side, items in enumerate(parts):
            rest = (failed[other_begin:], passed[begin:])[side]
            made = [_first([item], found, side) for item in items]
            made += [_first(rest, found, 1 - side)] if _may_leave(items) else []
            for reported in filter(None, made):
                certain = unconditional and any(item is reported for item in items)
                yield Missed(reported, certain)
            if any(made):
                break


def _only_way(items: Sequence[Item], after: _Way = ()) -> _Way:
    """Return what is made on every way through a sequence; None if that depends on tests."""
    way = after
    for item in reversed(items):
        if isinstance(item, Leave):
            way = ()
        elif isinstance(item, Choice):
            first = _only_way(item.first, way)
            way = first if first == _only_way(item.second, way) else None
        elif isinstance(item, Loop) and _may_leave(item.body):
            way = None
        elif way is not None:
            way = (key(item), *way)
    return way


def _alike(one: Item, other: Item) -> bool:
    if isinstance(one, Choice) and isinstance(other, Choice):
        return one.test == other.test
    return isinstance(one, Loop) and isinstance(other, Loop)


def _inside(one: Item, other: Item, found: Split) -> Iterator[Missed]:
    if isinstance(one, Choice) and isinstance(other, Choice):
        yield from differences(one.first, other.first, found, False)
        yield from differences(one.second, other.second, found, False)
    elif isinstance(one, Loop) and isinstance(other, Loop):
        # A rank that leaves the loop misses what comes in the next round.
        for body, rest in ((one.body, other.body), (other.body, one.body)):
            if _may_leave(body[-1:]) and not _may_leave(rest[-1:]):
                side = 0 if rest is one.body else 1
                if (missed := _first(rest, found, side)) is not None:
                    yield Missed(missed, False)
                    return
        yield from differences(one.body, other.body, found, False)


def _is_concerned(made: MadeCollective, found: Split, side: int) -> bool:
    """Tell whether ranks of the other side must make a collective too."""
    return made.group is None or found.alone[side] or made.group == found.group


def _first(items: Sequence[Item], found: Split, side: int) -> MadeCollective | None:
    """Return the first collective that ranks of the other side must make too."""
    made = (each for each in collectives(items) if _is_concerned(each, found, side))
    return next(made, None)


def _concerned(items: Sequence[Item], found: Split, side: int) -> list[Item]:
    """Leave out the collectives that ranks of the other side need not make."""
    kept: list[Item] = []
    for item in items:
        if isinstance(item, Choice):
            first = _concerned(item.first, found, side)
            kept += choice(item.form, first, _concerned(item.second, found, side))
        elif isinstance(item, Loop):
            body = _concerned(item.body, found, side)
            kept += [Loop(tuple(body))] if body else []
        elif not isinstance(item, MadeCollective) or _is_concerned(item, found, side):
            kept.append(item)
    return kept


def _may_leave(items: Sequence[Item]) -> bool:
    return any(
        _may_leave((*item.first, *item.second))
        if isinstance(item, Choice)
        else _may_leave(item.body)
        if isinstance(item, Loop)
        else isinstance(item, Leave) and item.kind != "raise"
        for item in items
    )
