"""Calls that are wrong, or that ranks do not agree on."""

from __future__ import annotations

import threading

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_cases.calls import LARGE, let_faces_call, outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu
from unisono.core import buffers, dispatch, dtypes
from unisono.core.buffers import devices
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.engines.cuda.gpu import device
from unisono.torch import distributed as dist


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


def cpu_against_gpu(group: Group, in_world: bool, on_cpu: list[int], blocking: bool) -> list[str]:
    """Some ranks call on the CPU where others call on the GPU, in the first calls and later."""
    part = group if in_world else group.split(range(group.size), f"part {on_cpu} {blocking}")
    here = np.ones(4, np.float32)
    on_gpu, is_on_cpu = asarray(here), group.rank in on_cpu

    def barrier() -> None:
        dispatch.barrier(part, blocking=blocking).wait()

    def total() -> None:
        summed(part, here if is_on_cpu else on_gpu, blocking=blocking).wait()

    texts = []
    for _ in range(3):
        texts += [outcome(total), outcome(barrier if is_on_cpu else total)]
        assert set(here.tolist()) == set(on_gpu.tolist()) == {1.0}  # nothing has moved
        # They can go on, and then it is the same call that was made before.
        for _ in range(2):
            array = asarray(here)
            summed(part, array)
            assert array.tolist() == [float(group.size)] * 4
        dispatch.barrier(part)
    if not in_world:
        part.close()
    return texts


def cpu_against_a_call_again(group: Group) -> str:
    """All have made the same call on the GPU before, and one rank now calls a barrier."""
    let_faces_call(group)
    array = asarray(np.ones(4, np.float32))
    for _ in range(3):
        dist.all_reduce(array)
    text = outcome(dist.barrier) if group.rank == 1 else outcome(dist.all_reduce, array)
    dist.all_reduce(array)
    assert array.tolist() == [float(group.size**4)] * 4
    return text


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
    let_faces_call(group)
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
