"""Order: streams of the caller, calls at once, what is waited for and what is not."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_cases.calls import LARGE, let_faces_call, outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu, on_stream
from unisono.core import buffers, dispatch
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.engines.cuda.gpu.driver import PER_THREAD
from unisono.torch import distributed as dist


def many_calls_without_a_pause(group: Group) -> None:
    """Sums of sums in the same memory, short and long in turn: each reads what the last wrote."""
    short, long = asarray(np.ones(100, np.float32)), asarray(np.ones(LARGE, np.float32))
    for _ in range(6):
        for array in (short, long):
            summed(group, array)
    expected = float(group.size**6)
    assert set(short.tolist()) == set(long.tolist()) == {expected}


def many_calls_at_once(group: Group) -> None:
    """Asynchronous calls on different memory, waited for in another order."""
    arrays = [asarray(np.full(3 + LARGE * (i % 2), i, np.float32)) for i in range(8)]
    works = [summed(group, array, blocking=False) for array in arrays]
    for work in reversed(works):
        work.wait()
    for index, array in enumerate(arrays):
        assert set(array.tolist()) == {float(index * group.size)}, index
    assert all(work.is_completed() for work in works)


def calls_on_both_memories(group: Group) -> None:
    """On the GPU and on the CPU in turn, some of them at once: all are in one order."""
    rush = random.Random(group.rank)  # some ranks are ahead of others
    on_gpu = [asarray(np.full(5, index, np.float32)) for index in range(12)]
    on_cpu = [np.full(5, index, np.float32) for index in range(12)]
    works = []
    for turn, arrays in enumerate(zip(on_gpu, on_cpu, strict=True)):
        for array in arrays[:: 1 if turn % 3 else -1]:
            works.append(summed(group, array, blocking=turn % 4 == 3))
            time.sleep(rush.random() * 2e-3)
    for work in works:
        work.wait()
    for arrays in (on_gpu, on_cpu):
        sums = [set(array.tolist()) for array in arrays]
        assert sums == [{float(index * group.size)} for index in range(12)]


def streams_of_the_caller(group: Group) -> None:
    """A call reads what its stream wrote before; another stream that waits reads the result."""
    first, second = gpu().create_stream(), gpu().create_stream()
    array = asarray(np.zeros(LARGE, np.float32))
    ones = asarray(np.ones(LARGE, np.float32))
    for turn in range(4):
        with on_stream(first):
            gpu().copy(array.data.ptr, ones.data.ptr, 4 * LARGE, first)
            work = summed(group, array, blocking=turn % 2 == 0)
        with on_stream(second if turn % 2 else first):
            work.wait()
            assert set(array.tolist()) == {float(group.size)}


def streams_of_threads(group: Group) -> None:
    """The default stream may be another one in every thread, under the same number."""
    ones = asarray(np.ones(LARGE, np.float32))
    with on_stream(PER_THREAD):
        for late in range(group.size):
            array, first = asarray(np.zeros(LARGE, np.float32)), asarray(np.ones(5, np.float32))
            if group.rank == late:
                time.sleep(0.05)  # meanwhile the first call of the others has not begun
            work = summed(group, first, blocking=False)
            gate = threading.Event()
            gpu().hold(PER_THREAD, gate)
            gpu().copy(array.data.ptr, ones.data.ptr, 4 * LARGE, PER_THREAD)
            threading.Timer(0.1, gate.set).start()
            summed(group, array)
            assert set(array.tolist()) == {float(group.size)}
            work.wait()


def waiting_twice_in_two_streams(group: Group) -> None:
    first, second = gpu().create_stream(), gpu().create_stream()
    array = asarray(np.ones(LARGE, np.float32))
    work = summed(group, array, blocking=False)
    for stream in (first, second):
        with on_stream(stream):
            work.wait()
            assert set(array.tolist()) == {float(group.size)}


def copying_back_in_one_of_two_streams(group: Group) -> None:
    """A second stream that waits also waits for the copy that the first one has begun."""
    first, second = gpu().create_stream(), gpu().create_stream()
    packed, array = asarray(np.ones(LARGE, np.float32)), asarray(np.zeros(LARGE, np.float32))
    buffer = buffers.view(packed)

    def copy_back() -> None:
        stream = cuda_emulator.get_current_stream().ptr
        gpu().copy(array.data.ptr, packed.data.ptr, 4 * LARGE, stream)

    buffer.copy_back = copy_back
    work = dispatch.all_reduce(group, buffer, buffer, ReduceOp.SUM, blocking=False)
    gate = threading.Event()
    gpu().hold(first, gate)
    with on_stream(first):
        work.wait()
    with on_stream(second):
        work.wait()
        threading.Timer(0.1, gate.set).start()
        assert set(array.tolist()) == {float(group.size)}


def awaiting_in_a_stream(group: Group) -> None:
    stream = gpu().create_stream()
    array = asarray(np.ones(LARGE, np.float32))
    gate = threading.Event()
    gpu().hold(0, gate)
    work = summed(group, array, blocking=False)

    async def wait() -> None:
        await work
        threading.Timer(0.1, gate.set).start()
        assert set(array.tolist()) == {float(group.size)}

    with on_stream(stream):
        asyncio.run(wait())
    wrong = summed(group, asarray(np.ones(4 + group.rank)), blocking=False)

    async def fail() -> None:
        await wrong

    if group.size > 1:
        assert outcome(asyncio.run, fail()).startswith("MismatchError")


def the_host_does_not_wait(group: Group) -> None:
    """A stream that is held up holds up neither the call nor the wait."""
    gate = threading.Event()
    array = asarray(np.ones(LARGE, np.float32))
    gpu().hold(0, gate)
    work = summed(group, array, blocking=False)
    work.wait()
    summed(group, array)
    assert not gate.is_set() and not work._end.has_come()
    gate.set()
    assert set(array.tolist()) == {float(group.size**2)}


def a_graph_is_captured_meanwhile(group: Group) -> None:
    """While calls and messages are under way, or begin apart, what the program captures is safe."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    gate = threading.Event()
    array, other = asarray(np.ones(LARGE, np.float32)), asarray(np.ones(LARGE, np.float32))
    incoming, outgoing = empty(LARGE), asarray(np.ones(LARGE))
    dispatch.barrier(group)
    gpu().hold(0, gate)
    works = [
        summed(group, array, blocking=False),
        dispatch.recv(group, buffers.view(incoming), before, blocking=False),
        dispatch.send(group, buffers.view(outgoing), after, blocking=False),
    ]
    if group.rank == group.size - 1:
        time.sleep(0.05)  # the others have to wait for this rank, and go on while they capture
    works.append(summed(group, other, blocking=False))
    with gpu().capture():
        time.sleep(0.1)
    gate.set()
    for work in works:
        work.wait()
    for result in (array, other):
        assert set(result.tolist()) == {float(group.size)}
    assert set(incoming.tolist()) == {1.0}
    dispatch.barrier(group)


def memory_is_kept(group: Group) -> None:
    """A tensor that nobody has any more stays until all ranks have read it."""
    for _ in range(5):
        summed(group, asarray(np.ones(LARGE, np.float32)))
        summed(group, asarray(np.ones(9, np.float32)), blocking=False)
    dispatch.barrier(group)


def the_callers_gpu_is_as_before(group: Group) -> None:
    """Threads of the program may work on another GPU: whatever they call, they keep it."""
    let_faces_call(group)
    ours = gpu()
    array, incoming = asarray(np.ones(LARGE, np.float32)), empty(2 * LARGE, np.float32)
    outgoing = asarray(np.ones(2 * LARGE, np.float32))
    stream = ours.create_stream()
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def call() -> None:
        ours.leave(None)
        for _ in range(3):
            dist.all_reduce(array)
        work = summed(group, array, blocking=False)
        got = dispatch.recv(group, buffers.view(incoming), before, blocking=False)
        sent = dispatch.send(group, buffers.view(outgoing), after, blocking=False)
        with on_stream(stream):
            for one in (work, got, sent):
                one.wait()
        assert ours.enter() == 0

    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    part = group.split(range(group.size), "part")
    summed(part, array)
    array.get()
    ours.leave(None)
    part.close()
    assert ours.enter() == 0
    assert array.tolist()[0] == float(group.size**9)
