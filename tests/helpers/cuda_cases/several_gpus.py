"""Several GPUs: a rank has one of its own, or shares one of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_cases.calls import outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu, on_stream
from unisono.core import buffers, dispatch
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.engines.torch import c10d


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
