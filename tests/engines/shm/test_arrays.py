"""Arrays that peers read where they are: the same results, a clear end, and nothing left behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.helpers.array_cases import NUMPY
from tests.helpers.jobs import Ranks
from tests.helpers.leftovers import Leftovers
from tests.helpers.thorough import essential, essential_rows

#: Which arrays of which ranks are in shared memory; `turn` is a number that all ranks count.
EVERY_ARRAY = "True"
ONE_RANK_DOES_NOT = "rank != 1"
BY_TURNS = "(turn + rank) % 3 != 0"

EVERY_VERB = """
import contextlib, unisono
from tests.helpers import cases
from unisono.core.dtypes import ReduceOp
world = groups.init("shm", 60)
size = world.size
turn = 0
def run(*arguments, **options):
    global turn
    turn += 1
    case = cases.Case(*arguments, root=turn % size, **options)
    with unisono.shared_arrays(0) if shared() else contextlib.nullcontext():
        cases.run(world, case)
for shared in ({shared},):
    for count in (0, 1, 1009, 70_000, 300_001):
        for verb in (*cases.MOVES, *cases.REDUCTIONS):
            for in_place in (False, True):
                run(verb, "float32", count, in_place=in_place)
    for verb in cases.COUNTED:
        for unit in (1, 200, 40_000):
            counts = tuple((3 * i + 1) % size * unit for i in range(size))
            run(verb, "int64", 0, counts=counts)
say(done=turn)
"""

EVERY_DTYPE = """
import unisono
from tests.helpers import cases
from unisono.core.dtypes import ReduceOp
world = groups.init("shm", 60)
with unisono.shared_arrays(0):
    for name in ("bool", "int8", "uint16", "int64", "float16", "bfloat16", "float64", "complex64"):
        op = ReduceOp.MAX if name in ("bool", "int8") else ReduceOp.SUM
        for verb in ("all_reduce", "reduce", "reduce_scatter", "all_to_all"):
            cases.run(world, cases.Case(verb, name, 40_001, op=op, in_place=verb == "all_reduce"))
    for op in (ReduceOp.AVG, ReduceOp.premul_sum(0.3), ReduceOp.PRODUCT):
        cases.run(world, cases.Case("all_reduce", "float32", 1_500_000, op=op, in_place=True))
say(done=True)
"""

#: The root's own view of its memory is closed: only peers that read theirs get the values.
PEERS_READ_IT = """
import ctypes, unisono
from unisono.core import buffers, dispatch
world = groups.init("shm", 60)
array = unisono.empty(1 << 18, np.uint8)
array[:] = np.arange(1 << 18) % 251 + 1 if rank == 0 else 0
view = buffers.view(array)
protect = ctypes.CDLL(None).mprotect
place = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
if rank == 0:
    assert protect(*place, 0) == 0
dispatch.broadcast(world, view, view, 0)
if rank == 0:
    assert protect(*place, 3) == 0
say(right=bool((array == np.arange(1 << 18) % 251 + 1).all()))
"""

#: Long calls without a pause: a kill nearly always comes while ranks read each other.
LOOP = """
import unisono
from unisono.core import buffers, dispatch
from unisono.core.dtypes import ReduceOp
world = groups.init("shm", 600)
mine = unisono.empty(3 << 20)
big = unisono.empty(3 << 20)
source, target = buffers.view(mine), buffers.view(big)
def call():
    mine[:], big[:] = rank + 1, 0
    if {verb!r} == "all_reduce":
        dispatch.all_reduce(world, source, source, ReduceOp.SUM)
        assert (mine[::512] == 6).all()
    elif {verb!r} == "reduce":
        dispatch.reduce(world, source, target, ReduceOp.SUM, 0)
        assert rank != 0 or (big[::512] == 6).all()
    else:
        dispatch.all_to_all(world, source, target)
        assert (big.reshape(3, -1)[:, ::512].T == [1, 2, 3]).all()
def loop():
    while True:
        call()
call()
say(joined=True)
say(**fault(loop))
"""

#: A rank leaves the call at its deadline and frees its array; a peer that was stopped comes later.
FREED = """
import unisono
from unisono.core import buffers, dispatch
world = groups.init("shm", 60)
array = unisono.empty(16 << 20)
array[:] = rank
view = buffers.view(array)
def call():
    while True:
        dispatch.broadcast(world, view, view, 0, timeout=0.5 if rank == 0 else 60)
        assert (array[::512] == 0).all()
say(joined=True)
error = fault(call)
del array, view
say(**error)
"""

#: What the job's memory takes, and how many of this process's descriptors lead to it.
MEASURES = """
import gc
from pathlib import Path
def descriptors():
    names = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:unisono" in os.readlink(link):
                names.append(link.name)
        except OSError:
            pass
    return names
def mebibytes():
    return os.stat(f"/proc/self/fd/{descriptors()[0]}").st_blocks * 512 >> 20
"""

LIFETIME = (
    MEASURES
    + """
import unisono
from unisono.core.groups import close
world = groups.init("shm", 60)
before = mebibytes()
array = unisono.empty((200 << 20) // 8)
assert mebibytes() >= before + 200
part = array[1000:2000]
part[:] = 7
del array
assert mebibytes() >= before + 200 and (part == 7).all()
del part
assert mebibytes() < before + 5, mebibytes()

# Short ones are kept for the next, but not many of them.
for _ in range(50):
    arrays = [unisono.empty(1 << 20) for _ in range(12)]
assert mebibytes() <= before + 200
del arrays
assert mebibytes() <= before + 70

# Arrays outlive the world, and what they need goes with the last of them.
kept = unisono.empty(1000)
kept[:] = 3
close()
gc.collect()
kept += 1
assert (kept == 4).all() and descriptors()
del world, kept
gc.collect()
assert not descriptors(), descriptors()
groups.init("shm", 60)
assert reduce(groups.world()) == 1.0
say(done=True)
"""
)

FORKED = """
import unisono
world = groups.init("shm", 60)
array = unisono.empty(100_000)
array[:] = rank + 1
with unisono.shared_arrays(0):
    child = os.fork()
    if child == 0:
        assert (array == rank + 1).all()
        array[:] = 1000  # only here
        fresh = np.zeros(100_000) + array
        assert (fresh == 1000).all()
        refused = fault(lambda: unisono.empty(10))
        del array, fresh
        os._exit(0 if refused["kind"] == "NotReady" else 1)
assert os.waitpid(child, 0)[1] == 0
assert (array == rank + 1).all()
start_reduce(world, array, True)
say(right=bool((array == 3).all()))
"""

#: Two groups, calls in the background, and a group without the rank that has died.
GROUPS = """
import unisono
world = groups.init("shm", 60)
half = world.split([0, 2]) if rank != 1 else world.split([1])
array = unisono.empty(200_000)
for turn in range(5):
    array[:] = rank + 1
    work = start_reduce(half, array)
    other = unisono.empty(50_000)
    other[:] = turn + rank
    both = start_reduce(world, other)
    work.wait(), both.wait()
    assert (array == (4 if rank != 1 else 2)).all()
    assert (other == 3 * turn + 3).all()
say(done=True)
hear()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
fault(lambda: start_reduce(world, array, True))
smaller = world.shrink()
array[:] = rank + 1
start_reduce(smaller, array, True)
say(right=bool((array == 4).all()))
"""

REFUSED = """
import unisono
say(**fault(lambda: unisono.empty(3)))
say(**fault(lambda: unisono.shared_arrays().__enter__()))
groups.init("shm", 60)
for action in (
    lambda: unisono.empty((2, -1)),
    lambda: unisono.empty("three"),
    lambda: unisono.empty(3, "no such type"),
    lambda: unisono.empty(3, object),
    lambda: unisono.empty(3, like="numpy"),
    lambda: unisono.empty(1 << 44),
    lambda: unisono.empty((1 << 62, 4)),
    lambda: unisono.shared_arrays(-1).__enter__(),
    lambda: unisono.shared_arrays("many").__enter__(),
):
    say(**fault(action))
try:
    with unisono.shared_arrays(0):
        np.empty(1 << 40)
except MemoryError as error:
    say(kind=type(error).__name__, text="".join(error.__notes__))
limit_memory(200)
say(**fault(lambda: unisono.empty(300 << 20, np.uint8)))
assert unisono.empty(10 << 20, np.uint8).size == 10 << 20
assert unisono.empty(0).shape == (0,) and unisono.empty(()).shape == ()
say(done=True)
"""

TORCH = """
import torch, unisono
import unisono.torch.distributed as dist
dist.init_process_group()
half = unisono.empty((100, 300), torch.bfloat16, like=torch)
half[:] = rank + 1
assert half.dtype == torch.bfloat16 and half.is_contiguous() and half.data_ptr() % 4096 == 0
row = half[7]
dist.all_reduce(half)
del half
assert (row == 3).all()
same = unisono.empty(70_000, like=torch.zeros(1, dtype=torch.int64))
same[:] = rank
gathered = [unisono.empty(70_000, "int64", like=torch) for _ in range(2)]
dist.all_gather(gathered, same)
assert all((part == i).all() for i, part in enumerate(gathered))
assert unisono.empty(3, like=torch).dtype == torch.float32
assert unisono.empty((0, 2), np.float16, like=torch).shape == (0, 2)
say(done=True)
"""

OTHER_ENGINE = """
import unisono
try:
    from numpy._core.multiarray import get_handler_name
except ImportError:
    from numpy.core.multiarray import get_handler_name
from unisono import spawn
def main():
    array = unisono.empty(100_000)
    with unisono.shared_arrays(0):
        other = np.zeros(100_000)
    return get_handler_name(array), get_handler_name(other)
say(names=spawn(main, 2, engine="threads"))
"""


@pytest.mark.parametrize("ranks", essential(1, [3, 2, 4]))
@pytest.mark.parametrize(
    ("single_copy", "every_shared"),
    essential_rows(
        1,
        [
            ("0", [EVERY_ARRAY, BY_TURNS, ONE_RANK_DOES_NOT]),
            ("1", [BY_TURNS, ONE_RANK_DOES_NOT]),
            ("65536", [BY_TURNS]),
        ],
    ),
)
def test_every_verb(ranks: int, single_copy: str, every_shared: list[str]) -> None:
    body = EVERY_VERB.format(shared=", ".join(f"lambda: {shared}" for shared in every_shared))
    with Ranks(ranks, body, UNISONO_SINGLE_COPY=single_copy) as job:
        assert job.read_all() == [{"done": 95 * len(every_shared)}] * ranks


def test_dtypes_and_operators() -> None:
    with Ranks(2, EVERY_DTYPE, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"done": True}] * 2


def test_peers_read_the_array_itself() -> None:
    with Ranks(3, PEERS_READ_IT, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"right": True}] * 3


@pytest.mark.parametrize(
    ("verb", "victim"), essential_rows(1, [("all_reduce", 1), ("all_to_all", 2), ("reduce", 0)])
)
def test_a_killed_rank_is_an_error_and_leaves_nothing(
    verb: str, victim: int, tmp_path: Path
) -> None:
    leftovers = Leftovers(tmp_path)
    with Ranks(3, LOOP.format(verb=verb), UNISONO_SINGLE_COPY="0", **leftovers.variables) as job:
        job.read_all()
        time.sleep(0.3)
        job[victim].signal(signal.SIGKILL)
        for rank in {0, 1, 2} - {victim}:
            error = job[rank].read()
            assert error["kind"] == "PeerLost" and error["ranks"] == [victim], error
            assert job[rank].end() == 0
    leftovers.check()


def test_memory_freed_while_a_peer_reads_it_is_an_error() -> None:
    with Ranks(2, FREED, UNISONO_SINGLE_COPY="0") as job:
        job.read_all()
        time.sleep(0.1)
        job[1].signal(signal.SIGSTOP)
        assert job[0].read()["kind"] == "CommTimeout"
        job[1].signal(signal.SIGCONT)
        assert job[1].read()["kind"] in ("PeerLost", "CommTimeout")
        assert job[1].end() == 0


@pytest.mark.thorough
def test_memory_is_given_back() -> None:
    with Ranks(1, LIFETIME) as job:
        assert job[0].read() == {"done": True}


def test_numpys_own_allocator() -> None:
    with Ranks(1, NUMPY) as job:
        assert "done" in job[0].read()


def test_a_forked_child_has_its_own_values() -> None:
    with Ranks(2, FORKED, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"right": True}] * 2


def test_groups_and_survivors() -> None:
    with Ranks(3, GROUPS, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"done": True}] * 3
        for rank in range(3):
            job[rank].tell()
        assert job.read_all(0, 2) == [{"right": True}] * 2


def test_what_is_refused() -> None:
    with Ranks(1, REFUSED) as job:
        rank = job[0]
        assert [rank.read()["kind"] for _ in range(2)] == ["NotReady"] * 2
        kinds = [rank.read()["kind"] for _ in range(9)]
        assert kinds == [
            "ArgumentError",
            "ArgumentTypeError",
            "ArgumentTypeError",
            "ArgumentTypeError",
            "ArgumentTypeError",
            "OutOfSharedMemory",
            "ArgumentError",
            "ArgumentError",
            "ArgumentTypeError",
        ]
        error = rank.read()
        assert "MemoryError" in error["kind"] and "of shared memory are needed" in error["text"]
        error = rank.read()
        assert error["kind"] == "OutOfSharedMemory" and "ulimit -f" in error["text"], error
        assert rank.read() == {"done": True}


def test_torch_tensors() -> None:
    pytest.importorskip("torch")
    with Ranks(2, TORCH, UNISONO_SINGLE_COPY="0") as job:
        assert job.read_all() == [{"done": True}] * 2


def test_other_engines_give_ordinary_memory() -> None:
    with Ranks(1, OTHER_ENGINE) as job:
        assert job[0].read() == {"names": [["default_allocator"] * 2] * 2}
