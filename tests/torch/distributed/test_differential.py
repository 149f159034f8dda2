"""The PyTorch face and torch.distributed: the same random calls through unisono and Gloo.

Three processes have joined both worlds. Moves and integers must agree to the bit, float sums within
rounding; errors must be instances of upstream's type. NumPy judges what Gloo cannot do.
"""

from __future__ import annotations

import collections
import random
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as upstream

import unisono.torch.distributed as dist
from tests.helpers import worlds
from tests.helpers.torch_cases import FORMS, INTEGER_OPERATORS, VERBS, Draw, differ, torch_only

RANKS = 3
SUBSETS = ([0, 1, 2], [0, 2], [1, 2])
SEEDS = range(6)
CALLS = 120  # in each seed

OTHER_SUMS = ("int16", "uint16", "uint32", "uint64", "bool", "complex64", "complex128")

#: Where unisono differs on purpose: upstream accepts or fails otherwise, and why we do not follow.
DEVIATIONS = {
    "complex product": "torch refuses because it would view numbers as pairs; ours is right",
    "destroy twice": "leaving a world that one has left is harmless",
    "empty batch": "nothing to do is not an error; torch fails at p2p_op_list[0]",
    "flat output of all_gather_single": "the count fits; NCCL accepts it, Gloo alone does not",
    "split_group": "torch splits only groups bound to a GPU",
    "get_group_rank of the world": "torch hands any number back unchecked",
    "recv_object_list from any": "torch's page says that src may be left out; its code refuses",
}


@pytest.fixture(scope="module")
def pool():
    """Processes of their own, because they are in Gloo's world as well."""
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    return str(tmp_path_factory.mktemp("gloo") / "store")


def join_gloo(world, path):
    """Be in both worlds, with the same groups in each; made once in the life of a process."""
    if not upstream.is_initialized():
        upstream.init_process_group(
            "gloo",
            init_method=f"file://{path}",
            rank=world.rank,
            world_size=RANKS,
            timeout=timedelta(seconds=30),
        )
        join_gloo.groups = [
            (ranks, upstream.new_group(ranks), dist.new_group(ranks)) for ranks in SUBSETS
        ]
    return join_gloo.groups


# ---- random calls --------------------------------------------------------------------------------


def compare(world, path, seed):
    """Run the calls of one seed through both modules; return what was called and what differed."""
    warnings.simplefilter("ignore", FutureWarning)  # 2.13 has new names for two old ones
    table = join_gloo(world, path)
    called, wrong = collections.Counter(), []
    for call in range(CALLS):
        dice = random.Random(f"{seed}/{call}/which")
        verb, (ranks, theirs, ours) = dice.choice(VERBS), dice.choice(table)
        form = dice.choice(FORMS)
        if world.rank not in ranks:
            continue
        rank = ranks.index(world.rank)
        expected, tolerance = verb(upstream, theirs, rank, Draw(seed, call, ranks), torch_only)
        results, _ = verb(dist, ours, rank, Draw(seed, call, ranks), form)
        called[verb.__name__] += len(results)
        if len(results) != len(expected) or any(
            differ(left, right, tolerance) for left, right in zip(results, expected, strict=True)
        ):
            wrong.append((call, verb.__name__, ranks, form.__name__))
    return dict(called), wrong


def test_same_results_as_gloo(pool, meeting):
    total = collections.Counter()
    for seed in SEEDS:
        for rank, (called, wrong) in enumerate(pool.run("shm", RANKS, compare, meeting, seed)):
            assert wrong == [], f"seed {seed}, rank {rank}"
            total.update(called)
    assert set(total) == {verb.__name__ for verb in VERBS}
    assert min(total.values()) > 30, total


# ---- what Gloo cannot do: NumPy is the judge -----------------------------------------------------

NUMPY = {
    "SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def judged(world, path, dtype, operators):
    draw = Draw(0, 0, range(RANKS))
    wrong = []
    for name in operators:
        every = [draw.tensor(rank, [5, 3], dtype, 7).numpy() for rank in range(RANKS)]
        expected = NUMPY[name].reduce(np.stack(every), axis=0, dtype=every[0].dtype)
        x = torch.from_numpy(every[world.rank].copy())
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        if not np.allclose(x.numpy(), expected, rtol=1e-5):
            wrong.append((dtype, name, x.numpy(), expected))
    return wrong


@pytest.mark.parametrize("dtype", OTHER_SUMS)
def test_dtypes_that_gloo_lacks(pool, meeting, dtype):
    operators = ("SUM", "PRODUCT") if "complex" in dtype else INTEGER_OPERATORS
    assert pool.run("shm", RANKS, judged, meeting, dtype, operators) == [[]] * RANKS


def uneven(world, path):
    """Lists of different shapes, and tensors of the other ranks after a reduce."""
    parts = [torch.zeros(rank + 1, 2) for rank in range(RANKS)]
    dist.all_gather(parts, torch.full((world.rank + 1, 2), float(world.rank)))
    out = torch.zeros(world.rank + 1)
    dist.reduce_scatter(out, [torch.full((rank + 1,), 2.0 * rank) for rank in range(RANKS)])
    kept = torch.tensor([world.rank])
    dist.reduce(kept, 0)
    return [part.unique().tolist() for part in parts], out.unique().tolist(), kept.item()


def test_uneven_lists_and_untouched_tensors(pool, meeting):
    results = pool.run("shm", RANKS, uneven, meeting)
    assert [result[0] for result in results] == [[[0.0], [1.0], [2.0]]] * RANKS
    assert [result[1] for result in results] == [[0.0], [6.0], [12.0]]
    assert [result[2] for result in results] == [3, 1, 2]  # Gloo overwrites the others


# ---- bad arguments -------------------------------------------------------------------------------

Z = torch.zeros
INTEGERS = torch.zeros(2, dtype=torch.int32)


def three(*shape):
    return [Z(*shape) for _ in range(RANKS)]


def rank():
    return upstream.get_rank()


BAD = {
    "all_reduce a list": lambda d: d.all_reduce([Z(2)]),
    "all_reduce a number": lambda d: d.all_reduce(5),
    "operator as text": lambda d: d.all_reduce(Z(2), "sum"),
    "bits of floats": lambda d: d.all_reduce(Z(2), d.ReduceOp.BAND),
    "largest complex": lambda d: d.all_reduce(Z(2) * 1j, d.ReduceOp.MAX),
    "complex product": lambda d: d.all_reduce(Z(2) * 1j, d.ReduceOp.PRODUCT),
    "group is a number": lambda d: d.all_reduce(Z(2), group=5),
    "group is unknown": lambda d: d.all_reduce(Z(2), group="nobody"),
    "coalesced dtypes": lambda d: d.all_reduce_coalesced([Z(2), INTEGERS]),
    "coalesced number": lambda d: d.all_reduce_coalesced(5),
    "broadcast without src": lambda d: d.broadcast(Z(2)),
    "broadcast with both": lambda d: d.broadcast(Z(2), 0, group_src=0),
    "broadcast from 7": lambda d: d.broadcast(Z(2), 7),
    "broadcast from -1": lambda d: d.broadcast(Z(2), -1),
    "broadcast from text": lambda d: d.broadcast(Z(2), "0"),
    "broadcast a list": lambda d: d.broadcast([Z(2)], 0),
    "reduce to 7": lambda d: d.reduce(Z(2), 7),
    "reduce without dst": lambda d: d.reduce(Z(2)),
    "all_gather into a tuple": lambda d: d.all_gather(tuple(three(2)), Z(2)),
    "all_gather into numbers": lambda d: d.all_gather([1, 2, 3], Z(2)),
    "all_gather into few": lambda d: d.all_gather(three(2)[1:], Z(2)),
    "all_gather into none": lambda d: d.all_gather([], Z(2)),
    "all_gather dtypes": lambda d: d.all_gather(three(2), INTEGERS),
    "all_gather shapes": lambda d: d.all_gather(three(3, 2), Z(2, 3)),
    "all_gather_single count": lambda d: d.all_gather_single(Z(7), Z(2)),
    "all_gather_single dtypes": lambda d: d.all_gather_single(Z(6), INTEGERS),
    "flat output of all_gather_single": lambda d: d.all_gather_single(Z(18), Z(2, 3)),
    "all_gather_coalesced number": lambda d: d.all_gather_coalesced(5, [Z(2)]),
    "gather to a tuple": lambda d: d.gather(Z(2), tuple(three(2))),
    "gather without a list": lambda d: d.gather(Z(2), None if rank() == 0 else three(2)),
    "gather dtypes": lambda d: d.gather(INTEGERS, three(2)),
    "scatter without a list": lambda d: d.scatter(Z(2), None if rank() == 0 else three(2)),
    "scatter dtypes": lambda d: d.scatter(INTEGERS, three(2)),
    "reduce_scatter number": lambda d: d.reduce_scatter(5, three(2)),
    "reduce_scatter few": lambda d: d.reduce_scatter(Z(2), three(2)[1:]),
    "reduce_scatter shapes": lambda d: d.reduce_scatter(Z(2, 3), three(3, 2)),
    "reduce_scatter_single count": lambda d: d.reduce_scatter_single(Z(2), Z(7)),
    "reduce_scatter_single dtypes": lambda d: d.reduce_scatter_single(Z(2), torch.ones(6).int()),
    "all_to_all dtypes": lambda d: d.all_to_all(three(2), [INTEGERS] * RANKS),
    "all_to_all number": lambda d: d.all_to_all(5, three(2)),
    "all_to_all_single dtypes": lambda d: d.all_to_all_single(Z(3), torch.ones(3).int()),
    "send to itself": lambda d: d.send(Z(2), rank()),
    "send to nobody": lambda d: d.send(Z(2)),
    "send a list": lambda d: d.send([Z(2)], (rank() + 1) % RANKS),
    "receive into a list": lambda d: d.recv([Z(2)], 0),
    "P2POp of send": lambda d: d.P2POp(d.send, Z(2), 0),
    "P2POp of a list": lambda d: d.P2POp(d.isend, [Z(2)], 0),
    "P2POp to nobody": lambda d: d.P2POp(d.isend, Z(2)),
    "batch of a number": lambda d: d.batch_isend_irecv(5),
    "batch of numbers": lambda d: d.batch_isend_irecv([5]),
    "empty batch": lambda d: d.batch_isend_irecv([]),
    "group with a rank twice": lambda d: d.new_group([0, 0]),
    "group with rank 5": lambda d: d.new_group([0, 5]),
    "group with a bad timeout": lambda d: d.new_group([0], timeout=5),
    "subgroups of 2": lambda d: d.new_subgroups(2),
    "subgroups of 0": lambda d: d.new_subgroups(0),
    "subgroups of 9": lambda d: d.new_subgroups(9),
    "no subgroups": lambda d: d.new_subgroups_by_enumeration([]),
    "split_group": lambda d: d.split_group(None, [[0, 1, 2]]),
    "split_group by nothing": lambda d: d.split_group(None, []),
    "get_group_rank of nothing": lambda d: d.get_group_rank("x", 0),
    "get_group_rank of the world": lambda d: d.get_group_rank(d.group.WORLD, 17),
    "scatter_object_list into none": lambda d: d.scatter_object_list([]),
    "gather_object without a list": lambda d: d.gather_object(1, None if rank() == 0 else [1]),
    "send_object_list to itself": lambda d: d.send_object_list([1], rank()),
    "recv_object_list from itself": lambda d: d.recv_object_list([1], rank()),
    "outside": lambda d: d.all_reduce(Z(2), group=d.GroupMember.NON_GROUP_MEMBER),
    "backend of the outside": lambda d: d.get_backend(d.GroupMember.NON_GROUP_MEMBER),
    "init twice": lambda d: d.init_process_group("gloo"),
    "barrier with a number for a timeout": lambda d: d.barrier(timeout=5),
}


def outcome(call, module):
    """The error's type and those it inherits from, by name; nothing if there was none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(module)
        except Exception as error:
            return [kind.__name__ for kind in type(error).__mro__]
    return []


def misbehave(world, path):
    join_gloo(world, path)
    found = {}
    for label, call in BAD.items():
        found[label] = outcome(call, upstream), outcome(call, dist)
        dist.barrier()  # Gloo's own may still raise the error of a call that has failed before
    return found


def test_same_errors_as_upstream(pool, meeting):
    for rank, found in enumerate(pool.run("shm", RANKS, misbehave, meeting)):
        for label, (theirs, ours) in found.items():
            agree = theirs[0] in ours if theirs else not ours
            text = f"rank {rank}, {label}: upstream {theirs[:1]}, unisono {ours[:1]}"
            assert agree != (label in DEVIATIONS), text
        assert sum(bool(theirs) for theirs, _ in found.values()) > 50


def say_the_rest(world, path):
    """Deviations that would hang upstream, or end its world."""
    things = [None]
    if world.rank == 0:
        senders = {dist.recv_object_list(things) for _ in range(RANKS - 1)}
        return senders == {1, 2}
    dist.send_object_list([world.rank], 0)
    return True


def test_object_lists_from_any_rank(pool, meeting):
    assert pool.run("shm", RANKS, say_the_rest, meeting) == [True] * RANKS


@pytest.mark.thorough
def test_leaving_twice_is_harmless():
    assert not dist.is_initialized()
    dist.destroy_process_group()
    with pytest.raises(AssertionError):
        upstream.destroy_process_group()
    with pytest.raises(ValueError, match="no world yet"):
        dist.all_reduce(Z(1))
    with pytest.raises(ValueError, match="not been initialized"):
        upstream.all_reduce(Z(1))
