"""The backend of torch.distributed: ordinary calls, which go straight to the native module.

They must be like those of the general way in all that can be seen, because ranks may take different
ways; and what the native module does alone must not depend on who keeps which object.
"""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.helpers import backend_cases as cases
from tests.helpers.backend_cases import DistributedDataParallel, data, same, same_each
from tests.helpers.processes import wait_until
from unisono.errors import MismatchError
from unisono.torch.backend.direct import native

RANKS = 3


total = functools.partial(cases.total, RANKS)

# ---- both ways -----------------------------------------------------------------------------------


def call_each(rank, group, async_op):
    """Every collective that has a way of its own; results in a list."""

    def end(work):
        if async_op:
            work.wait()

    every = [data(each, (3,)) for each in range(RANKS)]
    x, y, z = every[rank].clone(), every[rank].clone(), every[rank].clone()
    end(dist.all_reduce(x, group=group, async_op=async_op))
    same(x, total())
    end(dist.all_reduce(y, dist.ReduceOp.MAX, group=group, async_op=async_op))
    same(y, torch.stack(every).amax(0))
    end(dist.broadcast(z, 1, group=group, async_op=async_op))
    same(z, every[1])
    x = every[rank].clone()
    end(dist.reduce(x, 2, group=group, async_op=async_op))
    same(x, total() if rank == 2 else every[rank])
    whole = torch.zeros(3 * RANKS)
    end(dist.all_gather_into_tensor(whole, every[rank], group=group, async_op=async_op))
    same(whole, torch.cat(every))
    own = whole[3 * rank : 3 * rank + 3].fill_(rank)  # this rank's part of the result itself
    end(dist.all_gather_into_tensor(whole, own, group=group, async_op=async_op))
    same(whole, torch.arange(RANKS).repeat_interleave(3).float())
    share = torch.zeros(1)
    end(dist.reduce_scatter_tensor(share, every[rank], group=group, async_op=async_op))
    same(share, total()[rank : rank + 1])
    swapped = torch.zeros(3)
    end(dist.all_to_all_single(swapped, every[rank], group=group, async_op=async_op))
    same(swapped, torch.stack([tensor[rank] for tensor in every]))
    lists = [torch.zeros(3) for _ in range(RANKS)]
    end(dist.all_gather(lists, every[rank], group=group, async_op=async_op))
    same_each(lists, every)
    share = torch.zeros(1)
    own = list(every[rank].split(1))
    end(dist.reduce_scatter(share, own, group=group, async_op=async_op))
    same(share, total()[rank : rank + 1])
    lists = [torch.zeros(1) for _ in range(RANKS)]
    end(dist.all_to_all(lists, own, group=group, async_op=async_op))
    same(torch.cat(lists), torch.stack([tensor[rank] for tensor in every]))
    lists = [torch.zeros(3) for _ in range(RANKS)] if rank == 1 else None
    end(dist.gather(every[rank], lists, 1, group=group, async_op=async_op))
    same_each(lists or [], every if rank == 1 else [])
    x = torch.zeros(3)
    end(dist.scatter(x, every if rank == 2 else None, 2, group=group, async_op=async_op))
    same(x, every[rank])
    end(dist.barrier(group=group, async_op=async_op))


def mix_ways(rank, folder):
    """Each rank in turn goes the general way, then all do."""
    group = dist.new_group()
    direct = group.direct
    assert direct is not None
    for others in ([], [0], [1], [2], [0, 1, 2]):
        group.direct = None if rank in others else direct
        for async_op in (False, True):
            before = group._core._calls  # those of the general way
            call_each(rank, group, async_op)
            made = group._core._calls - before
            # Calls with lists go the general way unless they block.
            assert made == (14 if rank in others else 5 if async_op else 0)
    group.direct = direct
    # Sizes that are given on one rank, and are the same on all.
    own, swapped = data(rank, (3,)), torch.zeros(3)
    sizes = [1, 1, 1] if rank == 1 else None
    dist.all_to_all_single(swapped, own, sizes, sizes, group=group)
    same(swapped, torch.stack([data(each, (3,))[rank] for each in range(RANKS)]))


def test_ranks_take_different_ways(run):
    run(mix_ways)


def disagree(rank, folder):
    """The same mistake both ways, blocking or not: the same error, with the same notes."""
    group = dist.new_group()
    direct, seen = group.direct, []
    for way in (direct, None):
        group.direct = way
        for finish in (
            lambda x: dist.all_reduce(x, group=group),
            lambda x: dist.all_reduce(x, group=group, async_op=True).wait(),
            lambda x: dist.all_reduce(x, group=group, async_op=True).result(),
            lambda x: dist.all_reduce(x, group=group, async_op=True).get_future().wait(),
        ):
            with pytest.raises(MismatchError) as caught:
                finish(torch.ones(3, dtype=torch.float64 if rank == 1 else torch.float32))
            error = caught.value
            assert len(error.__notes__) == 1 and "unisono trace" in str(error)
            number = len(seen) + 1
            assert f"in all_reduce (call {number}) on group" in error.__notes__[0]
            first = str(error).partition("\n")[0].replace(f"call {number}", "call N")
            seen.append((first, error.ranks))
    assert seen[:4] == seen[4:]
    group.direct = direct
    x = data(rank, (3,))
    dist.all_reduce(x, group=group)  # the group still works
    same(x, total())


def test_errors_are_the_same(run):
    run(disagree)


class Labelled(torch.Tensor):
    """A subclass, which may be anything."""


def leave_alone(rank, folder):
    """Native code does nothing, and says so."""
    group, plain = dist.group.WORLD, torch.zeros(2, 3)
    freed = torch.zeros(9)[3:]  # at an address that is not 0, and is none
    freed.untyped_storage().resize_(0)
    before = group._core.calls

    def is_left(name, *arguments):
        return getattr(native, name)(group, *arguments) is NotImplemented

    for tensor in (
        plain.t(),
        plain[:, :2],
        plain.to_sparse(),
        torch.zeros(3, requires_grad=True),
        torch.zeros(3, dtype=torch.complex64).conj(),
        torch.zeros(1, dtype=torch.complex64).conj().imag,
        torch.zeros(3, device="meta"),
        torch.zeros(0),
        torch.zeros(3).as_subclass(Labelled),
        torch._efficientzerotensor(3),
        freed,
        torch.empty(3, dtype=torch.uint4),
    ):
        assert is_left("all_reduce", [tensor], None), (tensor.dtype, tensor.shape)
    options = dist.AllreduceOptions()
    options.reduceOp = dist._make_nccl_premul_sum(2.0)
    assert is_left("all_reduce", [torch.zeros(3)], options)
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=5)
    assert is_left("all_reduce", [torch.zeros(3)], options)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.BAND
    assert is_left("all_reduce", [torch.zeros(3)], options)
    assert is_left("all_reduce", [torch.zeros(3)] * 2, None)
    assert is_left("all_reduce", (torch.zeros(3),), None)
    assert is_left("broadcast", [torch.zeros(3)], None)
    assert is_left("broadcast", [torch.zeros(3).numpy()], dist.BroadcastOptions())
    assert is_left("send", [torch.zeros(3)], (rank + 1) % RANKS, None)  # a tag that is none
    whole = torch.zeros(3 * RANKS)
    assert is_left("all_gather_single", whole, whole[1:4], None)  # no part of its own
    assert is_left("all_gather_single", whole, torch.zeros(2), None)
    assert is_left("all_gather_single", whole, torch.zeros(3, dtype=torch.int32), None)
    assert is_left("reduce_scatter_single", torch.zeros(2), whole, None)
    assert is_left("all_to_all_single", torch.zeros(4), torch.zeros(4), [], [], None)
    assert is_left("all_to_all_single", whole, whole, [], [], None)
    assert is_left("all_to_all_single", whole, whole.clone(), [3] * RANKS, [], None)
    assert is_left("barrier", None, None)  # one too many
    assert group._core.calls == before


def test_what_is_not_ordinary_is_left_alone(run):
    run(leave_alone)


# ---- memory, threads and callbacks ---------------------------------------------------------------


def drop(rank, folder):
    """Nobody holds the work or its tensors while rank 1 is late."""
    group, come = dist.new_group(), folder / "come"
    x, storages = data(rank, (1000,)), []
    if rank == 1:
        wait_until(come.exists)
    for turn in range(20):
        y = x.clone()
        storages.append(weakref.ref(y))
        work = dist.all_reduce(y, group=group, async_op=True)
        if turn % 2:
            work.get_future()
        del y, work
    gc.collect()
    if rank == 0:
        assert all(each() is not None for each in storages)
        come.touch()
    dist.all_reduce(x, group=group)  # comes after all of them
    same(x, total((1000,)))
    dist.all_reduce(x, group=group, async_op=True).wait()
    wait_until(lambda: gc.collect() >= 0 and all(each() is None for each in storages))


def test_handles_that_are_dropped(run):
    run(drop)


def change_the_list(rank, folder):
    group, come = dist.new_group(), folder / "come"
    tensors = [data(rank, (1000,))]
    own = tensors[0]
    if rank != 0:
        wait_until(come.exists)
    work = group.allreduce(tensors)  # without torch's function, which makes a list of its own
    tensors[0] = None
    if rank == 0:
        come.touch()
    assert work.result()[0] is own
    same(own, total((1000,)))


def test_the_list_of_a_call_may_change_afterwards(run):
    run(change_the_list)


def hold_the_work(rank, folder):
    """A tensor has the work that writes it as an attribute."""
    x = data(rank, (1000,))
    x.work, alive = dist.all_reduce(x, async_op=True), weakref.ref(x)
    x.work.wait()
    del x
    gc.collect()
    assert alive() is None


def test_a_tensor_may_have_its_work(run):
    run(hold_the_work)


def wait_in_any_order(rank, folder):
    group = dist.new_group()
    tensors = [data(rank, (7,), slot=slot) for slot in range(12)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    works[5].wait()  # runs those before it
    assert all(work.is_completed() for work in works[:6])
    works[11].get_future().wait()
    for slot, work in enumerate(works):
        assert work.wait() and work.is_success()
        same(tensors[slot], total((7,), slot))
    # Nobody waits for these; the native thread runs them, after it was not needed for a while.
    for _ in range(50):
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
    last = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    wait_until(last.is_completed)


def test_who_waits_runs_the_queue(run):
    run(wait_in_any_order)


def look_at_each_attribute(rank, folder):
    """As debuggers do, which show all of them."""
    x = torch.ones(1)
    if rank == 0:
        message = dist.isend(x, 1)
    elif rank == 1:
        message = dist.irecv(x, 0)
    works = [dist.all_reduce(torch.ones(1), async_op=True)]
    if rank < 2:
        works.append(message)
    seen = [
        {name: getattr(work._call, name) for name in dir(work._call) if name[0] != "_"}
        for work in works
    ]
    assert [(each["verb"], each["peer"]) for each in seen] == [
        ("all_reduce", -1),
        *[("send", 1), ("recv", 0)][rank : min(rank + 1, 2)],
    ]
    for work in works:
        work.wait()


def test_every_attribute_of_a_call_can_be_read(run):
    run(look_at_each_attribute)


def ask_before_a_message(rank, folder):
    """Rank 1 makes the call only after a message that rank 0 sends when it has its future."""
    group, token, x = dist.new_group(), torch.ones(1), data(rank, (3,))
    if rank == 1:
        dist.recv(token, 0)
    future = dist.all_reduce(x, group=group, async_op=True).get_future()
    if rank == 0:
        dist.send(token, 1)
    same_each(future.wait(), [total()])


def test_a_future_does_not_wait(run):
    run(ask_before_a_message)


def train(rank, folder):
    """C++ waits for the futures of DDP, and no thread of Python is between."""
    group = dist.new_group()
    model = DistributedDataParallel(torch.nn.Linear(20, 3), process_group=group, bucket_cap_mb=1e-5)
    for _ in range(5):
        model(torch.ones(4, 20) * (rank + 1)).sum().backward()
        same(model.module.weight.grad[0], torch.full((20,), 4 * (1 + 2 + 3) / 3))
        model.zero_grad()
    named = [thread.name for thread in threading.enumerate()]
    assert not [name for name in named if group._core.name in name], named


def test_no_thread_between_ddp_and_the_native_module(run):
    run(train)


def collect(rank, folder):
    """C++ combines futures; and a callback that C++ runs raises, which ends nothing."""
    group = dist.new_group()
    tensors = [data(rank, (3,), slot=slot) for slot in range(5)]
    futures = [
        dist.all_reduce(tensor, group=group, async_op=True).get_future() for tensor in tensors
    ]
    plain = torch._C.Future.then(futures[2], lambda ended: 1 // 0)
    torch.futures.collect_all(futures).wait()
    with pytest.raises(RuntimeError, match="division"):
        plain.wait()
    same_each(tensors, [total(slot=slot) for slot in range(5)])
    assert all(torch._C.Future.done(future) for future in futures)
    late = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    late.wait()
    future = late.get_future()  # the call has ended before
    assert late.get_future() is future
    wait_until(lambda: torch._C.Future.done(future))  # the native thread may be on its way
    same_each(torch._C.Future.wait(future), [torch.full((2,), 3.0)])


def test_futures_in_cpp(run):
    run(collect)
