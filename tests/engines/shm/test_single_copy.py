"""Ranks that read each other's memory: the same results, with or without, and no wrong ones."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.refusals import CAN_REFUSE
from tests.helpers.start_cases import START, check_started
from tests.helpers.thorough import essential, essential_rows
from unisono.engines.shm import tuning
from unisono.engines.shm.tuning import CopyRange

EVERY_VERB = """
from tests.helpers import cases
from unisono.core.dtypes import ReduceOp
world = groups.init("shm", 60)
size = world.size
done = 0
for count in (0, 1, 1009, 70_000, 300_001):
    for verb in (*cases.MOVES, *cases.REDUCTIONS):
        for in_place in (False, True):
            root = done % size
            cases.run(world, cases.Case(verb, "float32", count, root=root, in_place=in_place))
            done += 1
for verb in cases.COUNTED:
    for unit in (1, 200, 40_000):
        counts = tuple((3 * i + 1) % size * unit for i in range(size))
        cases.run(world, cases.Case(verb, "int64", 0, root=done % size, counts=counts))
        done += 1
say(done=done)
"""

#: Rank 1 alone may not read: what a container that forbids the system call does.
REFUSED = """
from tests.helpers.refusals import refuse
if rank == 1:
    refuse(["process_vm_readv"], 1)  # EPERM
"""

#: The root broadcasts memory that nobody can read: only a peer that tries to finds out.
NO_ACCESS = """
import ctypes, mmap
from unisono.core import buffers, dispatch
world = groups.init("shm", 60)
reduce(world)  # from the second call on ranks read each other
memory = mmap.mmap(-1, 1 << 20)
array = np.frombuffer(memory, np.uint8)
view = buffers.view(array)
if rank == 0:
    address = ctypes.c_void_p(array.ctypes.data)
    assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(1 << 20), 0) == 0
error = fault(lambda: dispatch.broadcast(world, view, view, 0))
if rank == 0:
    assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(1 << 20), 3) == 0
say(**error)
say(**fault(lambda: reduce(world)))
"""

#: Long calls without a pause: a kill nearly always comes while ranks read each other.
LOOP = """
from unisono.core import buffers, dispatch
from unisono.core.dtypes import ReduceOp
world = groups.init("shm", 600)
mine = np.full(3 << 20, rank + 1.0)
share = mine[: 1 << 20]
big, small = np.zeros(3 << 20), np.zeros(1 << 20)
source, target, share, small = map(buffers.view, (mine, big, share, small))
def call():
    if {verb!r} == "broadcast":
        dispatch.broadcast(world, source, target, 0)
        assert (big[::512] == 1).all()
    elif {verb!r} == "reduce_scatter":
        dispatch.reduce_scatter(world, source, small, ReduceOp.SUM)
        assert (small.array[::512] == 6).all()
    elif {verb!r} == "reduce":
        dispatch.reduce(world, source, target, ReduceOp.SUM, 0)
        assert (big[::512] == (6 if rank == 0 else 0)).all()
    else:
        if {verb!r} == "all_gather":
            dispatch.all_gather(world, share, target)
        else:
            dispatch.all_to_all(world, source, target)
        assert (big.reshape(3, -1)[:, ::512].T == [1, 2, 3]).all()
    big[:], small.array[:] = 0, 0
def loop():
    while True:
        call()
call()
say(joined=True)
say(**fault(loop))
"""


def for_broadcast(sizes: str) -> str:
    """The setting for two ranks on any machine."""
    return ",".join(f"broadcast/{kind}={sizes}" for kind in ("2", "slow", "shared"))


@pytest.mark.parametrize("ranks", essential(1, [3, 2]))
@pytest.mark.parametrize(
    "bytes_from", essential(2, ["1", "0", "65536", ""]), ids=["all", "never", "long", "default"]
)
def test_every_verb_either_way(ranks: int, bytes_from: str) -> None:
    with Ranks(ranks, EVERY_VERB, UNISONO_SINGLE_COPY=bytes_from) as job:
        assert job.read_all() == [{"done": 95}] * ranks


@pytest.mark.skipif(not CAN_REFUSE, reason="knows no number of the call here")
def test_a_rank_that_may_not_read_is_no_error() -> None:
    with Ranks(3, REFUSED + EVERY_VERB, UNISONO_SINGLE_COPY="1") as job:
        assert job.read_all() == [{"done": 95}] * 3


@pytest.mark.thorough
def test_one_rank_can_refuse_for_all() -> None:
    with Ranks(3, EVERY_VERB, only=[0, 1], UNISONO_SINGLE_COPY="1") as job:
        job.start(2, UNISONO_SINGLE_COPY="0")
        assert job.read_all() == [{"done": 95}] * 3


@pytest.mark.parametrize(
    "value",
    essential(
        2, ["64K", "gather/2=1,", "yes", "-1", "5-", "gather/8", "gather/9=1", "barrier/2=1"]
    ),
)
def test_a_wrong_setting_is_an_error(value: str) -> None:
    with Ranks(2, START, UNISONO_SINGLE_COPY=value) as job:
        for error in job.read_all():
            assert error["kind"] == "LaunchError", error
            assert f"UNISONO_SINGLE_COPY is '{value}'" in error["text"], error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "is_direct"),
    [
        (for_broadcast("1048576"), True),
        (for_broadcast("1048577"), False),
        ("1-1048577", True),
        ("1-1048576", False),
        ("broadcast/4=1,scatter/2=1," + for_broadcast("0"), False),
    ],
)
def test_a_setting_for_one_verb(value: str, is_direct: bool) -> None:
    with Ranks(2, NO_ACCESS, UNISONO_SINGLE_COPY=value) as job:
        if is_direct:
            assert "could not be read" in job[1].read()["text"]
        else:
            assert job[0].end() == -signal.SIGSEGV  # it reads its memory itself


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("measured", "is_direct"),
    [(CopyRange(1048576), True), (CopyRange(1048577), False), (CopyRange(1, 1048576), False)],
)
def test_what_was_measured_decides(measured: CopyRange, is_direct: bool, tmp_path: Path) -> None:
    tuning.write({("broadcast", 2): measured}, tmp_path / "tuning.json")
    with Ranks(2, NO_ACCESS, UNISONO_CACHE=str(tmp_path)) as job:
        if is_direct:
            assert "could not be read" in job[1].read()["text"]
        else:
            assert job[0].end() == -signal.SIGSEGV  # it reads its memory itself


def test_an_empty_value_means_the_default() -> None:
    with Ranks(2, START, UNISONO_SINGLE_COPY="") as job:
        check_started(job, 2)


def test_memory_that_peers_cannot_read_is_an_error_everywhere() -> None:
    with Ranks(3, NO_ACCESS, UNISONO_SINGLE_COPY="1") as job:
        errors = job.read_all()
        assert all(error["kind"] in ("LaunchError", "PeerLost") for error in errors), errors
        reports = [error for error in errors if error["kind"] == "LaunchError"]
        assert reports
        for error in reports:
            assert "the memory of rank 0" in error["text"], error
            assert "UNISONO_SINGLE_COPY=0" in error["text"], error
        assert all(error["kind"] is not None for error in job.read_all())  # the group is broken


@pytest.mark.parametrize(
    ("verb", "victim"),
    essential_rows(
        2,
        [
            ("broadcast", 0),
            ("reduce", 2),
            ("all_to_all", 2),
            ("all_gather", 1),
            ("reduce_scatter", 1),
            ("reduce", 0),
        ],
    ),
)
def test_a_rank_killed_while_others_read_it(verb: str, victim: int) -> None:
    with Ranks(3, LOOP.format(verb=verb), UNISONO_SINGLE_COPY="1") as job:
        job.read_all()
        time.sleep(0.3)
        job[victim].signal(signal.SIGKILL)
        for rank in {0, 1, 2} - {victim}:
            error = job[rank].read()
            assert error["kind"] == "PeerLost" and error["ranks"] == [victim], error
            assert job[rank].end() == 0
