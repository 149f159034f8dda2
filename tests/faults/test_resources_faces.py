"""Both faces where memory is short, after a fork, and on several threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import unisono
import unisono.torch.distributed as dist
from tests.helpers.jobs import Ranks
from unisono.errors import UnisonoError
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func

FACES = """
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func
"""

# ---- several threads -----------------------------------------------------------------------------

SEVERAL = """
from unisono.mindspore.mint import distributed as mint
groups.init("shm", 60)
failures = []
def guarded(work, *arguments):
    try:
        work(*arguments)
    except BaseException as error:
        failures.append(repr(error))
def with_pytorch(group):
    for turn in range(200):
        value = np.full(1 + turn % 3 * 5_000, rank + 1.0)
        dist.all_reduce(value, group=group)
        assert value[-1] == 3
        parts = [np.zeros(2), np.zeros(2)]
        dist.all_gather(parts, np.full(2, float(rank)), group=group)
        assert parts[1][0] == 1
def with_mindspore(name):
    for turn in range(200):
        value, handle = comm_func.all_reduce(np.full(5, rank + 1.0), group=name, async_op=True)
        handle.wait()
        assert value[-1] == 3
        mint.broadcast(value, 1, name)
def same(turn):
    for turn in range(200):
        value = np.full(5, rank + 1.0)
        dist.all_reduce(value)
        assert value[-1] == 3
        assert comm_func.all_reduce(np.full(5, rank + 1.0))[0][0] == 3
for number in range(4):
    comm.create_group(f"group {number}", [0, 1])
jobs = {
    "several groups": [(with_pytorch, dist.new_group([0, 1])) for _ in range(4)]
        + [(with_mindspore, f"group {number}") for number in range(4)],
    "one group": [(same, number) for number in range(4)],
}
for name, work in jobs.items():
    threads = [threading.Thread(target=guarded, args=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(name=name, failures=failures)
"""


def test_several_threads_in_both_faces() -> None:
    with Ranks(2, FACES + SEVERAL) as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"name": "several groups", "failures": []}
            assert ranks[rank].read() == {"name": "one group", "failures": []}
            assert ranks[rank].end() == 0


# ---- a full memory, through both faces -----------------------------------------------------------


def check_figures(error: dict[str, Any]) -> None:
    assert error["kind"] == "OutOfSharedMemory", error
    assert "MiB" in error["text"] and any(character.isdigit() for character in error["text"]), error


@pytest.mark.parametrize("init", ["dist.init_process_group()", "comm.init()"])
def test_no_memory_at_init(init: str) -> None:
    body = f"""
limit_memory(1)
say(**fault(lambda: {init}))
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
say(ready=dist.is_initialized())
"""
    with Ranks(2, FACES + body) as ranks:
        for rank in range(2):
            check_figures(ranks[rank].read())
            assert ranks[rank].read() == {"ready": False}
            assert ranks[rank].end() == 0


LATER = {
    "a group": "dist.new_group([0, 1])",
    "a named group": 'comm.create_group("pair", [0, 1])',
    "a reduction": "dist.all_reduce(large)",
    "a reduction for later": "dist.all_reduce(large, async_op=True).wait()",
    "a new tensor": "comm_func.all_reduce(large)",
    "a gathering": "dist.all_gather([large.copy(), large.copy()], large)",
    "an object": "dist.all_gather_object([None, None], bytes(20_000_000))",
    "a message": "dist.send(large, 1) if rank == 0 else dist.recv(large, 0)",
}


@pytest.mark.parametrize("what", LATER)
def test_no_memory_later(what: str) -> None:
    """The error has figures, or the call does without more memory; nobody dies of SIGBUS."""
    body = f"""
world = groups.init("shm", 60)
limit_memory(1)
large = np.full(2_500_000, rank + 1.0)
say(**fault(lambda: {LATER[what]}))
value = np.full(3, rank + 1.0)
dist.all_reduce(value)
say(sum=value[0])
"""
    with Ranks(2, FACES + body) as ranks:
        kinds = set()
        for rank in range(2):
            error = ranks[rank].read()
            kinds.add(error["kind"])
            if error["kind"] is not None:
                check_figures(error)
        assert len(kinds) == 1, kinds
        for rank in range(2):
            assert ranks[rank].read() == {"sum": 3.0}
            assert ranks[rank].end() == 0


def test_no_room_in_the_address_space() -> None:
    """The memory is there, but cannot be mapped: an error that can be caught."""
    body = """
import unisono.engines.shm.engine  # that a module cannot be loaded is not tested here
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), -1))
say(**fault(lambda: dist.init_process_group("shm")))
"""
    with Ranks(2, FACES + body, UNISONO_TIMEOUT="10") as ranks:
        for rank in range(2):
            error = ranks[rank].read()
            assert error["kind"] in ("OutOfSharedMemory", "LaunchError"), error
            assert ranks[rank].end() == 0


# ---- fork, through both faces --------------------------------------------------------------------

FORK = """
from unisono.mindspore import ops
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication
dist.init_process_group("shm")
comm.create_group("pair", [0, 1])
pair = dist.new_group([0, 1])
x = np.ones(4)
assert reduce(groups.world()) == 3
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    import json
    calls = [
        lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, group=pair), lambda: dist.barrier(),
        lambda: dist.all_reduce(x, async_op=True), lambda: dist.new_group([0, 1]),
        lambda: dist.send(x, 1 - rank), lambda: dist.recv(x, 1 - rank), lambda: dist.get_rank(),
        lambda: dist.all_gather_object([None] * 2, 1), lambda: dist.broadcast(x, 0, group="pair"),
        lambda: comm.create_group("more", [0, 1]), lambda: comm_func.all_reduce(x),
        lambda: comm_func.all_reduce(x, group="pair"), lambda: comm_func.barrier(),
        lambda: comm_func.all_reduce(x, group=pair),
        lambda: comm_func.isend(x, 1 - rank), lambda: mint.all_reduce(x), lambda: mint.barrier(),
        lambda: mint.all_gather_object([None] * 2, 1), lambda: communication.all_reduce(x),
        lambda: ops.AllReduce()(x), lambda: ops.Barrier()(),
    ]
    answer = [dict(fault(call), number=number) for number, call in enumerate(calls)]
    answer.append(dict(kind=str(dist.is_initialized()), text=str(mint.is_initialized())))
    dist.destroy_process_group()
    comm.release()
    os.write(writer, json.dumps(answer).encode())
    sys.exit()
os.close(writer)
answer = b"".join(iter(lambda: os.read(reader, 65536), b""))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
import json
say(faults=json.loads(answer), code=code)
dist.all_reduce(x, group=pair)
by_name = comm_func.all_reduce(np.ones(1), group="pair")[0]
say(sums=[reduce(groups.world()), float(by_name[0]), x[0]])
"""


def test_fork_in_both_faces() -> None:
    with Ranks(2, FACES + FORK) as ranks:
        for rank in range(2):
            told = ranks[rank].read()
            assert told["code"] == 0
            *faults, ready = told["faults"]
            for error in faults:
                assert error["kind"] == "NotReady", error
                assert "forked after init" in error["text"], error
            assert (ready["kind"], ready["text"]) == ("False", "False")
        for rank in range(2):
            assert ranks[rank].read() == {"sums": [3.0, 2.0, 2.0]}
            assert ranks[rank].end() == 0


# ---- threads of ranks that are threads -----------------------------------------------------------


def work_on_threads() -> tuple[list[str], list[str]]:
    """This rank's own threads: each has a group object; names belong to the rank's thread."""
    rank = dist.get_rank()
    comm.create_group("pair", [0, 1])
    wrong: list[str] = []
    refused: list[str] = []

    def work(group: dist.ProcessGroup) -> None:
        try:
            for turn in range(100):
                value = np.full(1 + turn % 2 * 1000, rank + 1.0)
                dist.all_reduce(value, group=group, async_op=turn % 3 == 0)
                dist.barrier(group)
                assert value[-1] == 3, value
        except BaseException as error:
            wrong.append(repr(error))
        try:
            comm_func.all_reduce(np.ones(1), group="pair")
        except UnisonoError as error:
            refused.append(type(error).__name__)

    threads = [
        threading.Thread(target=work, args=(group,))
        for group in [dist.new_group([0, 1]) for _ in range(4)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong, refused


def test_threads_of_ranks_that_are_threads() -> None:
    for wrong, refused in unisono.spawn(work_on_threads, 2):
        assert wrong == []
        assert refused == ["NotReady"] * 4
