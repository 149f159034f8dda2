"""Every function of the PyTorch face, on every engine, with NumPy arrays and torch tensors."""

from __future__ import annotations

import contextlib
import time
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch.distributed as upstream

import unisono.torch.distributed as dist
from tests.helpers.tensors import RANKS, make, same, zeros
from unisono.core.engine import DONE
from unisono.errors import CommTimeout, MismatchError

CASES = []


def case(function):
    """Run this function on all ranks, once for each engine and kind of tensor."""
    CASES.append(function)
    return function


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_on_every_engine(world, function, kind):
    world(RANKS, function, kind)


# ---- reductions ----------------------------------------------------------------------------------


@case
def all_reduce(world, kind):
    x = make(kind, [world.rank, 10])
    assert dist.all_reduce(x) is None
    same(x, [3, 30])
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_reduce(x, op=upstream.ReduceOp.AVG)  # real torch's operators mean the same
    same(x, [3, 30])
    dist.all_reduce(x, upstream.ReduceOp(upstream.ReduceOp.PRODUCT))
    same(x, [27, 27000])


@case
def premul_sum(world, kind):
    for operator in (dist._make_nccl_premul_sum(0.5), upstream._make_nccl_premul_sum(0.5)):
        x = make(kind, [world.rank * 2])
        dist.all_reduce(x, operator)
        same(x, [3])
    x = make(kind, [world.rank])
    dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM)
    same(x, [3])


@case
def all_reduce_async(world, kind):
    x = make(kind, [world.rank])
    work = dist.all_reduce(x, async_op=True)
    assert work.result()[0] is x and len(work.result()) == 1
    same(x, [3])
    assert work.is_completed() and work.exception() is None


@case
def all_reduce_coalesced(world, kind):
    x, y = make(kind, [world.rank, 1]), make(kind, [[world.rank * 2]])
    work = dist.all_reduce_coalesced([x, y], async_op=True)
    assert [id(t) for t in work.result()] == [id(x), id(y)]
    same(x, [3, 3])
    same(y, [[6]])
    dist.all_reduce_coalesced(x)
    same(x, [9, 9])


@case
def reduce_keeps_the_others(world, kind):
    x = make(kind, [world.rank + 1])
    dist.reduce(x, dst=1)
    same(x, [6] if world.rank == 1 else [world.rank + 1])
    dist.reduce(x, group_dst=0, op=dist.ReduceOp.MAX, async_op=True).wait()
    same(x, [[6], [6], [3]][world.rank])


@case
def reduce_scatter(world, kind):
    out = zeros(kind, 2)
    dist.reduce_scatter(out, [make(kind, [i, world.rank]) for i in range(RANKS)])
    same(out, [3 * world.rank, 3])


@case
def reduce_scatter_of_different_shapes(world, kind):
    parts = [make(kind, np.full((i + 1, 2), world.rank + i)) for i in range(RANKS)]
    out = zeros(kind, world.rank + 1, 2)
    dist.reduce_scatter(out, parts, op=dist.ReduceOp.MAX)
    same(out, np.full((world.rank + 1, 2), 2 + world.rank))


@case
def reduce_scatter_single(world, kind):
    for function in (dist.reduce_scatter_single, dist.reduce_scatter_tensor):
        for shape in ((6, 2), (3, 2, 2)):  # joined, and stacked
            whole = make(kind, np.arange(12).reshape(shape))
            out = zeros(kind, 2, 2)
            work = function(out, whole, async_op=True)
            assert work.result()[0] is out
            same(out, 3 * (np.arange(4).reshape(2, 2) + 4 * world.rank))


# ---- moves ---------------------------------------------------------------------------------------


@case
def broadcast(world, kind):
    x = make(kind, [world.rank, world.rank])
    dist.broadcast(x, 2)
    same(x, [2, 2])
    x = make(kind, [world.rank])
    dist.broadcast(x, group_src=1, async_op=True).wait()
    same(x, [1])


@case
def all_gather(world, kind):
    parts = [zeros(kind, 2) for _ in range(RANKS)]
    work = dist.all_gather(parts, make(kind, [world.rank, 7]), async_op=True)
    assert all(a is b for a, b in zip(work.result(), parts, strict=True))
    for rank, part in enumerate(parts):
        same(part, [rank, 7])


@case
def all_gather_of_different_lengths(world, kind):
    parts = [zeros(kind, rank + 1, 2) for rank in range(RANKS)]
    dist.all_gather(parts, make(kind, np.full((world.rank + 1, 2), world.rank)))
    for rank, part in enumerate(parts):
        same(part, np.full((rank + 1, 2), rank))


@case
def all_gather_single(world, kind):
    for function in (dist.all_gather_single, dist.all_gather_into_tensor):
        together, stacked = zeros(kind, 6), zeros(kind, 3, 2)
        for out in (together, stacked):
            function(out, make(kind, [world.rank, 7]))
        same(together, [0, 7, 1, 7, 2, 7])
        same(stacked, [[0, 7], [1, 7], [2, 7]])


@case
def names_that_torch_gives_up(world, kind):
    mine, whole, part = make(kind, [world.rank, 7]), zeros(kind, 6), zeros(kind, 2)
    warnings.simplefilter("ignore", FutureWarning)  # see the test of the warning
    dist._all_gather_base(whole, mine, None, True).wait()
    same(whole, [0, 7, 1, 7, 2, 7])
    assert dist._reduce_scatter_base(part, whole, dist.ReduceOp.MAX) is None
    same(part, [world.rank, 7])


@case
def all_gather_coalesced(world, kind):
    outputs = [[zeros(kind, 1), zeros(kind, 2, 1)] for _ in range(RANKS)]
    inputs = [make(kind, [world.rank]), make(kind, [[world.rank], [9]])]
    dist.all_gather_coalesced(outputs, inputs)
    for rank, row in enumerate(outputs):
        same(row[0], [rank])
        same(row[1], [[rank], [9]])


@case
def gather(world, kind):
    parts = [zeros(kind, rank + 1) for rank in range(RANKS)] if world.rank == 1 else None
    mine = make(kind, [world.rank] * (world.rank + 1))
    dist.gather(mine, parts, dst=1)
    for rank, part in enumerate(parts or []):
        same(part, [rank] * (rank + 1))
    wrong = None if world.rank == 0 else [mine]
    with pytest.raises(ValueError, match="gather_list must"):
        dist.gather(mine, wrong)  # dst is 0 by default


@case
def scatter(world, kind):
    parts = [make(kind, [rank] * (rank + 1)) for rank in range(RANKS)] if world.rank == 2 else None
    out = zeros(kind, world.rank + 1)
    work = dist.scatter(out, parts, group_src=2, async_op=True)
    assert work.result()[0] is out
    same(out, [world.rank] * (world.rank + 1))
    wrong = None if world.rank == 0 else [out]
    with pytest.raises(ValueError, match="scatter_list must"):
        dist.scatter(out, wrong)


@case
def all_to_all(world, kind):
    out = [zeros(kind, 1, world.rank + 1) for _ in range(RANKS)]
    dist.all_to_all(out, [make(kind, [[world.rank] * (rank + 1)]) for rank in range(RANKS)])
    for rank, part in enumerate(out):
        same(part, [[rank] * (world.rank + 1)])


@case
def all_to_all_single(world, kind):
    out = zeros(kind, 3, 2)
    rows = make(kind, [[world.rank, to] for to in range(RANKS)])
    dist.all_to_all_single(out, rows)
    same(out, [[rank, world.rank] for rank in range(RANKS)])


@case
def all_to_all_single_by_rows(world, kind):
    sizes = [0, 1, 2]  # rank r receives r rows of two numbers from everyone
    out = zeros(kind, 3 * world.rank, 2)
    rows = make(kind, [[world.rank, 0], [world.rank, 1], [world.rank, 2]])
    dist.all_to_all_single(out, rows, [world.rank] * RANKS, sizes)
    first = sum(sizes[: world.rank])
    expected = [[rank, first + i] for rank in range(RANKS) for i in range(world.rank)]
    same(out, np.array(expected, np.float32).reshape(-1, 2))


@case
def memory_with_gaps(world, kind):
    whole = make(kind, np.zeros((4, 2)))
    column = whole[:, 1]
    column[:] = world.rank
    dist.all_reduce(column)
    same(whole, [[0, 3]] * 4)
    parts = make(kind, np.zeros((2, RANKS)))
    dist.all_gather([parts[:, rank] for rank in range(RANKS)], make(kind, [world.rank, 5]))
    same(parts, [[0, 1, 2], [5, 5, 5]])


@case
def plain_buffers(world, kind):
    parts = [bytearray(2) for _ in range(RANKS)]
    dist.all_gather(parts, bytearray([world.rank, 7]))
    assert parts == [bytearray([rank, 7]) for rank in range(RANKS)]
    out = bytearray(3)
    dist.all_to_all_single(out, bytearray([world.rank] * 3))
    assert out == bytearray([0, 1, 2])


@case
def barriers(world, kind):
    assert dist.barrier() is None
    assert dist.barrier(device_ids=[0], timeout=timedelta(seconds=30), async_op=True).result() == []
    assert dist.monitored_barrier(timeout=timedelta(seconds=30)) is None
    with pytest.raises(TypeError, match="timedelta"):
        dist.barrier(timeout=30)
    assert world.engine.timeout != 30


# ---- messages ------------------------------------------------------------------------------------


@case
def send_and_recv(world, kind):
    x = make(kind, [world.rank, 5])
    if world.rank == 0:
        assert dist.send(x, 1, tag=3) is None
        dist.send(x, group_dst=2)
    else:
        y = zeros(kind, 2)
        given = {"src": 0, "tag": 3} if world.rank == 1 else {"group_src": 0}
        assert dist.recv(y, **given) == 0
        same(y, [0, 5])
    with pytest.raises(ValueError, match="itself"):
        dist.send(x, world.rank)


@case
def recv_from_any(world, kind):
    if world.rank == 0:
        y = zeros(kind, 1)
        senders = {dist.recv(y): float(np.asarray(y)[0]) for _ in range(2)}
        assert senders == {1: 1.0, 2: 2.0}
    else:
        dist.send(make(kind, [world.rank]), 0)
    dist.barrier()


@case
def messages_to_oneself(world, kind):
    """Some engines end these before they return; each work has its own result anyway."""
    me = world.rank
    sent = [make(kind, [me]), make(kind, [me + 10])]
    landing = [zeros(kind, 1), zeros(kind, 1)]
    works = [dist.isend(tensor, me, tag=tag) for tag, tensor in enumerate(sent)]
    works += [dist.irecv(tensor, me, tag=tag) for tag, tensor in enumerate(landing)]
    for work, tensor in zip(works, [*sent, *landing], strict=True):
        (result,) = work.result()
        assert result is tensor
    same(landing[0], [me])
    same(landing[1], [me + 10])
    assert DONE.value is None


@case
def isend_and_irecv(world, kind):
    to, back = (world.rank + 1) % RANKS, (world.rank - 1) % RANKS
    y = zeros(kind, 1)
    receiving = dist.irecv(y, back)
    sending = dist.isend(make(kind, [world.rank]), to)
    assert receiving.result()[0] is y and receiving.source == back
    sending.wait()
    same(y, [back])


@case
def batch(world, kind):
    to, back = (world.rank + 1) % RANKS, (world.rank - 1) % RANKS
    x, y = make(kind, [world.rank]), zeros(kind, 1)
    ops = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, group_peer=back)]
    assert (ops[0].peer, ops[1].group_peer) == (to, back) and "isend" in repr(ops[0])
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(y, [back])
    other = dist.P2POp(dist.isend, x, to, dist.new_group())
    for bad, error in (
        (lambda: dist.batch_isend_irecv([ops[0], other]), ValueError),
        (lambda: dist.P2POp(dist.send, x, to), ValueError),
        (lambda: dist.P2POp(dist.isend, 5, to), TypeError),
        (lambda: dist.P2POp(dist.isend, x), ValueError),
        (lambda: dist.batch_isend_irecv([x]), ValueError),
    ):
        with pytest.raises(error):
            bad()


# ---- objects -------------------------------------------------------------------------------------


@case
def objects(world, kind):
    mine = {"rank": world.rank, "data": make(kind, [world.rank])}
    every = [None] * RANKS
    dist.all_gather_object(every, mine)
    assert [thing["rank"] for thing in every] == [0, 1, 2]
    same(every[2]["data"], [2])
    gathered = [None] * RANKS if world.rank == 1 else None
    dist.gather_object("x" * world.rank, gathered, dst=1)
    assert gathered == (["", "x", "xx"] if world.rank == 1 else None)
    out = [None]
    dist.scatter_object_list(out, [{"a"}, None, [2]] if world.rank == 0 else None)
    assert out == [[{"a"}, None, [2]][world.rank]]
    things = [1, "two"] if world.rank == 2 else [None, None]
    dist.broadcast_object_list(things, src=2)
    assert things == [1, "two"]


@case
def object_messages(world, kind):
    if world.rank == 0:
        dist.send_object_list(["a", {1: 2}], dst=1)
        dist.send_object_list([3], group_dst=2)
        return
    things = [None] * (3 - world.rank)
    source = dist.recv_object_list(things, src=0 if world.rank == 1 else None)
    assert (source, things) == (0, ["a", {1: 2}] if world.rank == 1 else [3])
    if world.rank == 2:
        dist.send_object_list([1, 2], 1)
        return
    with pytest.raises(MismatchError, match="rank 2 sent 2 objects to a list of 1"):
        dist.recv_object_list([None], 2)


@case
def object_lists_are_checked(world, kind):
    for error, bad in (
        (IndexError, lambda: dist.all_gather_object([None], 1)),
        (ValueError, lambda: dist.gather_object(1, None if world.rank == 0 else [1])),
        (ValueError, lambda: dist.scatter_object_list([])),
        (ValueError, lambda: dist.send_object_list([1], world.rank)),
        (ValueError, lambda: dist.recv_object_list([1], world.rank)),
    ):
        with pytest.raises(error):
            bad()
    if world.rank == 0:
        with pytest.raises(ValueError, match="3 objects"):
            dist.scatter_object_list([None], [1, 2])
        with pytest.raises(IndexError, match="room for 1 objects, but there are 3 ranks"):
            dist.gather_object(1, [None])


def lists_of_two_lengths(world):
    try:
        dist.broadcast_object_list([None] * (world.rank + 1), src=0)
    except MismatchError:
        return True
    return False


@pytest.mark.needs("mismatch")
def test_broadcast_object_list_of_two_lengths_is_a_mismatch(world):
    assert world(2, lists_of_two_lengths, of_its_own=True) == [True, True]


# ---- deadlines -----------------------------------------------------------------------------------


def wait_for_rank_1(world, asynchronous):
    """Rank 1 never comes; return what rank 0 gets, and after how many seconds."""
    if world.rank == 1:
        return None
    began = time.monotonic()
    try:
        work = dist.barrier(async_op=asynchronous, timeout=timedelta(seconds=1))
        if work is not None:
            work.wait()
    except CommTimeout as error:
        return error.ranks, time.monotonic() - began
    return "no error"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asynchronous"])
def test_a_barrier_keeps_its_own_deadline(world, asynchronous):
    ranks, seconds = world(2, wait_for_rank_1, asynchronous, of_its_own=True)[0]
    assert ranks == (1,)
    assert seconds < 30, "it waited for the group's timeout"


# ---- names that torch gives up -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_all_gather_base", "_reduce_scatter_base"])
def test_names_that_torch_gives_up_warn_as_there(name):
    """In torch's category; there the line is not always that of the call."""
    calls = {
        "ours": lambda: getattr(dist, name)(np.zeros(2), np.ones(2)),
        "torch's": lambda: getattr(upstream, name)(None, None),
    }
    found = {}
    dist.init_process_group("threads")
    for whose, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(ValueError, TypeError):  # there is no group of torch's
                call()
        (warned,) = caught
        found[whose] = warned
    dist.destroy_process_group()
    assert found["ours"].filename == __file__
    for warned in found.values():
        assert warned.category is FutureWarning and name in str(warned.message)
