"""Messages between two ranks."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_cases.calls import LARGE, outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu, on_stream
from unisono.core import buffers, dispatch
from unisono.core.groups import Group


def messages(group: Group) -> None:
    size, rank = group.size, group.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000):  # all send first
        outgoing, incoming = asarray(np.full(count, rank, np.int32)), empty(count, np.int32)
        dispatch.send(group, buffers.view(outgoing), after, 5)
        dispatch.recv(group, buffers.view(incoming), before, 5)
        assert incoming.tolist() == [before] * count
    outgoing = asarray(np.full(2 * LARGE, rank, np.int32))
    incoming = empty(2 * LARGE, np.int32)
    sent = dispatch.send(group, buffers.view(outgoing), after, 6, blocking=False)
    got = dispatch.recv(group, buffers.view(incoming), None, 6, blocking=False)
    got.wait()
    sent.wait()
    assert got.source == before and set(incoming.tolist()) == {before}
    outgoing.set(np.full(2 * LARGE, -1, np.int32))  # it may be written again
    dispatch.barrier(group)


def messages_in_any_order(group: Group) -> None:
    """Tags are received in the other order than they were sent in; several under way."""
    rank = group.rank
    if rank > 1:
        return
    counts = [LARGE * 2 if tag % 2 else 10 for tag in range(6)]
    if rank == 0:
        arrays = [asarray(np.full(counts[tag], tag, np.float32)) for tag in range(6)]
        works = [
            dispatch.send(group, buffers.view(arrays[tag]), 1, tag, blocking=False)
            for tag in range(6)
        ]
    else:
        arrays = [empty(count, np.float32) for count in counts]
        works = [
            dispatch.recv(group, buffers.view(arrays[tag]), 0, tag, blocking=False)
            for tag in reversed(range(6))
        ]
    for work in works:
        work.wait()
    for tag, array in enumerate(arrays):
        assert set(array.tolist()) == {float(tag)}


def message_to_itself(group: Group) -> None:
    outgoing, incoming = asarray(np.arange(4.0)), empty(4)
    dispatch.send(group, buffers.view(outgoing), group.rank)
    dispatch.recv(group, buffers.view(incoming), group.rank)
    assert incoming.tolist() == [0, 1, 2, 3]


def an_exchange_on_one_queue(group: Group) -> None:
    """No stream waits for another rank in front of the copy for which that rank waits itself."""
    os.environ[cuda_emulator.ONE_QUEUE] = "1"
    rank, peer = group.rank, 1 - group.rank
    array = asarray(np.ones(3, np.float32))

    def compute() -> None:
        gate = threading.Event()
        gpu().hold(0, gate)
        threading.Timer(0.2, gate.set).start()

    for sends in ((True, True), (False, True)):
        outgoing = asarray(np.full(2 * LARGE, rank, np.int32))
        incoming = empty(2 * LARGE, np.int32)
        compute()
        sent = got = None
        if sends[rank]:
            sent = dispatch.send(group, buffers.view(outgoing), peer, blocking=False)
        if sends[peer]:
            got = dispatch.recv(group, buffers.view(incoming), peer, blocking=False)
        if sent is not None:
            sent.wait()
        summed(group, array)
        if got is not None:
            got.wait()
            assert set(incoming.tolist()) == {peer}
    assert array.tolist() == [4.0] * 3


def longer_messages(group: Group) -> None:
    """Nothing is freed while messages are under way: CUDA would wait for all streams."""
    ours, rank = gpu(), group.rank
    part = group.split(range(group.size), "part")
    before, free = len(ours.allocations), ours.free
    kept, freed = [], []
    ours.free = lambda address: [freed.append(address), free(address)]  # type: ignore[method-assign]
    for count in (1, 100, 10000):
        outgoing, incoming = asarray(np.full(count, count, np.int32)), empty(count, np.int32)
        kept += [outgoing, incoming]
        dispatch.send(part, buffers.view(outgoing), rank)
        dispatch.recv(part, buffers.view(incoming), rank)
        assert set(incoming.tolist()) == {count}
    assert not freed
    part.close()
    assert len(freed) == 3 and len(ours.allocations) == before + len(kept)
    del ours.free


def message_while_another_group_ends(group: Group) -> None:
    """What is received is read from memory that the other group has used as well."""
    part = group.split(range(group.size), "part")
    summed(part, asarray(np.ones(3, np.float32)))
    array = asarray(np.full(2 * LARGE, group.rank, np.int32))
    gate = threading.Event()
    if group.rank == 0:
        dispatch.send(group, buffers.view(array), 1, blocking=False)
    else:
        stream = gpu().create_stream()
        with on_stream(stream):
            gpu().hold(stream, gate)
            dispatch.recv(group, buffers.view(array), 0)
    part.close()
    gate.set()
    if group.rank == 1:
        gpu().synchronize(stream)
    assert set(array.tolist()) == {0}
    dispatch.barrier(group)


def wrong_messages(group: Group) -> list[str]:
    if group.rank == 0:
        work = dispatch.send(group, buffers.view(asarray(np.ones(2 * LARGE))), 1, 1, blocking=False)
        dispatch.barrier(group)
        texts = [outcome(work.wait)]
        dispatch.send(group, buffers.view(asarray(np.ones(3))), 1, 2)
        dispatch.barrier(group)
        return texts
    texts = [outcome(dispatch.recv, group, buffers.view(empty(3)), 0, 1)]
    dispatch.barrier(group)
    texts.append(outcome(dispatch.recv, group, buffers.view(np.empty(3)), 0, 2))
    dispatch.barrier(group)
    return texts


def sender_is_killed(group: Group) -> str:
    """The sender of a long message dies before its stream has written it."""
    if group.rank == 0:
        outgoing = asarray(np.ones(2 * LARGE))
        gpu().hold(0, threading.Event())
        dispatch.send(group, buffers.view(outgoing), 1, blocking=False)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    incoming = empty(2 * LARGE)
    work = dispatch.recv(group, buffers.view(incoming), 0, blocking=False)
    return outcome(work.wait, 10)
