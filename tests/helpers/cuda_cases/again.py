"""The same call again, which goes a shorter way."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from tests.helpers.cuda_cases.calls import LARGE, let_faces_call, outcome
from tests.helpers.cuda_emulator import asarray, gpu
from unisono.core.groups import Group
from unisono.torch import distributed as dist


def calls_again(group: Group) -> None:
    """A call that was made before goes a shorter way, and is a call like others in all respects."""
    let_faces_call(group)
    group.repeats.clear()
    array = asarray(np.ones(3, np.float32))
    for times in range(1, 6):
        before = group.calls
        dist.all_reduce(array)
        assert set(array.tolist()) == {float(group.size**times)}
        assert group.calls == before + 1
    assert len(group.repeats) == 1
    dist.all_reduce(array, dist.ReduceOp.MAX)  # another one
    assert set(array.tolist()) == {float(group.size**5)} and len(group.repeats) == 2
    part = dist.new_group(list(range(group.size)))
    dist.all_reduce(array, dist.ReduceOp.MAX, group=part)
    dist.all_reduce(array, dist.ReduceOp.MAX, group=part)
    work = dist.all_reduce(array, async_op=True)
    dist.all_reduce(array)
    work.wait()
    assert set(array.tolist()) == {float(group.size**7)}
    dist.destroy_process_group(part)
    assert not part.repeats


def calls_again_on_other_memory(group: Group) -> None:
    """An address may be that of another block, if the one before was freed."""
    let_faces_call(group)
    seen = []
    for turn in range(8):
        array = asarray(np.full(LARGE, turn, np.float32))
        for _ in range(2):
            dist.all_reduce(array)
        assert set(array.tolist()) == {float(turn * group.size**2)}, turn
        seen.append(array.data.ptr)
        dist.barrier()
        del array
        time.sleep(0.01)
    assert len(gpu().opened) <= 4 * (group.size - 1)


def calls_again_that_differ(group: Group) -> list[str]:
    """One rank makes another call than the one before; the others see that in the short way."""
    let_faces_call(group)
    array = asarray(np.ones(5, np.float32))
    for _ in range(3):
        dist.all_reduce(array)
    last = group.size - 1
    op = dist.ReduceOp.MAX if group.rank == last else dist.ReduceOp.SUM
    text = outcome(dist.all_reduce, array, op)
    dist.all_reduce(array)
    assert set(array.tolist()) == {float(group.size**4)}
    return [text, str(group.calls)]


def calls_again_with_another_timeout(group: Group) -> str:
    """One rank does not come; the others wait as long as the group's timeout is by now."""
    let_faces_call(group)
    array = asarray(np.ones(5, np.float32))
    for _ in range(3):
        dist.all_reduce(array)
    assert group.repeats
    group.engine.timeout = 1.0
    if group.rank == group.size - 1:
        time.sleep(5.0)
    return outcome(dist.all_reduce, array)  # with the first timeout it would end well


def a_rank_dies_before_the_call_again(group: Group) -> list[str]:
    let_faces_call(group)
    array = asarray(np.ones(LARGE, np.float32))
    for _ in range(3):
        dist.all_reduce(array)
    array.get()
    dist.barrier()
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    texts = [outcome(dist.all_reduce, array) for _ in range(2)]
    array.get()
    return texts


def a_forked_child(group: Group) -> None:
    """It may have the group in its hands, and makes no call all the same, and no harm."""
    let_faces_call(group)
    part = dist.new_group(list(range(group.size)))
    array = asarray(np.ones(5, np.float32))
    for _ in range(3):
        dist.all_reduce(array, group=part)
    array.get()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        text = outcome(dist.all_reduce, array, group=part)
        os._exit(0 if text.startswith("NotReady: this process was forked") else 1)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(array, group=part)
    assert set(array.tolist()) == {float(group.size**4)}
    dist.destroy_process_group(part)
