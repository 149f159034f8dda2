"""The conformance suite, part 3: messages between two ranks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tests.helpers import oracle
from tests.helpers.device_memory import memory_of
from tests.helpers.thorough import essential
from unisono.core import dispatch
from unisono.core.engine import Work
from unisono.core.groups import Group

CHUNK = 262144


def send(group: Group, array: np.ndarray, peer: int, tag: int = 0, blocking: bool = True) -> Work:
    return dispatch.send(group, memory_of(group).view(array), peer, tag, blocking=blocking)


def recv(
    group: Group, array: np.ndarray, peer: int | None, tag: int = 0, blocking: bool = True
) -> Work:
    memory = memory_of(group)
    work = dispatch.recv(group, memory.view(array), peer, tag, blocking=blocking)
    work.then(memory.fetch)
    return work


def message(dtype: str, source: int, target: int, count: int, salt: int = 0) -> np.ndarray:
    """What `source` sends to `target`: other pairs send other values."""
    return oracle.values(dtype, source * 16 + target, count, salt)


def blank(array: np.ndarray) -> np.ndarray:
    return np.full(array.nbytes, 0x5A, np.uint8).view(array.dtype)


def in_a_circle(group: Group, dtype: str, count: int) -> None:
    """Rank 0 sends first; every other rank receives before it sends, so that nobody is stuck."""
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    wanted = message(dtype, before, rank, count)
    found = blank(wanted)
    if rank == 0:
        send(group, message(dtype, rank, after, count), after)
        recv(group, found, before)
    else:
        recv(group, found, before)
        send(group, message(dtype, rank, after, count), after)
    oracle.check_same(found, wanted, f"{dtype} x {count} from rank {before}")


def circles(group: Group, dtypes: list[str], counts: list[int]) -> None:
    for dtype in dtypes:
        for count in counts:
            in_a_circle(group, dtype, count)


def test_every_dtype_in_a_circle(world):
    world(3, circles, list(oracle.MOVABLE), [0, 1, 1009])


@pytest.mark.parametrize("size", essential(1, [2, 4, 8]))
def test_sizes_in_a_circle(world, size):
    world(size, circles, ["float32", "bool"], [0, 1, 1009, CHUNK // 4 + 1, 2 << 20])


def tags_out_of_order(group: Group) -> None:
    """A receive takes the message with its tag, not the one that came first."""
    tags = [5, 0, 123456, 7]
    if group.rank == 0:
        works = [
            send(group, message("int32", 0, 1, 40, tag), 1, tag, blocking=False) for tag in tags
        ]
        for work in works:
            work.wait()
    else:
        for tag in reversed(tags):
            found = np.zeros(40, np.int32)
            recv(group, found, 0, tag)
            oracle.check_same(found, message("int32", 0, 1, 40, tag), f"tag {tag}")


def test_tags_out_of_order(world):
    world(2, tags_out_of_order)


def same_tag_in_order(group: Group, number: int) -> None:
    """Messages with one tag between two ranks do not overtake each other."""
    if group.rank == 0:
        works = [
            send(group, message("int16", 0, 1, 20, salt), 1, 3, blocking=False)
            for salt in range(number)
        ]
        for work in works:
            work.wait()
    else:
        found = [np.zeros(20, np.int16) for _ in range(number)]
        works = [recv(group, array, 0, 3, blocking=False) for array in found]
        for work in works:
            work.wait()
        for salt, array in enumerate(found):
            oracle.check_same(array, message("int16", 0, 1, 20, salt), f"message {salt}")


def test_messages_with_one_tag_keep_their_order(world):
    world(2, same_tag_in_order, 30)


def from_anyone(group: Group) -> list[int]:
    """Rank 0 takes what comes; `work.source` says whose message it was."""
    if group.rank:
        send(group, message("float64", group.rank, 0, 100), 0, 9)
        return []
    sources = []
    for blocking in [True, False] * group.size:
        if len(sources) == group.size - 1:
            break
        found = np.zeros(100)
        work = recv(group, found, None, 9, blocking)
        work.wait()
        oracle.check_same(found, message("float64", work.source, 0, 100), work.source)
        sources.append(work.source)
    return sources


@pytest.mark.parametrize("size", [2, 4])
def test_from_any_source(world, size):
    found = world(size, from_anyone)[0]
    assert sorted(found) == list(range(1, size))


def named_source(group: Group) -> int | None:
    if group.rank == 2:
        send(group, np.zeros(1), 0)
    elif group.rank == 0:
        return recv(group, np.zeros(1), 2).source
    return None


def test_source_is_told_even_if_it_was_named(world):
    assert world(3, named_source) == [2, None, None]


def both_ways(group: Group, count: int) -> None:
    """All pairs exchange large messages together; none may wait for the other to go first."""
    works, pairs = [], []
    for other in range(group.size):
        wanted = message("float32", other, group.rank, count)
        found = blank(wanted)
        pairs.append((found, wanted))
        mine = message("float32", group.rank, other, count)
        works.append(send(group, mine, other, blocking=False))
        works.append(recv(group, found, other, blocking=False))
    for work in works:
        work.wait()
    for other, (found, wanted) in enumerate(pairs):
        oracle.check_same(found, wanted, f"from rank {other}")


@pytest.mark.parametrize("count", [1, CHUNK // 4 + 1, 1 << 20])
def test_large_messages_both_ways(world, count):
    world(3, both_ways, count)


def to_itself(group: Group, count: int) -> None:
    mine = message("int64", group.rank, group.rank, count)
    sent = send(group, mine, group.rank, 4, blocking=False)
    found = np.zeros(count, np.int64)
    work = recv(group, found, group.rank, 4)
    sent.wait()
    oracle.check_same(found, mine, "self-send")
    if work.source != group.rank:
        raise AssertionError(f"a message from rank {group.rank} says it is from {work.source}")


@pytest.mark.parametrize("size", [1, 2])
def test_self_send(world, size):
    for count in (0, 1, 1009, CHUNK):
        world(size, to_itself, count)


def reuse_after_send(group: Group) -> None:
    """When a send has ended, its memory may be written again."""
    if group.rank == 0:
        array = message("uint8", 0, 1, 500_000)
        memory = memory_of(group)
        dispatch.send(group, memory.view(array), 1)
        array[:] = 0
        memory.store()
        dispatch.barrier(group)
    else:
        wanted = message("uint8", 0, 1, 500_000)
        found = blank(wanted)
        recv(group, found, 0)
        dispatch.barrier(group)
        oracle.check_same(found, wanted, "sent before the memory was cleared")


def test_source_is_free_after_send(world):
    world(2, reuse_after_send)


def in_subgroup(group: Group) -> None:
    """Peers are ranks of the group, and two groups do not see each other's messages."""
    backwards = group.split(range(group.size)[::-1])
    with contextlib.closing(backwards):
        for each, salt in ((group, 1), (backwards, 2)):
            if each.rank == 0:
                send(each, message("int32", 0, 1, 10, salt), 1, blocking=False).wait()
        for each, salt in ((backwards, 2), (group, 1)):
            if each.rank == 1:
                found = np.zeros(10, np.int32)
                recv(each, found, 0)
                oracle.check_same(found, message("int32", 0, 1, 10, salt), each.name)
        dispatch.barrier(group)


def test_messages_stay_in_their_group(world):
    world(3, in_subgroup)


def strided(group: Group) -> None:
    if group.rank == 0:
        send(group, message("int32", 0, 1, 64)[::2], 1)
        return
    found = np.zeros((4, 16), np.int32)
    recv(group, found.T[::2], 0)
    wanted = message("int32", 0, 1, 64)[::2]
    oracle.check_same(np.ascontiguousarray(found.T[::2]).reshape(-1), wanted, "strided")
    if found.T[1::2].any():
        raise AssertionError("wrote between the rows")


def test_strided_messages(world):
    world(2, strided)
