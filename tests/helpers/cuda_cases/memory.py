"""Memory that ranks share: blocks and their pieces, what is freed, what is left."""

from __future__ import annotations

import time

import numpy as np

from tests.helpers.cuda_cases.calls import LARGE, outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu
from unisono.core import buffers, dispatch
from unisono.core.groups import Group


def pieces_of_a_block(group: Group) -> None:
    """Two tensors of one block: it is exported once, and the leader alone opens it, once."""
    whole = asarray(np.ones(4 * LARGE, np.float32))
    before = gpu().exports
    for start in (0, LARGE, LARGE + 1, 2 * LARGE):
        summed(group, whole[start : start + LARGE])
    whole.get()
    others = group.size - 1
    assert (gpu().exports - before, len(gpu().opened)) == ((1, 0) if group.rank else (0, others))


def freed_blocks_are_closed(group: Group) -> None:
    """New memory may be where freed memory was; nobody reads the old one, or keeps it."""
    for turn in range(12):
        array = asarray(np.full(LARGE, turn, np.float32))
        summed(group, array)
        assert set(array.tolist()) == {float(turn * group.size)}, turn
        dispatch.barrier(group)
        del array
        time.sleep(0.01)  # until the watchdog has let it go
    assert len(gpu().opened) <= 4 * (group.size - 1), len(gpu().opened)


def many_blocks_freed_at_once(group: Group) -> None:
    """More than one call tells of, and then new blocks are where they were: as `empty_cache`."""
    for turn in range(3):
        arrays = [asarray(np.full(LARGE, turn, np.float32)) for _ in range(12)]
        # The first one takes the place of one that the others hear of last.
        for array in arrays[:: 1 if turn % 2 else -1]:
            summed(group, array)
        for array in arrays:
            assert set(array.tolist()) == {float(turn * group.size)}, turn
        dispatch.barrier(group)
        del array, arrays
        time.sleep(0.02)  # until the watchdog has let them go


def long_messages_in_new_memory(group: Group) -> None:
    """No call tells of blocks that were freed, and each message may be where another one was."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    incoming = empty(8 * LARGE, np.float32)
    for turn in range(8):
        count = LARGE * (turn + 1)
        outgoing = asarray(np.full(count, turn + group.rank, np.float32))
        sent = dispatch.send(group, buffers.view(outgoing), after, blocking=False)
        dispatch.recv(group, buffers.view(incoming[:count]), before)
        sent.wait()
        assert set(incoming[:count].tolist()) == {float(turn + before)}
        gpu().synchronize(0)
        dispatch.barrier(group)
        del outgoing, sent
        time.sleep(0.02)


def blocks_freed_before_a_mismatch(group: Group) -> None:
    """The call that tells of freed memory fails; nobody keeps that open all the same."""
    for turn in range(12):
        array = asarray(np.full(LARGE + group.rank * (turn % 2), turn, np.float32))
        text = outcome(summed, group, array)
        assert text.startswith("MismatchError" if turn % 2 else "no error"), text
        array.get()
        dispatch.barrier(group)
        del array
        time.sleep(0.01)  # until the watchdog has let it go
    assert len(gpu().opened) <= 2 * (group.size - 1), len(gpu().opened)


def memory_that_cannot_be_shared(group: Group) -> None:
    for count in (5, LARGE):
        source = asarray(np.arange(count, dtype=np.float32), shareable=False)
        summed(group, source)
        expected = np.arange(count, dtype=np.float32) * group.size
        np.testing.assert_array_equal(source.get(), expected)
        gathered = empty(count * group.size, np.float32, shareable=False)
        dispatch.all_gather(group, buffers.view(source), buffers.view(gathered))
        np.testing.assert_array_equal(gathered.get(), np.tile(expected, group.size))


def uneven_calls_on_other_memory_of_one_rank(group: Group) -> None:
    """Each rank in turn has its tensors elsewhere than in the call before, and the others do not.

    What ranks remember of a call must not decide who asks for counts: each remembers other calls.
    """
    size, rank = group.size, group.rank
    counts = [each + 1 for each in range(size)]
    expected = [float(each) for each in range(size) for _ in range(rank + 1)]
    source, into = asarray(np.full(sum(counts), rank, np.float32)), empty(len(expected), np.float32)
    sources = [source]
    for turn in range(2 * size):
        if turn % size == rank:
            sources.append(asarray(np.full(sum(counts), rank, np.float32)))
        views = buffers.view(sources[-1]), buffers.view(into)
        dispatch.all_to_all(group, *views, counts, [rank + 1] * size)
        assert into.tolist() == expected
        whole = empty(sum(counts), np.float32) if rank == 0 else None
        part = buffers.view(into[: rank + 1])
        # Here the root alone has counts.
        dispatch.gather(group, part, whole and buffers.view(whole), 0, counts if whole else None)
        assert whole is None or whole.tolist() == [0.0] * sum(counts)


def nothing_is_left(group: Group) -> None:
    """After a group is closed, none of its memory is allocated, open or registered."""
    before = len(gpu().allocations)
    part = group.split(range(group.size), "part")
    array = asarray(np.ones(LARGE, np.float32))
    small = asarray(np.ones(3, np.float32))
    summed(part, array)
    summed(part, small)
    if group.size > 1:
        peer = (group.rank + 1) % group.size
        dispatch.send(part, buffers.view(small), peer)
        dispatch.recv(part, buffers.view(small), None)
    array.get()
    part.close()
    dispatch.barrier(group)
    del array, small
    deadline = time.monotonic() + 5
    while len(gpu().allocations) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(gpu().allocations) == before
    assert gpu().opened == {} and gpu().registered == {}
