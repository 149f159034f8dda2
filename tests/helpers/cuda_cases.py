"""What ranks do in the tests of engine `cuda`, on a GPU that is emulated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_emulator import asarray, empty, gpu, on_stream
from unisono.core import buffers, dispatch, dtypes, groups
from unisono.core.buffers import devices
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.engines.cuda.gpu import device, driver
from unisono.engines.torch import c10d
from unisono.torch import distributed as dist

LARGE = 1 << 18  # elements of float32: more than engine `cuda` copies aside


def summed(group: Group, array: Any, **how: Any) -> Any:
    buffer = buffers.view(array)
    return dispatch.all_reduce(group, buffer, buffer, ReduceOp.SUM, **how)


def outcome(function: Any, *arguments: Any, **named: Any) -> str:
    """The name of the error that a call raises, and its text."""
    try:
        function(*arguments, **named)
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# ---- order ----


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


def streams_of_the_caller(group: Group) -> None:
    """A call reads what its stream wrote before, and whoever waits in another stream reads it."""
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


def waiting_twice_in_two_streams(group: Group) -> None:
    first, second = gpu().create_stream(), gpu().create_stream()
    array = asarray(np.ones(LARGE, np.float32))
    work = summed(group, array, blocking=False)
    for stream in (first, second):
        with on_stream(stream):
            work.wait()
            assert set(array.tolist()) == {float(group.size)}


def copying_back_in_one_of_two_streams(group: Group) -> None:
    """Whoever waits second, in another stream, waits for the copy that the first one has begun."""
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


def memory_is_kept(group: Group) -> None:
    """A tensor that nobody has any more stays until all ranks have read it."""
    for _ in range(5):
        summed(group, asarray(np.ones(LARGE, np.float32)))
        summed(group, asarray(np.ones(9, np.float32)), blocking=False)
    dispatch.barrier(group)


def the_callers_gpu_is_as_before(group: Group) -> None:
    """Threads of the program may work on another GPU: whatever they call, they keep it."""
    _dialect(group)
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


# ---- the same call again ----


def _dialect(group: Group) -> None:
    if not dist.is_initialized():
        groups.unclaim()
        dist.init_process_group("unisono")


def calls_again(group: Group) -> None:
    """A call that was made before goes a shorter way, and is a call like others in all respects."""
    _dialect(group)
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
    _dialect(group)
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
    _dialect(group)
    array = asarray(np.ones(5, np.float32))
    for _ in range(3):
        dist.all_reduce(array)
    last = group.size - 1
    op = dist.ReduceOp.MAX if group.rank == last else dist.ReduceOp.SUM
    text = outcome(dist.all_reduce, array, op)
    dist.all_reduce(array)
    assert set(array.tolist()) == {float(group.size**4)}
    return [text, str(group.calls)]


def a_rank_dies_before_the_call_again(group: Group) -> list[str]:
    _dialect(group)
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
    _dialect(group)
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


# ---- shared memory ----


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


# ---- wrong calls ----


def mismatches(group: Group) -> list[str]:
    """Ranks that disagree all get an error, and the group works on."""
    count = 4 + group.rank
    texts = [outcome(summed, group, asarray(np.ones(count, np.float32)))]
    dtype = np.float32 if group.rank else np.float64
    texts.append(outcome(summed, group, asarray(np.ones(LARGE, dtype))))
    if group.rank:
        texts.append(outcome(summed, group, asarray(np.ones(4, np.float32))))
    else:
        one = buffers.view(asarray(np.ones(4, np.float32)))
        texts.append(outcome(dispatch.broadcast, group, one, one, 0))
    array = asarray(np.ones(7, np.float32))
    summed(group, array)
    assert array.tolist() == [float(group.size)] * 7
    return texts


def counts_that_do_not_match(group: Group) -> str:
    """The last rank expects more of the first one than that sends; all say the same otherwise."""
    size, is_last = group.size, group.rank == group.size - 1
    receives = [1 + is_last, *[1] * (size - 1)]
    source, into = asarray(np.ones(size)), empty(sum(receives))
    views = buffers.view(source), buffers.view(into)
    text = outcome(dispatch.all_to_all, group, *views, [1] * size, receives)
    dispatch.all_to_all(group, views[0], buffers.view(into[:size]), [1] * size, [1] * size)
    assert into[:size].tolist() == [1.0] * size
    return text


def a_mismatch_while_a_call_waits(group: Group) -> None:
    """The stream still waits for the call before, so no other one may wait for another group."""
    array, wrong = asarray(np.ones(9, np.float32)), asarray(np.ones(4 + group.rank, np.float32))
    gate = threading.Event()
    gpu().hold(0, gate)
    summed(group, array)
    text = outcome(summed, group, wrong)
    assert text.startswith("MismatchError"), text
    own = device.device_at(0)
    assert own.may_wait("another group", 8) is None
    gate.set()
    array.get()
    assert own.may_wait("another group", 8) is not None
    own.forget("another group")


def elements_at_odd_addresses(group: Group) -> str:
    """CuPy has such arrays, and can only copy them; so do we."""
    whole = asarray(np.arange(64, dtype=np.uint8))
    text = ""
    for name, offset in (("float32", 2), ("complex64", 4)):
        buffer = buffers.view(whole[offset : offset + 8])
        buffer.dtype = dtypes.by_name(name)
        buffer.count = 8 // buffer.dtype.itemsize
        dispatch.broadcast(group, buffer, buffer, 0)
        text += outcome(dispatch.all_reduce, group, buffer, buffer, ReduceOp.SUM)
    return text


def cpu_against_gpu(group: Group) -> str:
    """The very first call: one rank has its tensor on the CPU."""
    array = np.ones(4, np.float32)
    return outcome(summed, group, array if group.rank == 0 else asarray(array))


def two_memories(group: Group) -> str:
    source = buffers.view(asarray(np.ones(4, np.float32)))
    return outcome(
        dispatch.all_reduce, group, source, buffers.view(np.ones(4, np.float32)), ReduceOp.SUM
    )


def two_gpus(group: Group) -> str:
    source, destination = asarray(np.ones(4, np.float32)), asarray(np.ones(4, np.float32))
    destination.device.id = 1
    views = buffers.view(source), buffers.view(destination)
    assert devices.current_stream(views[0]) == 0
    assert devices.current_stream(views[1]) == cuda_emulator.OTHER_STREAM
    return outcome(dispatch.all_reduce, group, *views, ReduceOp.SUM)


def calls_in_a_graph(group: Group) -> list[str]:
    """Calls while a CUDA graph is captured; afterwards the same calls work."""
    _dialect(group)
    array, other = asarray(np.ones(4, np.float32)), asarray(np.ones(4, np.float32))
    for _ in range(2):
        dist.all_reduce(array)
    gpu().capturing.add(0)
    texts = [
        outcome(dist.all_reduce, array),
        outcome(dist.all_reduce, other),
        outcome(dist.all_reduce, array, async_op=True),
        outcome(dispatch.send, group, buffers.view(array), group.rank),
        outcome(dispatch.recv, group, buffers.view(array), group.rank),
    ]
    gpu().capturing.clear()
    for _ in range(2):
        dist.all_reduce(array)
    assert array.tolist() == [float(group.size**4)] * 4
    return texts


def results_are_where_the_arrays_are(group: Group) -> None:
    """Also if CuPy's current GPU is another one."""
    array = asarray(np.ones(4, np.float32))
    array.device.id = 1
    assert buffers.output_like(array).finish().device.id == 1
    for make in (buffers.empty_for, buffers.concatenated):
        assert make([buffers.view(array)] * 2).device.id == 1
    array.flags.c_contiguous = False
    array.strides = (4,)
    packed = buffers.view(array)
    assert packed.owner is not array and devices.device_index(packed) == 1
    assert packed.copy_back is not None
    packed.copy_back()
    assert empty(4).device.id == 0


# ---- several GPUs ----


def two_ranks_on_one_of_two_gpus(group: Group) -> list[str]:
    os.environ[cuda_emulator.GPU] = str(group.rank // 2) * 32
    return [outcome(summed, group, asarray(np.ones(4, np.float32))) for _ in range(2)]


def on_its_own_gpu(group: Group) -> None:
    """Let every rank of a new job have a GPU of its own."""
    os.environ[cuda_emulator.GPU] = str(group.rank) * 32
    cuda_emulator.install()
    cuda_emulator.install_torch()


def nccl_on_some_ranks(group: Group) -> list[str]:
    on_its_own_gpu(group)
    if group.rank == 1:
        c10d.unavailable = lambda backend: "torch is not installed"
    return [outcome(summed, group, asarray(np.ones(4, np.float32))) for _ in range(2)]


def own_gpus(group: Group) -> None:
    """Every verb, in order with the caller's stream; calls on the CPU stay where they are."""
    on_its_own_gpu(group)
    rank, size = group.rank, group.size
    stream = gpu().create_stream()
    ranks = np.arange(size, dtype=np.float32)

    def written(values: Any) -> Any:
        """A new array, which gets its values late."""
        source, array = asarray(values), asarray(np.zeros_like(values))
        gate = threading.Event()
        gpu().hold(stream, gate)
        gpu().copy(array.data.ptr, source.data.ptr, values.nbytes, stream)
        array.kept = source
        threading.Timer(0.1, gate.set).start()
        return array

    def called(verb: str, source: Any, destination: Any, *details: Any) -> list[list[float]]:
        """The result of a call that waits, and of one that does not."""
        results = []
        for blocking in (True, False):
            into = None if destination is None else asarray(np.zeros(destination, np.float32))
            sent = None if source is None else written(np.asarray(source, np.float32))
            views = [None if one is None else buffers.view(one) for one in (sent, into)]
            getattr(dispatch, verb)(group, *views, *details, blocking=blocking).wait()
            results.append([] if into is None else into.tolist())
        assert results[0] == results[1]
        return results[0]

    with on_stream(stream):
        total = float(ranks.sum())
        mine = np.full(2, rank)
        last = size - 1
        at_last = 2 if rank == last else None
        assert called("all_reduce", mine, 2, ReduceOp.SUM) == [total] * 2
        assert called("reduce", mine, at_last, ReduceOp.SUM, last) == ([total] * 2)[: at_last or 0]
        everybodys = np.repeat(ranks, 2).tolist()
        assert called("all_gather", mine, 2 * size) == everybodys
        gathered = called("gather", mine, None if at_last is None else 2 * size, last)
        assert gathered == (everybodys if at_last else [])
        assert called("scatter", ranks if at_last else None, 1, last) == [rank]
        assert called("broadcast", mine if at_last else None, 2, last) == [last] * 2
        assert called("all_to_all", ranks + 10 * rank, size) == [10 * one + rank for one in ranks]
        assert called("reduce_scatter", ranks, 1, ReduceOp.SUM) == [size * rank]
        if rank == 0:
            dispatch.send(group, buffers.view(written(ranks)), last)
        if rank == last:
            received = empty(size, np.float32)
            dispatch.recv(group, buffers.view(received), 0)
            assert received.tolist() == ranks.tolist()
    stream = 0  # the default one
    assert called("all_reduce", mine, 2, ReduceOp.SUM) == [total] * 2
    on_cpu = np.ones(3)
    summed(group, on_cpu)
    dispatch.barrier(group)
    assert on_cpu.tolist() == [size] * 3
    pair = group.split([0, last])
    if pair.rank >= 0:
        array = asarray(np.ones(2))
        summed(pair, array)
        assert array.tolist() == [2, 2]


def own_gpus_and_calls_that_differ(group: Group) -> list[str]:
    on_its_own_gpu(group)
    array = asarray(np.ones(4 + group.rank // 2, np.float32))
    text = outcome(summed, group, array)
    array = asarray(np.ones(4, np.float32))
    summed(group, array)  # they can go on
    return [text, str(array.tolist())]


def own_gpus_and_a_rank_that_dies(group: Group) -> list[str]:
    on_its_own_gpu(group)
    array = asarray(np.ones(4, np.float32))
    summed(group, array)
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [outcome(summed, group, array) for _ in range(2)]


def own_gpus_without_a_trace(group: Group) -> list[str]:
    on_its_own_gpu(group)
    part = group.split(range(group.size), "all of them")
    summed(part, asarray(np.ones(4, np.float32)))
    part.close()
    links = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(file.readlink()))
    return [link for link in links if "nccl" in link]


# ---- faults ----


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


# ---- messages ----


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


# ---- beside engine shm ----


def chosen_by_itself(group: Group) -> list[str]:
    """A group of engine shm serves both memories; calls on the CPU are not in order with these."""
    cuda_emulator.install()
    on_cpu, on_gpu = np.ones(10), asarray(np.ones(LARGE))
    gate = threading.Event()
    gpu().hold(0, gate)
    works = [summed(group, on_gpu, blocking=False), summed(group, on_cpu, blocking=False)]
    summed(group, on_cpu)
    gate.set()
    for work in works:
        work.wait()
    assert set(on_cpu) == {float(group.size**2)}
    assert set(on_gpu.tolist()) == {float(group.size)}
    part = group.split([0, group.size - 1], "ends")
    if part.rank >= 0:
        summed(part, on_gpu)
        assert set(on_gpu.tolist()) == {float(2 * group.size)}
        part.close()
    return [group.engine.name, group.engine_for("cuda").name]


def both_faces(group: Group) -> None:
    from unisono.mindspore.communication import comm_func

    _dialect(group)
    size, rank = group.size, group.rank
    x = asarray(np.full((2, 3), rank + 1, np.float32))
    dist.all_reduce(x)
    assert set(x.ravel().tolist()) == {size * (size + 1) / 2}
    parts = [empty((2, 3), np.float32) for _ in range(size)]
    dist.all_gather(parts, asarray(np.full((2, 3), rank, np.float32)))
    assert [part.ravel().tolist()[0] for part in parts] == list(map(float, range(size)))
    out, _ = comm_func.all_reduce(asarray(np.ones(4, np.float32)))
    assert isinstance(out, cuda_emulator.ndarray) and out.tolist() == [float(size)] * 4
    total, handle = comm_func.all_gather_into_tensor(asarray(np.ones((1, 2))), async_op=True)
    handle.wait()
    assert total.get().shape == (size, 2)


def calls_that_compute_on_the_host(group: Group) -> None:
    """Results that NumPy puts together are on the GPU, too; lists may have arrays of both kinds."""
    from unisono.mindspore import ops
    from unisono.mindspore.communication import comm_func

    size, rank = group.size, group.rank
    _dialect(group)
    y = comm_func.reduce(asarray(np.ones(3)), 0)
    y = y[0] if isinstance(y, tuple) else y
    assert y.tolist() == [float(size if rank == 0 else 0)] * 3
    columns = asarray(np.arange(2.0 * size).reshape(2, size) + 100 * rank)
    rows = ops.AlltoAll(size, 1, 0)(columns)
    expected = [[100.0 * other + rank + size * row] for other in range(size) for row in range(2)]
    assert rows.get().tolist() == expected
    parts = [empty(2) if other % 2 else np.zeros(2) for other in range(size)]
    mixed = outcome(dist.all_gather, parts, np.full(2, float(rank)))
    assert mixed == "no error"
    assert [part.tolist() for part in parts] == [[float(other)] * 2 for other in range(size)]


def through_the_host(group: Group) -> None:
    """Where no engine reaches the GPU, all take arrays of CuPy all the same."""
    cuda_emulator.install()
    driver.missing = lambda: "the test has taken it away"
    array = asarray(np.arange(6.0))
    summed(group, array)
    assert array.tolist() == [group.size * value for value in range(6)]
    source, gathered = asarray(np.full(2, group.rank)), empty(2 * group.size, np.int64)
    dispatch.all_gather(group, buffers.view(source), buffers.view(gathered))
    assert gathered.tolist() == [rank for rank in range(group.size) for _ in range(2)]
    calls_that_compute_on_the_host(group)
    total = np.empty(2 * group.size, np.int64)
    dispatch.all_gather(group, buffers.view(source), buffers.view(total))  # of both kinds
    assert total.tolist() == gathered.tolist()
