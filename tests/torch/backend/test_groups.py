"""The backend of torch.distributed: groups, their timeouts, and wrong calls."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.helpers import worlds
from tests.helpers.backend_cases import (
    TIMEOUT,
    ForkedRanks,
    ForkServer,
    check_group,
    data,
    join,
    same,
)

RANKS = 4


@pytest.fixture(scope="module")
def pools():
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture
def run(pools, store):
    """`run(function, *args)` calls `function(rank, *args)` on all ranks of the group."""
    return lambda function, *args: pools.run("shm", RANKS, in_group, store, function, args)


@pytest.fixture(scope="module")
def fork_server():
    process = ForkServer()
    yield process
    process.close()


def in_group(world, store, function, args):
    join(world, store)
    return function(world.rank, *args)


# ---- groups of groups ----------------------------------------------------------------------------


def make_groups(rank):
    subsets = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [3], [2, 0]]
    groups = [dist.new_group(ranks) for ranks in subsets]
    for ranks, group in zip(subsets, groups, strict=True):
        ranks = sorted(ranks)  # unless torch is asked not to
        if rank not in ranks:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        assert dist.get_backend(group) == "unisono"
        check_group(group, ranks, rank)
    if rank in (1, 2):  # the others do not know of it
        group = dist.new_group([1, 2], use_local_synchronization=True)
        check_group(group, [1, 2], rank)
        again = dist.new_group([1, 2], use_local_synchronization=True)
        check_group(again, [1, 2], rank)
        check_group(group, [1, 2], rank)
    turned = dist.new_group([3, 1, 0], sort_ranks=False)
    if rank in (3, 1, 0):
        check_group(turned, [3, 1, 0], rank)
        dist.destroy_process_group(turned)
    anew = dist.new_group([3, 1, 0])
    if rank != 2:
        check_group(anew, [0, 1, 3], rank)
    first, every = dist.new_subgroups(2)
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    check_group(first, pair, rank)
    assert len(every) == 2
    gloo = dist.new_group([0, 1, 2], backend="gloo", timeout=TIMEOUT)
    if rank < 3:
        assert dist.get_backend(gloo) == "gloo"
        check_group(gloo, [0, 1, 2], rank)
    check_group(dist.group.WORLD, [0, 1, 2, 3], rank)


def test_new_groups(run):
    run(make_groups)


def be_named(rank):
    world = dist.group.WORLD
    assert world.name() == "unisono" and world.getBackendName() == "unisono"
    assert world.group_name == "0" and world.group_desc == "default_pg"
    group = dist.new_group([0, 1, 2, 3], group_desc="of the test")
    assert group.group_desc == "of the test"
    assert group.group_name not in ("", world.group_name)
    assert dist.get_backend() == "unisono"
    assert dist.get_backend_config() == "cpu:unisono"
    assert group._get_sequence_number_for_group() == 0
    dist.barrier(group)
    assert group._get_sequence_number_for_group() == 1
    found = torch._C._distributed_c10d._resolve_process_group(group.group_name)
    assert found is group
    key = f"written by {rank}"
    group.get_group_store().set(key, "x")
    assert group.get_group_store().get(f"written by {(rank + 1) % RANKS}") == b"x"


def test_names(run):
    run(be_named)


def split(rank):
    world = dist.group.WORLD
    pair = world.split_group([0, 3], group_name="pair", group_desc="the outer two")
    assert (pair is None) == (rank in (1, 2))
    if pair is not None:
        assert (pair.group_name, pair.group_desc) == ("pair", "the outer two")
        assert (pair.rank(), pair.size()) == (rank // 3, 2)
        x = data(rank, (3,))
        pair.allreduce([x]).wait()
        same(x, data(0, (3,)) + data(3, (3,)))
        alone = pair.split_group([1], timeout=timedelta(seconds=5))
        assert (alone is None) == (rank == 0)
        pair.shutdown()
        with pytest.raises(ValueError, match="closed"):
            pair.allreduce([x])
    dist.barrier()


def test_split_group(run):
    run(split)


def use_meshes(rank):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    row, column = mesh.get_group("inner"), mesh.get_group("outer")
    assert dist.get_backend(row) == dist.get_backend(column) == "unisono"
    check_group(row, [rank // 2 * 2, rank // 2 * 2 + 1], rank)
    check_group(column, [rank % 2, rank % 2 + 2], rank)
    flat = mesh["outer", "inner"]._flatten()
    check_group(flat.get_group(), [0, 1, 2, 3], rank)


def test_device_mesh(run):
    run(use_meshes)


UNDER_GLOO = """
from tests.helpers.backend_cases import check_group
enter(backend="gloo")
for turn in range(2):
    group, pair = dist.new_group(backend="unisono"), dist.new_group([2, 1], backend="unisono")
    check_group(group, [0, 1, 2], rank)
    if rank:
        assert dist.get_backend(pair) == "unisono"
        check_group(pair, [1, 2], rank)
        dist.destroy_process_group(pair)
    dist.destroy_process_group(group)
check_group(dist.group.WORLD, [0, 1, 2], rank)
dist.destroy_process_group()
say(done=True)
"""


@pytest.mark.thorough
def test_unisono_under_gloo(fork_server, tmp_path):
    with ForkedRanks(fork_server, tmp_path, 3, UNDER_GLOO) as ranks:
        for rank in range(3):
            assert [ranks[rank].read() for _ in range(2)] == [{"joined": True}, {"done": True}]
            assert ranks[rank].end() == 0


REJOIN = """
path = os.environ["BACKEND_STORE"]
def joined(**where):
    dist.init_process_group("unisono", rank=rank, world_size=3, **where)
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    group = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(x, group=group)
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return x.item() == (6 if rank == 1 else 12)
for turn in range(3):
    assert joined(init_method=f"file://{path}-{turn}")
    assert joined(store=dist.FileStore(f"{path}-others-{turn}", 3))
store = dist.FileStore(f"{path}-kept", 3)
for turn in range(4):
    assert joined(store=store)
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 3, True, wait_for_workers=False)
    open(f"{path}-port.part", "w").write(str(store.port))
    os.rename(f"{path}-port.part", f"{path}-port")
else:
    while not os.path.exists(f"{path}-port"):
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int(open(f"{path}-port").read()), 3, False)
for turn in range(4):
    assert joined(store=store)
say(done=True)
hear()  # the store is rank 0's
"""


@pytest.mark.thorough
def test_join_again(fork_server, tmp_path):
    with ForkedRanks(fork_server, tmp_path, 3, REJOIN) as ranks:
        for rank in range(3):
            assert ranks[rank].read() == {"done": True}
        for rank in range(3):
            ranks[rank].tell()
            assert ranks[rank].end() == 0
            assert ranks[rank].errors == ""


# ---- timeouts ------------------------------------------------------------------------------------

#: Where ranks 0 and 1 wait for rank 2, which does not come; each with a group of its own.
TIMEOUTS = {
    "a call": "dist.all_reduce(x, group=group(short))",
    "a wait": "dist.all_reduce(x, group=group(short), async_op=True).wait()",
    "a future": "dist.all_reduce(x, group=group(short), async_op=True).get_future().wait()",
    "objects": "dist.all_gather_object([None] * 3, rank, group(short))",
    "a barrier": "dist.barrier(group(long), timeout=short)",
    "a barrier with options": "group(long).barrier(options).wait()",
    "a call with options": "group(long).allreduce([x], blocking)",
    "a work with options": "group(long).allreduce([x], asynchronous).wait()",
    "several calls with options": "group(long).allreduce_coalesced([x, x.int()], several)",
    "a sparse tensor": "group(long).allreduce([x.to_sparse()], asynchronous)",
    "after set_timeout": "dist.all_gather([x, x + 0, x - 0], x * 1, group(long, short))",
    "monitored": "group(long).monitored_barrier(short)",
}

LATE = f"""
enter()
short, long, x = timedelta(seconds=0.5), timedelta(seconds=600), torch.ones(3)
options = dist.BarrierOptions()
blocking, asynchronous = dist.AllreduceOptions(), dist.AllreduceOptions()
several = dist.AllreduceCoalescedOptions()
blocking.asyncOp = several.asyncOp = False
for each in (options, blocking, asynchronous, several):
    each.timeout = short
def group(timeout, later=None):
    made = groups.pop()
    if later is not None:
        made.set_timeout(later)
    return made
if rank < 2:
    hear()
for text in {list(TIMEOUTS.values())}:
    groups = [dist.new_group(timeout=short if "group(short)" in text else long)]
    dist.barrier()
    if rank < 2:
        say(**fault(lambda: eval(text)))
if rank < 2:
    dist.barrier()  # the world is not affected
    say(end=True)
else:
    hear()
    dist.barrier()
"""


@pytest.mark.thorough
def test_timeouts(fork_server, tmp_path):
    with ForkedRanks(fork_server, tmp_path, 3, LATE) as ranks:
        for rank in range(3):
            assert ranks[rank].read() == {"joined": True}
        for rank in (0, 1):
            ranks[rank].tell()
        errors = [[ranks[rank].read() for _ in TIMEOUTS] for rank in (0, 1)]
        for label, *both in zip(TIMEOUTS, *errors, strict=True):
            for error in both:
                assert error["kinds"][0] == "CommTimeout", (label, error)
                assert {"RuntimeError", "TimeoutError"} <= set(error["kinds"])
                assert error["ranks"] == [2], (label, error)
                named = "ranks [2] did not come within 0.5 s" in error["text"]
                assert named == (label == "monitored"), (label, error)
            # The deadline of one rank is that of all: whichever started first has waited for it.
            assert max(error["seconds"] for error in both) >= 0.5, (label, both)
        ranks[2].tell()
        for rank in (0, 1):
            assert ranks[rank].read() == {"end": True}
        assert [ranks[rank].end() for rank in range(3)] == [0, 0, 0]


@pytest.mark.thorough
def test_timeout_of_the_world(fork_server, tmp_path):
    body = """
enter(4)
if rank == 1:
    hear()
    sys.exit()
say(**fault(lambda: dist.all_reduce(torch.ones(3))))
"""
    with ForkedRanks(fork_server, tmp_path, 2, body) as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"joined": True}
        error = ranks[0].read()
        assert error["kinds"][0] == "CommTimeout" and error["ranks"] == [1], error
        assert 4 <= error["seconds"] < 30
        ranks[1].tell()
        assert [ranks[rank].end() for rank in range(2)] == [0, 0]


# ---- wrong calls ---------------------------------------------------------------------------------

Z = torch.zeros
OTHER = torch.zeros(2, dtype=torch.int32)
SPLITS = [1, 1, 1, 2], [1, 1, 1, 1]


def four(*shape):
    return [Z(*shape) for _ in range(RANKS)]


#: What is refused before anything has moved, and the error type, which is torch's.
WRONG = {
    "dtypes of all_gather": (ValueError, lambda: dist.all_gather(four(2), OTHER)),
    "length of all_gather": (ValueError, lambda: dist.all_gather(four(2)[1:], Z(2))),
    "shapes of all_gather": (ValueError, lambda: dist.all_gather(four(3, 2), Z(2, 3))),
    "count of all_gather_single": (ValueError, lambda: dist.all_gather_single(Z(7), Z(2))),
    "dtypes of all_gather_single": (TypeError, lambda: dist.all_gather_single(Z(8), OTHER)),
    "length of reduce_scatter": (ValueError, lambda: dist.reduce_scatter(Z(2), four(2)[1:])),
    "shape of reduce_scatter": (ValueError, lambda: dist.reduce_scatter(Z(2, 3), four(3, 2))),
    "count of reduce_scatter": (ValueError, lambda: dist.reduce_scatter_single(Z(2), Z(7))),
    "length of all_to_all": (ValueError, lambda: dist.all_to_all(four(2), four(2)[1:])),
    "splits of all_to_all": (ValueError, lambda: dist.all_to_all_single(Z(4), Z(4), *SPLITS)),
    "rows of all_to_all": (ValueError, lambda: dist.all_to_all_single(Z(3), Z(3))),
    "bits of floats": (RuntimeError, lambda: dist.all_reduce(Z(2), dist.ReduceOp.BAND)),
    "sum of float8": (RuntimeError, lambda: dist.all_reduce(Z(2).to(torch.float8_e5m2))),
    "average of bool": (RuntimeError, lambda: dist.all_reduce(Z(2).bool(), dist.ReduceOp.AVG)),
    "largest sparse": (RuntimeError, lambda: dist.all_reduce(Z(2).to_sparse(), dist.ReduceOp.MAX)),
    "other sparse": (RuntimeError, lambda: dist.all_reduce(Z(2, 2).to_sparse_csr())),
    "another device": (RuntimeError, lambda: dist.all_reduce(torch.empty(2, device="meta"))),
    "two tensors": (ValueError, lambda: dist.group.WORLD.allreduce([Z(2), Z(2)])),
    "no such root": (ValueError, lambda: dist.broadcast(Z(2), group_src=9)),
    "no such peer": (ValueError, lambda: dist.group.WORLD.send([Z(2)], 9)),
}


def call_wrongly(rank, label):
    kind, call = WRONG[label]
    for _ in range(2):
        with pytest.raises(kind):
            call()
        check_group(dist.group.WORLD, [0, 1, 2, 3], rank)


@pytest.mark.parametrize("label", WRONG)
def test_wrong_calls(run, label):
    run(call_wrongly, label)


#: Calls that do not fit together, of rank 0 and of the others; in blocking form and not.
MISMATCHES = {
    "operation": ("dist.barrier(group)", "dist.all_reduce(x, group=group)"),
    "count": ("dist.all_reduce(x, group=group)", "dist.all_reduce(y, group=group)"),
    "dtype": ("dist.all_reduce(x, group=group)", "dist.all_reduce(x.int(), group=group)"),
    "operator": ("dist.all_reduce(x, group=group)", "dist.all_reduce(x, MAX, group=group)"),
    "root": ("dist.broadcast(x, 0, group=group)", "dist.broadcast(x, 1, group=group)"),
}

MISMATCHED = f"""
enter()
for calls in {list(MISMATCHES.values())}:
    MAX = dist.ReduceOp.MAX
    for blocking in (True, False):
        call = calls[min(rank, 1)]
        if not blocking:
            call = call.removesuffix(")") + ", async_op=True).wait()"
        group, x, y = dist.new_group(), torch.ones(3), torch.ones(4)
        say(**fault(lambda: eval(call)))
dist.barrier()
"""


@pytest.mark.thorough
def test_mismatches(fork_server, tmp_path):
    with ForkedRanks(fork_server, tmp_path, 3, MISMATCHED) as ranks:
        for rank in range(3):
            assert ranks[rank].read() == {"joined": True}
            for label in MISMATCHES:
                for blocking in (True, False):
                    error = ranks[rank].read()
                    assert error["kinds"][0] == "MismatchError", (label, blocking, error)
                    assert "RuntimeError" in error["kinds"]
        assert [ranks[rank].end() for rank in range(3)] == [0, 0, 0]
