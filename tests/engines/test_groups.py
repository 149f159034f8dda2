"""The conformance suite, part 2: subgroups, one after the other, side by side and from threads."""

from __future__ import annotations

import contextlib
import random
import threading

from tests.helpers import cases
from tests.helpers.cases import Case
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group

VERBS = cases.MOVES + cases.REDUCTIONS


def split_all(group: Group, memberships: list[list[int]]) -> list[Group]:
    """Every rank makes every group, in the same order, as torch's new_group asks."""
    return [group.split(members) for members in memberships]


def draw_memberships(seed: int, size: int, number: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.sample(range(size), draw.randint(1, size)) for _ in range(number)]


def every_verb(group: Group, salt: int) -> None:
    """All collectives on a group of which this rank may or may not be a member."""
    if group.rank < 0:
        return
    for index, verb in enumerate(VERBS):
        cases.run(group, Case(verb, "int64", 53, root=(salt + index) % group.size, salt=salt))


def run_on_groups(group: Group, memberships: list[list[int]]) -> list[tuple[int, int]]:
    children = split_all(group, memberships)
    for salt, child in enumerate(children):
        every_verb(child, salt)
    every_verb(group, 99)  # the parent is as it was
    for child in children:
        child.close()
    every_verb(group, 100)
    return [(child.rank, child.size) for child in children]


def test_random_subgroups(world, ranks):
    memberships = draw_memberships(7 * ranks, ranks, 8)
    found = world(ranks, run_on_groups, memberships)
    for rank in range(ranks):
        for members, told in zip(memberships, found[rank], strict=True):
            expected = members.index(rank) if rank in members else -1
            assert told == (expected, len(members))


def test_reversed_ranks_and_a_copy_of_the_world(world, ranks):
    whole = list(range(ranks))
    world(ranks, run_on_groups, [whole[::-1], whole, whole, whole[::-1]])


def nested(group: Group) -> tuple[int, tuple[int, ...]]:
    """A subgroup of a subgroup counts its ranks within its parent."""
    outer = group.split([3, 1, 2])
    if outer.rank < 0:
        return -1, ()
    with contextlib.closing(outer):
        inner = outer.split([2, 0])
        every_verb(inner, 5)
        every_verb(outer, 6)
        return inner.rank, inner.ranks


def test_subgroup_of_a_subgroup(world):
    members = (2, 3)
    assert world(4, nested) == [(-1, ()), (-1, members), (0, members), (1, members)]


def interleaved(group: Group, memberships: list[list[int]]) -> None:
    """Calls of several groups are under way together; each group keeps its own order."""
    children = [child for child in split_all(group, memberships) if child.rank >= 0]
    running = [
        cases.start(child, Case(verb, "float32", 300, salt=salt), blocking=False)
        for salt, verb in enumerate(VERBS)
        for child in (*children, group)
    ]
    for each in reversed(running):
        each.work.wait()
        each.check()
    for child in children:
        child.close()


def test_several_groups_side_by_side(world):
    world(4, interleaved, [[0, 1], [2, 3], [1, 2], [3, 0, 1], [2, 1, 0, 3]])


def threaded(group: Group, memberships: list[list[int]]) -> None:
    """Each group has a thread of its own on every rank: no order holds between groups."""
    children = [child for child in split_all(group, memberships) if child.rank >= 0]
    failures: list[BaseException] = []

    def body(child: Group, salt: int) -> None:
        try:
            for turn in range(4):
                every_verb(child, salt + turn)
                cases.run(child, Case("all_reduce", "bfloat16", 70001, ReduceOp.AVG, salt=turn))
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=body, args=(child, 10 * salt), daemon=True)
        for salt, child in enumerate([*children, group])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    if failures:
        raise failures[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError("a thread of this rank is still in its group's calls")
    for child in children:
        child.close()


def test_groups_from_several_threads(world):
    world(4, threaded, [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3], [0, 2]])


def many_groups(group: Group, number: int) -> None:
    """Groups that come and go leave nothing behind that would run out."""
    for salt in range(number):
        with contextlib.closing(group.split(range(group.size))) as child:
            cases.run(child, Case("all_reduce", "int32", 17, salt=salt))


def test_groups_come_and_go(world):
    world(3, many_groups, 60)
