"""The backend of torch.distributed: what every operation gives, for every dtype and kind of tensor.

Ranks compare their own results, with whole numbers that torch or NumPy has computed without any
communication, and with Gloo's in the same processes.
"""

from __future__ import annotations

import collections
import functools
import random
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.autograd import forward_ad

from tests.helpers import worlds
from tests.helpers.backend_cases import data, join, same, same_each
from tests.helpers.thorough import essential
from tests.helpers.torch_cases import VERBS, Draw, differ, torch_only, with_gaps

INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
ONLY_MOVED = [f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")]

BITS = ("BAND", "BOR", "BXOR")
OPERATORS = {
    "bool": ("SUM", "PRODUCT", "MIN", "MAX", *BITS),
    **dict.fromkeys(INTEGERS, ("SUM", "PRODUCT", "MIN", "MAX", "AVG", *BITS)),
    **dict.fromkeys(FLOATS, ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM")),
    **dict.fromkeys(COMPLEX, ("SUM", "AVG", "PREMUL_SUM")),
}
NUMPY = {
    "SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


@pytest.fixture(scope="module")
def pools():
    """Processes of their own, because they are in groups of torch."""
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="module", params=essential(1, [3, 2, 4]), ids="{}-ranks".format)
def run(pools, request, tmp_path_factory):
    """`run(function, *args)` calls `function(world, *args)` on all ranks of the group."""
    folder = str(tmp_path_factory.mktemp("store"))
    return lambda function, *args: pools.run("shm", request.param, in_group, folder, function, args)


def in_group(world, folder, function, args):
    join(world, folder)
    return function(world, *args)


# ---- every operator and dtype --------------------------------------------------------------------


def operator(name, dtype, rank, size, shape, slot=0):
    """This rank's operand, the operator and the result, which is exact: for AVG it is divisible."""
    every = [data(each, shape, dtype, slot) for each in range(size)]
    if name == "AVG":
        total = sum(tensor.to(torch.complex128) for tensor in every) * 12 / size
        return every[rank] * 12, dist.ReduceOp.AVG, narrowed(total, dtype)
    if name == "PREMUL_SUM":
        total = sum(tensor.to(torch.complex128) for tensor in every)
        return every[rank] * 2, dist._make_nccl_premul_sum(0.5), narrowed(total, dtype)
    wide = torch.bool if dtype is torch.bool else torch.int64
    if dtype.is_complex:
        wide = torch.complex128
    stacked = np.stack([tensor.to(wide).numpy() for tensor in every])
    result = NUMPY[name].reduce(stacked, axis=0, dtype=stacked.dtype)
    return every[rank], getattr(dist.ReduceOp, name), torch.from_numpy(result).to(dtype)


def narrowed(tensor, dtype):
    return tensor.to(dtype) if dtype.is_complex else tensor.real.to(dtype)


def reduce_everything(world, dtype_name):
    dtype, rank, size = getattr(torch, dtype_name), world.rank, world.size
    for slot, name in enumerate(OPERATORS[dtype_name]):
        x, op, expected = operator(name, dtype, rank, size, (5, 3), slot)
        dist.all_reduce(x, op)
        same(x, expected)

        x, op, expected = operator(name, dtype, rank, size, (7,), slot)
        before = x.clone()
        dist.reduce(x, size - 1, op)
        same(x, expected if rank == size - 1 else before)

        x, op, expected = operator(name, dtype, rank, size, (2 * size, 3), slot)
        before, out = x.clone(), torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_tensor(out, x, op)
        same(out, expected.chunk(size)[rank])
        out.zero_()
        dist.reduce_scatter_single(out, x, op)
        same(out, expected.chunk(size)[rank])
        same(x, before)

        lengths = [each + 1 for each in range(size)]
        x, op, expected = operator(name, dtype, rank, size, (sum(lengths),), slot)
        out = torch.empty(rank + 1, dtype=dtype)
        dist.reduce_scatter(out, list(x.split(lengths)), op)
        same(out, expected.split(lengths)[rank])


@pytest.mark.parametrize("dtype", essential(4, OPERATORS))
def test_reductions(run, dtype):
    run(reduce_everything, dtype)


def move_everything(world, dtype_name):
    dtype, rank, size = getattr(torch, dtype_name), world.rank, world.size

    def empty(*shape):
        return data(9, shape, dtype)

    for root in range(size):
        x = data(rank, (3, 2), dtype, root)
        dist.broadcast(x, root)
        same(x, data(root, (3, 2), dtype, root))

        out = [empty(4) for _ in range(size)] if rank == root else None
        dist.gather(data(rank, (4,), dtype), out, root)
        if out is not None:
            same_each(out, [data(each, (4,), dtype) for each in range(size)])

        parts = [data(root, (2, 2), dtype, slot) for slot in range(size)]
        out = empty(2, 2)
        dist.scatter(out, parts if rank == root else None, root)
        same(out, parts[rank])

    lengths = range(size)  # rank 0 has nothing
    out = [empty(length, 2) for length in lengths]
    dist.all_gather(out, data(rank, (rank, 2), dtype))
    same_each(out, [data(each, (each, 2), dtype) for each in lengths])

    every = torch.stack([data(each, (2, 3), dtype) for each in range(size)])
    for function in (dist.all_gather_into_tensor, dist.all_gather_single):
        for shape in ((2 * size, 3), (size, 2, 3)):  # joined, and stacked
            out = empty(*shape)
            function(out, data(rank, (2, 3), dtype))
            same(out, every.reshape(shape))

    rows = [[empty(2), empty(3, 1)] for _ in range(size)]
    dist.all_gather_coalesced(rows, [data(rank, (2,), dtype), data(rank, (3, 1), dtype, 1)])
    for each, row in enumerate(rows):
        same_each(row, [data(each, (2,), dtype), data(each, (3, 1), dtype, 1)])

    # Rank i sends i + 2j rows to rank j.
    sent = [data(rank, (rank + 2 * to, 2), dtype, to) for to in range(size)]
    expected = [data(source, (source + 2 * rank, 2), dtype, rank) for source in range(size)]
    out = [empty(source + 2 * rank, 2) for source in range(size)]
    dist.all_to_all(out, sent)
    same_each(out, expected)
    whole = empty(sum(len(part) for part in expected), 2)
    splits = [len(part) for part in expected], [len(part) for part in sent]
    dist.all_to_all_single(whole, torch.cat(sent), *splits)
    same(whole, torch.cat(expected))

    whole = empty(2 * size)
    dist.all_to_all_single(whole, data(rank, (2 * size,), dtype))
    parts = [data(source, (2 * size,), dtype).chunk(size)[rank] for source in range(size)]
    same(whole, torch.cat(parts))

    out = empty(5)
    work = dist.irecv(out, (rank - 1) % size)
    dist.send(data(rank, (5,), dtype), (rank + 1) % size)
    work.wait()
    same(out, data((rank - 1) % size, (5,), dtype))


@pytest.mark.parametrize("dtype", [*OPERATORS, *ONLY_MOVED])
def test_moves(run, dtype):
    run(move_everything, dtype)


# ---- kinds of tensors ----------------------------------------------------------------------------


def reduce_kinds(world):
    rank, size = world.rank, world.size

    def total(shape):
        return sum(data(each, shape) for each in range(size))

    transposed = data(rank, (3, 4)).t()
    wide = data(rank, (3, 8))
    middle = data(rank, (10,))[3:7]
    learned = data(rank, (2, 2)).requires_grad_()
    parameter = torch.nn.Parameter(data(rank, (4,)))
    kinds = {
        "transposed": (transposed, total((3, 4)).t()),
        "every second": (wide[:, ::2], total((3, 8))[:, ::2]),
        "with an offset": (middle, total((10,))[3:7]),
        "of no dimension": (torch.tensor(rank + 1.0), torch.tensor(size * (size + 1) / 2)),
        "empty": (torch.empty(0, 3), torch.empty(0, 3)),
        "that requires grad": (learned, total((2, 2))),
        "that is a parameter": (parameter, total((4,))),
        "in channels-last order": (
            data(rank, (2, 3, 4, 5)).to(memory_format=torch.channels_last),
            total((2, 3, 4, 5)),
        ),
    }
    for tensor, expected in kinds.values():
        dist.all_reduce(tensor)
        same(tensor.detach(), expected)
    assert learned.requires_grad and parameter.requires_grad
    same(wide[:, 1::2], data(rank, (3, 8))[:, 1::2])  # not touched


def test_kinds_of_tensors_reduced(run):
    run(reduce_kinds)


def move_kinds(world):
    rank, size = world.rank, world.size
    source = data(rank, (4, 3)).t().requires_grad_()  # (3, 4), with gaps
    every = [data(each, (4, 3)).t() for each in range(size)]

    out = [torch.zeros(4, 3).t() for _ in range(size)]
    dist.all_gather(out, source.detach())
    same_each(out, every)
    wide = torch.zeros(3 * size, 8)
    dist.all_gather_into_tensor(wide[:, ::2], source.detach())
    same(wide[:, ::2], torch.cat(every))
    assert not wide[:, 1::2].any()

    x = data(rank, (3, 8))[:, ::2]
    dist.broadcast(x, 1)
    same(x, data(1, (3, 8))[:, ::2])
    out = torch.zeros(2, 2).t()
    dist.scatter(out, [data(0, (2, 2), slot=i).t() for i in range(size)] if rank == 0 else None)
    same(out, data(0, (2, 2), slot=rank).t())
    out = torch.zeros(4, 2)[:, 0]
    dist.reduce_scatter_tensor(out, data(rank, (4 * size, 2))[:, 1])
    total = sum(data(each, (4 * size, 2)) for each in range(size))
    same(out, total[:, 1].chunk(size)[rank])

    nothing = torch.empty(0)
    dist.all_to_all_single(torch.empty(0), nothing)
    dist.all_gather([torch.empty(0) for _ in range(size)], nothing)
    scalar = torch.tensor(rank)
    scalars = [torch.tensor(-1) for _ in range(size)]
    dist.all_gather(scalars, scalar)
    assert [each.item() for each in scalars] == list(range(size))
    into = torch.zeros(6)[::2]
    work = dist.irecv(into, (rank - 1) % size)
    dist.isend(data(rank, (3, 2))[:, 0], (rank + 1) % size).wait()
    work.wait()
    same(into, data((rank - 1) % size, (3, 2))[:, 0])


def test_kinds_of_tensors_moved(run):
    run(move_kinds)


def reduce_sparse(world):
    rank, size = world.rank, world.size
    warnings.simplefilter("error", UserWarning)  # torch has one for those who make such tensors
    # Each rank has other entries, one of them twice; the last rank has none.
    counts = [2 + each for each in range(size - 1)] + [0]
    none = torch.empty(2, 0, dtype=torch.int64)
    sparse = functools.partial(torch.sparse_coo_tensor, check_invariants=True)
    for dense in ((), (3,)):
        for name in ("float32", "int64", "float64", "complex64"):
            dtype = getattr(torch, name)
            every = []
            for each, count in enumerate(counts):
                indices = torch.tensor([[each, *range(count - 1)], [0] * count]) if count else none
                values = data(each, (count, *dense), dtype) + 1
                every.append(sparse(indices, values, (size + 4, 2, *dense)))
            x, y = every[rank].clone(), every[rank].clone()
            expected = sum(tensor.to_dense() for tensor in every)
            if dtype.is_complex:  # torch's function works on a copy of them, with Gloo as well
                dist.group.WORLD.allreduce([x]).wait()
            else:
                dist.all_reduce(x)
            assert x.layout is torch.sparse_coo
            same(x.to_dense(), expected)
            dist.group.WORLD.allreduce([y]).wait()
            same(y.to_dense(), expected)


def test_sparse_tensors(run):
    run(reduce_sparse)


# ---- messages and objects ------------------------------------------------------------------------


def exchange(world):
    rank, size = world.rank, world.size
    # By tag, in another order than they were sent in.
    if rank == 0:
        works = [dist.isend(data(0, (3,), slot=tag), 1, tag=tag) for tag in range(3)]
        for work in works:
            work.wait()
    if rank == 1:
        for tag in (2, 0, 1):
            x = torch.empty(3)
            assert dist.recv(x, 0, tag=tag) == 0
            same(x, data(0, (3,), slot=tag))
    # From any rank: the sender is the one whose numbers came.
    if rank == size - 1:
        senders = []
        for _ in range(size - 1):
            x = torch.empty(4)
            work = dist.group.WORLD.recv_anysource([x], 5)
            work.wait()
            senders.append(work._source_rank())
            same(x, data(senders[-1], (4,), slot=5))
        assert sorted(senders) == list(range(size - 1))
        senders = [dist.recv(torch.empty(4), tag=6) for _ in range(size - 1)]
        assert sorted(senders) == list(range(size - 1))
    else:
        dist.send(data(rank, (4,), slot=5), size - 1, tag=5)
        dist.send(data(rank, (4,), slot=5), size - 1, tag=6)
    # All to all, as one batch.
    peers = [each for each in range(size) if each != rank]
    landing = {each: torch.empty(each + 1, 2) for each in peers}
    batch = [dist.P2POp(dist.irecv, landing[each], each) for each in peers]
    batch += [dist.P2POp(dist.isend, data(rank, (rank + 1, 2), slot=each), each) for each in peers]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    for each in peers:
        same(landing[each], data(each, (each + 1, 2), slot=rank))


def test_messages(run):
    run(exchange)


def exchange_objects(world):
    rank, size = world.rank, world.size
    mine = {"rank": rank, "long": "x" * 1000 * rank, "tensor": data(rank, (2,)).tolist()}
    every = [
        {"rank": i, "long": "x" * 1000 * i, "tensor": data(i, (2,)).tolist()} for i in range(size)
    ]
    out = [None] * size
    dist.all_gather_object(out, mine)
    assert out == every
    for root in range(size):
        out = [None] * size if rank == root else None
        dist.gather_object(mine, out, root)
        assert out == (every if rank == root else None)
        things = [mine, rank, str(rank)]
        dist.broadcast_object_list(things, root)
        assert things == [every[root], root, str(root)]
        out = [None]
        dist.scatter_object_list(out, every if rank == root else None, root)
        assert out == [mine]
    if rank == 0:
        dist.send_object_list([mine, None, 7], 1)
    if rank == 1:
        out = [None] * 3
        assert dist.recv_object_list(out, 0) == 0
        assert out == [every[0], None, 7]


def test_objects(run):
    run(exchange_objects)


# ---- forward mode --------------------------------------------------------------------------------


def with_tangents(world):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        for call in (
            lambda: dist.all_reduce(dual),
            lambda: dist.all_reduce(dual, async_op=True).wait(),
            lambda: dist.all_gather_into_tensor(torch.empty(2 * world.size), dual),
        ):
            with pytest.raises(RuntimeError, match="would lose its tangent"):
                call()
        dist.all_reduce(dual.detach())


def test_tensors_with_tangents_are_refused(run):
    run(with_tangents)


# ---- random calls, through both backends ---------------------------------------------------------


def compare(world, seed, calls):
    """Run the calls of one seed through both groups; return what was called and what differed."""
    called, wrong, ranks = collections.Counter(), [], range(world.size)
    for call in range(calls):
        dice = random.Random(f"{seed}/{call}/which")
        verb, form = dice.choice(VERBS), dice.choice([torch_only, with_gaps])
        draws = [Draw(seed, call, ranks) for _ in range(2)]
        expected, tolerance = verb(dist, join.gloo, world.rank, draws[0], torch_only)
        results, _ = verb(dist, dist.group.WORLD, world.rank, draws[1], form)
        called[verb.__name__] += len(results)
        if len(results) != len(expected) or any(
            differ(left, right, tolerance) for left, right in zip(results, expected, strict=True)
        ):
            wrong.append((call, verb.__name__, form.__name__))
    return dict(called), wrong


@pytest.mark.thorough
def test_same_results_as_gloo(run):
    for rank, (called, wrong) in enumerate(run(compare, 3, 250)):
        assert wrong == [], f"rank {rank}"
        assert set(called) == {verb.__name__ for verb in VERBS}
        assert sum(called.values()) > 250
