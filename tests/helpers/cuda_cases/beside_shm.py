"""Engine `shm` with engine `cuda` beside it; both faces; arrays that go through the host."""

from __future__ import annotations

import random
import threading
import time

import numpy as np

from tests.helpers import cuda_emulator
from tests.helpers.cuda_cases.calls import LARGE, let_faces_call, outcome, summed
from tests.helpers.cuda_emulator import asarray, empty, gpu
from unisono.core import buffers, dispatch
from unisono.core.groups import Group
from unisono.engines.cuda.gpu import driver
from unisono.torch import distributed as dist


def chosen_by_itself(group: Group) -> list[str]:
    """A group of engine shm serves both memories; calls on the CPU do not wait for the GPU."""
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


def calls_of_two_threads(group: Group) -> None:
    """One thread saves on the CPU while another trains on the GPU: there is no order of both."""
    cuda_emulator.install()
    group.order_apart("cuda")
    rush = random.Random(group.rank)  # no two ranks mix their calls alike
    on_cpu = [np.full(5, index, np.float32) for index in range(20)]
    on_gpu = [asarray(np.full(5, index, np.float32)) for index in range(20)]

    def save() -> None:
        for array in on_cpu:
            time.sleep(rush.random() * 2e-3)
            summed(group, array)

    thread = threading.Thread(target=save)
    thread.start()
    works = [summed(group, array, blocking=index % 3 == 0) for index, array in enumerate(on_gpu)]
    thread.join()
    for work in works:
        work.wait()
    for arrays in (on_cpu, on_gpu):
        sums = [set(array.tolist()) for array in arrays]
        assert sums == [{float(index * group.size)} for index in range(20)]
    wrong = outcome(summed, group, asarray(np.ones(4 + group.rank, np.float32)))
    assert wrong.startswith("MismatchError"), wrong
    summed(group, on_cpu[1])
    assert on_cpu[1].tolist() == [float(group.size**2)] * 5


def both_faces(group: Group) -> None:
    from unisono.mindspore.communication import comm_func

    let_faces_call(group)
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
    let_faces_call(group)
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
