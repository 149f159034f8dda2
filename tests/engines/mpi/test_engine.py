"""Engine `mpi` where it is not like the others: mpiexec, MPI beside us, kinds, large counts.

That it does what every engine does is for the conformance suite (UNISONO_TEST_ENGINES=mpi).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import cases, hosts, oracle
from tests.helpers.mpi_cases import PRELUDE, SOON, call, error_of, heard, job, on_ranks, run
from unisono.core import buffers, dispatch, registry
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.engines.mpi import datatypes, engine, primitives
from unisono.errors import ArgumentError

_reason = registry.load("mpi").unavailable()
if _reason is not None:
    pytest.skip(_reason, allow_module_level=True)


# ---- beside the user's own MPI -------------------------------------------------------------------


def test_mpi_that_the_user_has_started() -> None:
    code, said = run(
        2,
        """
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine = comm.isend("the user's own", 1 - comm.rank, 0)
world = groups.init("mpi", 30)
other = 1 - world.rank
sent = dispatch.send(world, buffers.view(np.full(2, world.rank)), other, 0, blocking=False)
found = np.zeros(2, int)
dispatch.recv(world, buffers.view(found), other, 0)
sent.wait()
total = reduce(world)
groups.close()
again = reduce(groups.init("mpi", 30))
groups.close()
text = comm.recv(source=other, tag=0)
mine.wait()
say(total=total, again=again, found=found.tolist(), text=text, whole=comm.allreduce(1))
say(finalised=MPI.Is_finalized())
MPI.Finalize()
""",
    )
    assert code == 0
    assert [line for line in said if "finalised" in line] == [{"finalised": False}] * 2
    for line in (line for line in said if "total" in line):
        assert (line["total"], line["again"], line["whole"]) == (3.0, 3.0, 2)
        assert line["text"] == "the user's own"


def test_worlds_one_after_the_other() -> None:
    body = """
for turn in range(20):
    world = groups.init("mpi", 30)
    child = world.split([2, 0, 1])
    assert reduce(child) == reduce(world) == 6.0
    time.sleep(0.01 * (world.rank == turn % 3))
    groups.close()
say(end=turn)
"""
    assert run(3, body) == (0, [{"end": 19}] * 3)


def test_mpi_that_the_user_starts_late() -> None:
    body = """
import mpi4py
mpi4py.rc.initialize = False
say(**fault(lambda: groups.init("mpi", 30)))
from mpi4py import MPI
MPI.Init_thread()
say(total=reduce(groups.init("mpi", 30)))
groups.close()
MPI.Finalize()
"""
    code, said = run(2, body)
    assert code == 0
    assert [line["kind"] for line in said if "kind" in line] == ["LaunchError"] * 2
    assert [line for line in said if "total" in line] == [{"total": 3.0}] * 2


def test_mpi_that_the_user_has_finalised() -> None:
    body = """
from mpi4py import MPI
world = groups.init("mpi", 30)
reduce(world)
MPI.Finalize()
say(**fault(lambda: reduce(world)))
groups.close()
say(**fault(lambda: groups.init("mpi", 30)))
"""
    code, said = run(2, body)
    assert code == 0
    assert sorted(line["kind"] for line in said) == ["LaunchError"] * 2 + ["NotReady"] * 2


def test_mpi_that_is_for_one_thread() -> None:
    body = """
import mpi4py
mpi4py.rc.threads = False
say(**fault(lambda: groups.init("mpi", 30)))
"""
    code, said = run(2, body)
    assert code == 0
    assert [line["kind"] for line in said] == ["LaunchError"] * 2
    assert "THREAD_MULTIPLE" in said[0]["text"]


def run_alone(body: str, **variables: str) -> list[dict[str, Any]]:
    """What a process says that mpiexec did not start."""
    paths = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory() as folder:  # without mpiexec Open MPI removes nothing
        done = subprocess.run(
            [*hosts.own_memory(), sys.executable, "-c", PRELUDE + body],
            env={**os.environ, **variables, "PYTHONPATH": paths, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=SOON,
        )
    return heard(done.stdout)


def test_a_rank_alone_needs_no_mpiexec() -> None:
    assert run_alone('say(total=reduce(groups.init("mpi", 30)))') == [{"total": 1.0}]


def test_ranks_that_mpiexec_did_not_start() -> None:
    body = 'say(**fault(lambda: groups.init("mpi", 30)))'
    (line,) = run_alone(body, UNISONO_RANK="1", UNISONO_SIZE="2", UNISONO_JOB="none")
    assert line["kind"] == "LaunchError"
    assert "rank 1 of 2" in line["text"] and "mpiexec -n 2" in line["text"]


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_pytorch_face_under_mpiexec() -> None:
    body = """
import torch
import unisono.torch.distributed as dist
dist.init_process_group()
from unisono.core import groups
tensor = torch.full((4,), dist.get_rank() + 1.0, dtype=torch.bfloat16)
dist.all_reduce(tensor)
parts = [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
dist.all_gather(parts, torch.full((2,), dist.get_rank()))
half = dist.new_group([2, 0])
box = [dist.get_rank()]
if dist.get_rank() != 1:
    dist.broadcast_object_list(box, src=2, group=half)
engine = groups.world().engine.name
dist.destroy_process_group()
say(found=[engine, tensor.tolist(), torch.stack(parts).tolist(), box])
"""
    with job(3, body, UNISONO_ENGINE="mpi") as process:
        said, _ = process.communicate(timeout=2 * SOON)
    assert process.returncode == 0
    found = sorted(line["found"] for line in heard(said))
    expected = ["mpi", [6.0] * 4, [[0, 0], [1, 1], [2, 2]]]
    assert found == [[*expected, [1]], [*expected, [2]], [*expected, [2]]]


# ---- kinds and arguments -------------------------------------------------------------------------


def in_any_order(group: Group) -> int:
    """Whole numbers that are small: their sums and products are exact in whatever order."""
    tried = 0
    for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        dtype = oracle.numpy_dtype(name)
        for op in oracle.operators(name):
            for count in (0, 1, 1009):
                given = [(np.arange(count) % 3 + r % 2 + 1).astype(dtype) for r in range(4)]
                whole = oracle.combine(op, given)
                target = given[group.rank].copy()
                call(group, "all_reduce", target, target, op)
                oracle.check_same(target, whole, (name, op, count))
                at_root = np.zeros(count, dtype) if group.rank == 2 else None
                call(group, "reduce", given[group.rank], at_root, op, 2)
                if at_root is not None:
                    oracle.check_same(at_root, whole, (name, op, count))
                share = np.zeros(count, dtype)
                call(group, "reduce_scatter", np.tile(given[group.rank], 4), share, op, None)
                oracle.check_same(share, whole, (name, op, count))
                tried += 1
    return tried


def test_sums_in_the_order_of_mpi() -> None:
    assert on_ranks(4, in_any_order, kind="mpi:unordered") == [4 * 3 * 6 + 2 * 3 * 4] * 4


def among_many(group: Group) -> None:
    """As if three ranks were many."""
    engine.FEW = primitives.FEW = 2
    call(group, "barrier")
    for name in ("float32", "bfloat16"):
        array = oracle.values(name, group.rank, 1009)
        call(group, "all_reduce", array, array, ReduceOp.SUM)
        expected = oracle.reduced(ReduceOp.SUM, name, group.size, 1009)
        oracle.check_same(array, expected, name, any_nan=True)


def test_small_sums_of_many_ranks() -> None:
    on_ranks(3, among_many)


def in_small_pieces(group: Group) -> None:
    """As if a few kilobytes were too much to be under way."""
    engine._CHUNK_BYTES, engine._SMALL, engine.MAX_COUNT = 4096, 64, 1000
    datatypes.MAX_COUNT, datatypes._BLOCK = 1000, 512
    for verb in cases.REDUCTIONS + cases.MOVES:
        for dtype, op in (("float32", ReduceOp.SUM), ("int16", ReduceOp.AVG)):
            for in_place in (True, False):
                cases.run(group, cases.Case(verb, dtype, 5003, op, 1, in_place=in_place))


def test_calls_in_pieces() -> None:
    on_ranks(3, in_small_pieces)


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match="mpi:unordered"):
        registry.load("mpi:faster")


def bad_tags(group: Group) -> list[str]:
    tags = (-1, 1 << 31)
    errors = [error_of(lambda tag=tag: call(group, "send", np.zeros(1), 0, tag)) for tag in tags]
    return [f"{type(error).__name__} {error}" for error in errors]


def test_tags_out_of_range() -> None:
    for text in on_ranks(1, bad_tags)[0]:
        assert text.startswith("ArgumentError tag ") and "out of range" in text


def closed(group: Group) -> list[str]:
    group.engine.close()
    group.engine.close()
    error = error_of(lambda: dispatch.barrier(group))
    lost = error_of(lambda: dispatch.recv(group, buffers.view(np.zeros(1)), 0))
    return [type(error).__name__, type(lost).__name__]


def test_closing_twice() -> None:
    assert on_ranks(2, closed) == [["NotReady", "NotReady"]] * 2


# ---- large counts --------------------------------------------------------------------------------

LARGE = (1 << 31) + 7
NEEDED = 12 << 30


def free_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) << 10
    return 0


def large(group: Group) -> None:
    places = [0, 1, 1 << 30, (1 << 31) - 1, 1 << 31, LARGE - 1]
    array = np.zeros(LARGE, np.int8)

    def check(what: str, expected: int) -> None:
        found = array[places].tolist()
        if found != [expected + place % 5 for place in places]:
            raise AssertionError(f"{what} on rank {group.rank}: {found}")

    array[places] = [10 * (group.rank + 1) + place % 5 for place in places]
    call(group, "all_reduce", array, array, ReduceOp.MAX)
    check("all_reduce", 20)
    if group.rank == 0:
        array += 30
        call(group, "broadcast", array, array, 0)
        call(group, "recv", array, 1, 3)
        check("recv", 60)
        call(group, "scatter", array, array[:-1], 0, [LARGE - 1, 1])
    else:
        call(group, "broadcast", None, array, 0)
        check("broadcast", 50)
        array += 10
        call(group, "send", array, 0, 3)
        call(group, "scatter", None, array[-1:], 0, None)
        assert array[-1] == 60 + (LARGE - 1) % 5


@pytest.mark.thorough
@pytest.mark.skipif(free_memory() < NEEDED, reason="needs 12 GiB of free memory")
def test_counts_beyond_31_bits() -> None:
    on_ranks(2, large, timeout=100)  # some gigabytes, on whatever else there is to do
