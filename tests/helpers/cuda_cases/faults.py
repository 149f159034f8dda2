"""Faults: ranks that die, come late or fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

from tests.helpers.cuda_cases.calls import LARGE, outcome, summed
from tests.helpers.cuda_emulator import asarray, gpu
from unisono.core import buffers, dispatch
from unisono.core.groups import Group


def a_rank_is_killed(group: Group, blocking: bool) -> list[str]:
    """The last rank dies after all have agreed on the call, before its stream has done its part."""
    array = asarray(np.ones(LARGE, np.float32))
    summed(group, array)
    array.get()
    dispatch.barrier(group)
    last = group.size - 1
    if group.rank == last:
        gpu().hold(0, threading.Event())
    work = summed(group, array, blocking=blocking)
    if group.rank == last:
        if not blocking:
            work.meeting.wait()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    if not blocking:
        work.wait()  # lets the stream wait, in which nothing is wrong yet
    array.get()  # it does not wait for ever
    if not blocking:
        texts += [outcome(work.wait), f"PeerLost: {work.exception()}"]
    texts.append(outcome(summed, group, array))
    return texts


def a_rank_is_late(group: Group) -> list[str]:
    """One rank's stream is held up for longer than the others wait."""
    array = asarray(np.ones(LARGE, np.float32))
    summed(group, array)
    array.get()
    gate = threading.Event()
    if group.rank == 0:
        gpu().hold(0, gate)
        threading.Timer(3.0, gate.set).start()
    summed(group, array, timeout=1.0)
    array.get()
    return [outcome(summed, group, array)]


def the_gpu_fails_on_a_rank(group: Group) -> list[str]:
    """A kernel of the program has spoiled all that this rank does on the GPU; nobody waits long."""
    array = asarray(np.ones(LARGE, np.float32))
    summed(group, array)
    array.get()
    dispatch.barrier(group)
    is_last = group.rank == group.size - 1
    if is_last:
        gpu().fail()
    began = time.monotonic()
    work = summed(group, array, blocking=False, timeout=600.0)
    while work.exception() is None and time.monotonic() - began < 30:
        time.sleep(0.01)
    return [f"{type(work.exception()).__name__}: {work.exception()}", outcome(summed, group, array)]


def the_leader_fails(group: Group, error: BaseException) -> list[str]:
    """The first rank has an error that is not ours, after all have agreed on a call."""
    array = asarray(np.ones(LARGE, np.float32))
    summed(group, array)
    array.get()

    def fail(*given: Any) -> None:
        raise error

    if group.rank == 0:
        gpu().reduction = fail  # type: ignore[method-assign]
    texts = [outcome(summed, group, asarray(np.ones(9, np.float32)))]
    array.get()  # it does not wait for ever
    return [*texts, outcome(summed, group, array)]


def streams_of_calls_that_fail(group: Group) -> None:
    """Each is used again, whether it was a collective or a message that failed."""
    ours, size, rank = gpu(), group.size, group.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    made = []
    for turn in range(8):
        wrong = summed(group, asarray(np.ones(4 + rank)), blocking=False)
        texts = [outcome(wrong.wait)]
        dispatch.send(group, buffers.view(asarray(np.ones(4))), after)
        wrong = dispatch.recv(group, buffers.view(asarray(np.ones(5))), before, blocking=False)
        texts.append(outcome(wrong.wait))
        assert all(text.startswith("MismatchError") for text in texts), texts
        time.sleep(0.01)  # until the streams are free
        if turn == 1:
            made = list(ours._streams)
    assert list(ours._streams) == made


def survivors_go_on(group: Group) -> list[float]:
    array = asarray(np.ones(LARGE, np.float32))
    summed(group, array)
    array.get()
    dispatch.barrier(group)
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert outcome(summed, group, array).startswith("PeerLost")
    smaller = group.shrink()
    array = asarray(np.ones(LARGE, np.float32))
    summed(smaller, array)
    return sorted(set(array.tolist()))
