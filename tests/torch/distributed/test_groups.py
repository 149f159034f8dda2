"""Groups, bad arguments and the shape of the PyTorch face."""

from __future__ import annotations

import inspect
import time
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch.distributed as upstream

import unisono.torch.distributed as dist
from tests.helpers.tensors import RANKS, make, same, zeros
from unisono import spawn
from unisono.errors import ArgumentError, ArgumentTypeError, CommTimeout
from unisono.mindspore import communication

CASES = []


def case(function):
    """Run this function on all ranks, once for each engine and kind of tensor."""
    CASES.append(function)
    return function


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_on_every_engine(world, function, kind):
    world(RANKS, function, kind)


# ---- groups --------------------------------------------------------------------------------------


@case
def groups(world, kind):
    pair = dist.new_group([2, 0], timeout=timedelta(seconds=50), backend="gloo")
    if world.rank == 1:
        assert pair is dist.GroupMember.NON_GROUP_MEMBER == upstream.GroupMember.NON_GROUP_MEMBER
        assert (dist.get_rank(pair), dist.get_world_size(pair)) == (-1, -1)
        assert dist.new_group([0, 2], use_local_synchronization=True) is None
        return
    dist.new_group([0, 2], use_local_synchronization=True)
    assert dist.get_process_group_ranks(pair) == [0, 2]  # sorted
    assert dist.get_rank(pair) == dist.get_group_rank(pair, world.rank) == world.rank // 2
    assert dist.get_global_rank(pair, 1) == 2 and pair.engine.timeout == 50
    for bad in (lambda: dist.get_group_rank(pair, 1), lambda: dist.get_global_rank(pair, 2)):
        with pytest.raises(ValueError, match="not part of"):
            bad()
    x = make(kind, [world.rank])
    dist.broadcast(x, src=2, group=pair)
    same(x, [2])
    assert communication.get_group_size(pair.name) == 2  # the same group in the other face
    dist.destroy_process_group(pair)
    with pytest.raises(ValueError, match="closed"):
        dist.barrier(pair)


@case
def order_of_groups(world, kind):
    backwards = dist.new_group([2, 1, 0], sort_ranks=False)
    assert dist.get_rank(backwards) == 2 - world.rank
    assert dist.get_process_group_ranks(None) == [0, 1, 2]
    assert dist.group.WORLD is dist.GroupMember.WORLD is world
    for ranks in ([0, 0], [0, 5], [-1]):
        with pytest.raises(ValueError, match=r"rank|ranks"):
            dist.new_group(ranks)
    with pytest.raises(ValueError, match="no backend"):
        dist.new_group([0], backend="carrier pigeon")


@case
def subgroups(world, kind):
    mine, every = dist.new_subgroups(1)
    assert len(every) == RANKS and mine is every[world.rank] and mine.ranks == (world.rank,)
    assert every[(world.rank + 1) % RANKS] == dist.GroupMember.NON_GROUP_MEMBER
    for size in (None, 0, 2, 4):
        with pytest.raises(ValueError, match="group"):
            dist.new_subgroups(size)
    mine, every = dist.new_subgroups_by_enumeration([[0, 2]])
    assert (mine is None) == (world.rank == 1) and len(every) == 1
    for lists in ([], [[0, 1], [1, 2]]):
        with pytest.raises(ValueError, match=r"ranks_per_subgroup_list|two of the groups"):
            dist.new_subgroups_by_enumeration(lists)
    split = dist.split_group(None, [[2, 0]])
    assert (split is None) == (world.rank == 1)
    if split is not None:
        assert split.ranks == (0, 2)
        again = dist.split_group(split, [[1]], timeout=timedelta(seconds=9))  # ranks of the parent
        assert (again is None) if world.rank == 0 else (again.ranks == (2,))
        assert again is None or again.engine.timeout == 9
    with pytest.raises(ValueError, match="split_ranks"):
        dist.split_group()


OUTSIDE = {
    "all_reduce": lambda x, g: dist.all_reduce(x, group=g),
    "all_reduce_coalesced": lambda x, g: dist.all_reduce_coalesced([x], group=g),
    "broadcast": lambda x, g: dist.broadcast(x, 0, g),
    "reduce": lambda x, g: dist.reduce(x, 0, group=g),
    "all_gather": lambda x, g: dist.all_gather([x], x, g),
    "all_gather_single": lambda x, g: dist.all_gather_single(x, x, g),
    "all_gather_coalesced": lambda x, g: dist.all_gather_coalesced([[x]], [x], g),
    "gather": lambda x, g: dist.gather(x, group=g),
    "scatter": lambda x, g: dist.scatter(x, group=g),
    "reduce_scatter": lambda x, g: dist.reduce_scatter(x, [x], group=g),
    "reduce_scatter_single": lambda x, g: dist.reduce_scatter_single(x, x, group=g),
    "all_to_all": lambda x, g: dist.all_to_all([x], [x], g),
    "all_to_all_single": lambda x, g: dist.all_to_all_single(x, x, group=g),
    "barrier": lambda x, g: dist.barrier(g),
    "monitored_barrier": lambda x, g: dist.monitored_barrier(g),
    "send": lambda x, g: dist.send(x, 0, g),
    "isend": lambda x, g: dist.isend(x, 0, g),
    "irecv": lambda x, g: dist.irecv(x, 0, g),
    "all_gather_object": lambda x, g: dist.all_gather_object([], 1, g),
    "gather_object": lambda x, g: dist.gather_object(1, group=g),
    "broadcast_object_list": lambda x, g: dist.broadcast_object_list([], group=g),
    "scatter_object_list": lambda x, g: dist.scatter_object_list([], group=g),
    "send_object_list": lambda x, g: dist.send_object_list([], 0, g),
}


@case
def outside_the_group(world, kind):
    pair = dist.new_group([0, 1])
    if world.rank != 2:
        return
    x = make(kind, [1])
    for name, call in OUTSIDE.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert call(x, pair) is None, name
        assert f"Running {name} on global rank 2" in str(caught[0].message), name
        assert caught[0].filename == __file__, name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dist.recv(x, 0, pair) == dist.recv_object_list([1], 0, pair) == -1
    same(x, [1])


# ---- bad arguments -------------------------------------------------------------------------------


@case
def bad_arguments(world, kind):
    x, y, whole = zeros(kind, 2), zeros(kind, 3), [zeros(kind, 2) for _ in range(RANKS)]
    integers = make(kind, [1, 2], np.int32)
    value, kind_of = ArgumentError, ArgumentTypeError
    for error, call in (
        (kind_of, lambda: dist.all_reduce([x])),
        (kind_of, lambda: dist.all_reduce(x, "sum")),
        (value, lambda: dist.all_reduce(x, group=5)),
        (value, lambda: dist.all_reduce(x, group="no such group")),
        (value, lambda: dist.all_reduce(make(kind, [1j], np.complex64), dist.ReduceOp.MAX)),
        (value, lambda: dist.all_reduce_coalesced([x, integers])),
        (value, lambda: dist.all_reduce_coalesced([])),
        (value, lambda: dist.broadcast(x)),
        (value, lambda: dist.broadcast(x, 0, group_src=0)),
        (value, lambda: dist.broadcast(x, 7)),
        (kind_of, lambda: dist.broadcast(x, "0")),
        (kind_of, lambda: dist.all_gather(tuple(whole), x)),
        (kind_of, lambda: dist.all_gather([1, 2, 3], x)),
        (value, lambda: dist.all_gather(whole, integers)),
        (value, lambda: dist.all_gather(whole[:2], x)),
        (value, lambda: dist.all_gather(whole, x.reshape(1, 2))),
        (value, lambda: dist.all_gather_single(y, x)),
        (value, lambda: dist.reduce_scatter(y, whole)),
        (value, lambda: dist.reduce_scatter_single(x, y)),
        (kind_of, lambda: dist.all_gather_coalesced(5, [x])),
        (value, lambda: dist.all_to_all(whole[:2], whole[:2])),
        (value, lambda: dist.all_to_all_single(x, x)),
        (value, lambda: dist.all_to_all_single(y, y, [1, 1, 2], [1, 1, 1])),
        (value, lambda: dist.all_to_all_single(y, y, [3], [1, 1, 1])),
        (value, lambda: dist.all_to_all_single(y.sum(), y)),
    ):
        with pytest.raises(error):
            call()
    dist.all_reduce(x)  # nothing has moved, so the world is still good


def one_is_late(world):
    pair = dist.new_group([1, 2])
    if world.rank != 1:
        time.sleep(1.0)
        return None
    # torch's own text has no number
    waited = r"(barrier.* timeout of 0.2 s|.*torch.*) waiting for rank 1"
    said = rf"ranks \[2\] did not come within 0.2 s: {waited}"
    with pytest.raises(CommTimeout, match=said) as caught:
        dist.monitored_barrier(pair, timedelta(seconds=0.2))
    return caught.value.ranks  # of the world, though the engine counts in the group


@pytest.mark.thorough
def test_monitored_barrier_names_who_is_missing(world):
    assert world(RANKS, one_is_late, of_its_own=True)[1] == (2,)


# ---- the shape of the module ---------------------------------------------------------------------


def parameters(function):
    """Names, kinds and defaults; operators by name, because their classes differ."""
    return [
        (p.name, p.kind, getattr(p.default, "name", p.default) if p.name == "op" else p.default)
        for p in inspect.signature(function).parameters.values()
    ]


def lowered(rows):
    return [(a, b, c.lower() if a == "op" and isinstance(c, str) else c) for a, b, c in rows]


FUNCTIONS = [
    name
    for name in dist.__all__
    if name not in ("GroupMember", "ProcessGroup", "ReduceOp", "Work", "group")
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_upstreams(name):
    ours, theirs = getattr(dist, name), getattr(upstream, name)
    assert lowered(parameters(ours)) == lowered(parameters(theirs))


def test_what_is_missing_is_said():
    with pytest.raises(AttributeError, match=r"torch.distributed.TCPStore is not in unisono; near"):
        _ = dist.TCPStore
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dist.nonsense
    for name in dist._NEAREST:
        assert hasattr(upstream, name) and not hasattr(dist, name), name


def test_rank_and_size_of_a_group_are_numbers_and_methods() -> None:
    def numbers() -> tuple:
        world = dist.group.WORLD
        return world.rank(), world.rank, world.size(), world.size, type(dist.get_rank())

    assert spawn(numbers, 2) == [(0, 0, 2, 2, int), (1, 1, 2, 2, int)]
