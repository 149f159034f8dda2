"""The backend of torch.distributed: works, futures, callbacks, and the other ways to call it.

A rank that must be late waits for a file that another one writes, so that little depends on time.
"""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager as coalescing

from tests.helpers import backend_cases as cases
from tests.helpers.backend_cases import (
    call_methods,
    data,
    meet_at_barriers,
    same,
    same_each,
    start_each,
)
from tests.helpers.processes import wait_until
from tests.helpers.thorough import essential
from unisono.errors import CommTimeout

RANKS = 3


total = functools.partial(cases.total, RANKS)

# ---- works ---------------------------------------------------------------------------------------


def finish_each(rank, folder, finish):
    for work, tensors, expected in start_each(rank, RANKS):
        finish(work, tensors)
        same_each(tensors, expected)
        assert work.is_completed() and work.is_success()
        assert work.exception() is None
        assert work.wait()  # once more


def by_wait(work, tensors):
    with pytest.raises(TypeError):  # as in torch, whichever way the call goes
        work.wait(None)
    assert work.wait() is True


def by_wait_with_time(work, tensors):
    assert work.wait(timedelta(seconds=20)) is True


def by_asking(work, tensors):
    wait_until(work.is_completed)
    assert work.is_success() and work.exception() is None


def by_result(work, tensors):
    got = work.result()
    assert [each is tensor for each, tensor in zip(got, tensors, strict=True)] == [True] * len(got)


def by_future(work, tensors):
    future = work.get_future()
    same_each(future.wait(), tensors)
    assert future.done() and work.get_future() is future
    same_each(future.value(), tensors)


def by_callback(work, tensors):
    future = work.get_future().then(lambda ended: [tensor + 1 for tensor in ended.value()])
    seen = []
    future.add_done_callback(lambda ended: seen.append(ended.value()))
    more = future.then(lambda ended: sum(tensor.sum().item() for tensor in ended.wait()))
    assert more.wait() == sum((tensor + 1).sum().item() for tensor in tensors)
    assert len(seen) == 1  # callbacks run in their order
    same_each(seen[0], [tensor + 1 for tensor in tensors])


WAYS = (by_wait, by_wait_with_time, by_asking, by_result, by_future, by_callback)


@pytest.mark.parametrize("way", essential(1, WAYS))
def test_each_operation_by(run, way):
    run(finish_each, way)


def start_all_at_once(rank, folder):
    started = list(start_each(rank, RANKS))
    works = [work.get_future() for work, _, _ in started]
    gathered = torch.futures.collect_all(works).wait()
    same_each(gathered[0].value(), [total()])
    for future, (_, tensors, expected) in zip(gathered, started, strict=True):
        same_each(future.value(), tensors)
        same_each(tensors, expected)


def test_all_operations_under_way(run):
    run(start_all_at_once)


def many(rank, folder):
    tensors = [data(rank, (1 + i % 50,), slot=i) for i in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in random.Random(rank).sample(range(200), 200):
        works[i].wait()
        same(tensors[i], total((1 + i % 50,), i))
    tensors = [data(rank, (1 + i % 50,), slot=i) for i in range(200)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)  # dropped; the barrier comes after it
    gc.collect()
    dist.barrier()
    for i, tensor in enumerate(tensors):
        same(tensor, total((1 + i % 50,), i))


def test_many_calls_under_way(run):
    run(many)


def wait_too_short(rank, folder):
    """Rank 1 comes after rank 0 has reached its timeout, which three methods must show."""
    come = folder / "come"
    if rank == 1:
        wait_until(come.exists)
    x = data(rank, (3,))
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    if rank == 0:
        with pytest.raises(CommTimeout) as caught:
            work.wait(timedelta(milliseconds=50))
        assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, TimeoutError)
        assert not work.is_completed() and not work.is_success()
        assert work.exception() is None
        assert not future.done()
        come.touch()
    work.wait()
    same(x, total())
    same_each(future.wait(), [total()])


def test_wait_with_a_timeout_that_passes(run):
    run(wait_too_short)


def wait_for_several(rank, folder):
    """Messages come one by one, each soon after the one before it: a wait counts them all."""
    count, came = 8, folder / "waiting"
    if rank == 1:
        wait_until(came.exists)
        for _ in range(count):
            time.sleep(0.6)
            dist.send(torch.ones(2), 0)
    if rank == 0:
        group = dist.group.WORLD
        group._start_coalescing(torch.device("cpu"))
        tensors = [torch.zeros(2) for _ in range(count)]
        for tensor in tensors:
            group.recv([tensor], 1)
        work = group._end_coalescing(torch.device("cpu"))
        came.touch()
        with pytest.raises(CommTimeout):
            work.wait(timedelta(seconds=1))
        assert not work.is_completed()
        assert work.wait()
        same_each(work.result(), [torch.ones(2)] * count)


@pytest.mark.thorough
def test_wait_for_several_calls_with_one_timeout(run):
    run(wait_for_several)


def overlap(rank, folder, count):
    """Rank 0 does not wait for its call until the others have their results."""
    x = data(rank, (count,))
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        wait_until(lambda: len(list(folder.glob("done-*"))) == RANKS - 1)
        work.wait()
    else:
        dist.all_reduce(x)
        (folder / f"done-{rank}").touch()
    same(x, total((count,)))


@pytest.mark.parametrize("count", [1, 1 << 20], ids=["4 B", "4 MiB"])
def test_progress_while_a_rank_computes(run, count):
    run(overlap, count)


# ---- futures and callbacks -----------------------------------------------------------------------


def fail_in_callbacks(rank, folder):
    def fail(_):
        raise KeyError("mine")

    for started in (
        dist.all_reduce(torch.ones(2), async_op=True),
        dist.group.WORLD.allreduce([torch.ones(2)]),
    ):
        child = started.get_future().then(fail)
        grandchild = child.then(lambda ended: ended.value())
        for future in (child, grandchild):
            with pytest.raises(Exception, match="mine"):
                future.wait()
            with pytest.raises(Exception, match="mine"):
                future.value()
        started.get_future().add_done_callback(fail)  # lost, and no thread ends because of it
        same_each(started.get_future().wait(), [torch.full((2,), float(RANKS))])
    # Other callbacks are not affected.
    work = dist.all_reduce(torch.ones(2), async_op=True)
    first, second = work.get_future().then(fail), work.get_future().then(lambda ended: 7)
    assert second.wait() == 7
    with pytest.raises(KeyError):
        first.wait()


def test_errors_in_callbacks(run):
    run(fail_in_callbacks)


def exit_in_a_callback(rank, folder):
    def leave(_):  # ends neither the process nor the thread that all callbacks share
        raise SystemExit(3)

    child = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(leave)
    after = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda ended: 7)
    wait_until(lambda: child.done() and after.done())
    with pytest.raises((RuntimeError, SystemExit)):
        child.wait()
    assert after.wait() == 7


def test_exit_in_a_callback(run):
    run(exit_in_a_callback)


def nap(dice):
    if dice.random() < 0.2:
        time.sleep(dice.random() * 0.004)


def call_in_callbacks(rank, folder, rounds):
    """Callbacks start calls in three ways, while this thread starts other calls."""
    dice = random.Random(rank)  # different pauses on each rank

    def again(ended):
        (x,) = ended.value()
        nap(dice)
        dist.all_reduce(x)
        nap(dice)
        y = x.clone()
        (z,) = dist.all_reduce(y, async_op=True).get_future().wait()
        child = dist.broadcast(x, 1, async_op=True).get_future()
        return child.then(lambda done: (done.value()[0], z)).wait()

    pending = []
    for turn in range(rounds):
        x = data(rank, (2 + turn % 5,), slot=turn)
        future = dist.all_reduce(x, async_op=True).get_future()
        nap(dice)
        pending.append((turn, future.then(again)))
        nap(dice)
        y = data(rank, (3, 1 + turn % 3), slot=turn)
        dist.all_reduce(y)
        same(y, total((3, 1 + turn % 3), turn))
        if turn % 7 == 0:
            parts = [torch.zeros(2) for _ in range(RANKS)]
            dist.all_gather(parts, data(rank, (2,)))
            same_each(parts, [data(each, (2,)) for each in range(RANKS)])
        if turn % 10 == 9:
            check_pending(pending)
    check_pending(pending)


def check_pending(pending):
    while pending:
        turn, future = pending.pop()
        first, second = future.wait()
        expected = total((2 + turn % 5,), turn)
        same(first, expected * RANKS)
        same(second, expected * RANKS**2)


def test_callbacks_that_start_calls(run):
    run(call_in_callbacks, 150)


def call_in_callbacks_of_methods(rank, folder):
    """Python code calls a method itself; on rank 1 the call has ended when `then` is called."""
    group = dist.new_group(timeout=timedelta(seconds=5))
    x = data(rank, (3,))
    work = group.allreduce([x])
    future = work.get_future()
    if rank == 1:
        future.wait()

    def again(ended):
        (y,) = ended.value()
        dist.all_reduce(y, group=group)
        return y

    same(future.then(again).wait(), total() * RANKS)


def test_callbacks_of_methods_that_start_calls(run):
    run(call_in_callbacks_of_methods)


def attach_in_a_callback(rank, folder):
    """A callback attaches another one to a future that is completed after it."""
    made, attached = threading.Event(), []

    def attach(_):
        assert made.wait(20)
        attached.append(later.then(lambda ended: ended.value()[0] + 1))

    first = dist.all_reduce(data(rank, (3,)), async_op=True).get_future().then(attach)
    later = dist.all_reduce(data(rank, (3,)), async_op=True).get_future()
    made.set()
    first.wait()
    same(attached[0].wait(), total() + 1)


def test_callbacks_that_attach_callbacks(run):
    run(attach_in_a_callback)


def use_futures_of_messages(rank, folder):
    """The first is attached before the message comes, the second one after it."""
    x = torch.zeros(3)
    future = dist.irecv(x, (rank - 1) % RANKS).get_future()
    before = future.then(lambda ended: ended.value()[0] + 1)
    dist.send(data(rank, (3,)), (rank + 1) % RANKS)
    expected = data((rank - 1) % RANKS, (3,))
    same_each(future.wait(), [expected])
    after = before.then(lambda ended: ended.value() + 1)
    same(before.wait(), expected + 1)
    same(after.wait(), expected + 2)


def test_futures_of_messages(run):
    run(use_futures_of_messages)


def use_threads(rank, folder):
    """Two threads with a group each, as in code with an all_gather in the background."""
    groups, failures = [dist.new_group() for _ in range(2)], []

    def call(group, slot):
        for turn in range(100):
            x = data(rank, (3,), slot=slot + turn)
            if turn % 2:
                dist.all_reduce(x, group=group)
            else:
                dist.all_reduce(x, group=group, async_op=True).get_future().wait()
            if not torch.equal(x, total(slot=slot + turn)):
                failures.append((slot, turn))

    threads = [threading.Thread(target=call, args=(groups[i], i)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_with_groups(run):
    run(use_threads)


# ---- other ways to call --------------------------------------------------------------------------


@pytest.mark.parametrize("function", [call_methods, meet_at_barriers])
def test_methods_and_barriers(run, function):
    run(function)


def coalesce(rank, folder):
    def in_a_manager(tensors):
        with coalescing():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def in_the_background(tensors):
        dist.all_reduce_coalesced(tensors, async_op=True).wait()  # a future, as torch has it

    for reduce in (dist.all_reduce_coalesced, in_a_manager, in_the_background):
        tensors = [data(rank, (2, 3)), data(rank, (4,), slot=1)]
        reduce(tensors)
        same_each(tensors, [total((2, 3)), total((4,), 1)])
    out = [torch.zeros(1) for _ in range(RANKS)]
    with coalescing(device=torch.device("cpu")):  # these are not delayed
        dist.all_gather(out, torch.tensor([rank + 1.0]))
    assert [each.item() for each in out] == [1, 2, 3]


@pytest.mark.thorough
def test_coalescing(run):
    run(coalesce)


def call_functional(rank, folder):
    group, every = dist.group.WORLD, [data(each, (3,)) for each in range(RANKS)]
    own = every[rank].clone()
    same(functional.all_reduce(own, "sum", group) + 0, total())
    same(functional.all_reduce(own, "max", group) + 0, torch.stack(every).amax(0))
    same(functional.broadcast(own, 1, group) + 0, every[1])
    same(functional.all_gather_tensor(own, 0, group) + 0, torch.cat(every))
    share = functional.reduce_scatter_tensor(own, "sum", 0, group)
    same(share + 0, total()[rank : rank + 1])
    swapped = functional.all_to_all_single(own, None, None, group)
    same(swapped + 0, torch.stack([tensor[rank] for tensor in every]))
    pair = functional.all_reduce_coalesced([own, own * 2], "sum", group)
    same_each([tensor + 0 for tensor in pair], [total(), total() * 2])
    pair = functional.all_gather_into_tensor_coalesced([own, own * 2], group)
    same_each([tensor + 0 for tensor in pair], [torch.cat(every), torch.cat(every) * 2])
    pair = functional.reduce_scatter_tensor_coalesced([own, own], "sum", [0, 0], group)
    same_each([tensor + 0 for tensor in pair], [total()[rank : rank + 1]] * 2)
    same(own, every[rank])
    learned = data(rank, (3,)).requires_grad_()
    (functional.all_gather_tensor_autograd(learned, 0, group) * (rank + 1)).sum().backward()
    same(learned.grad, torch.full((3,), 6.0))  # 1 + 2 + 3
    # C++ holds the works of these; Python does not.
    started = []
    for turn in range(100):
        started.append(functional.all_reduce(data(rank, (5,), slot=turn), "sum", group))
        gc.collect(2 if turn % 25 == 0 else 0)
    for turn, tensor in enumerate(started):
        same(functional.wait_tensor(tensor) + 0, total((5,), turn))
    for turn in range(100):
        functional.all_reduce(data(rank, (5,), slot=turn), "sum", group)  # nobody waits
    gc.collect()
    dist.barrier()


@pytest.mark.thorough
def test_functional_collectives(run):
    run(call_functional)
