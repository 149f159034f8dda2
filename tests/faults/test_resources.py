"""What a long job costs: groups, collectives and worlds by the thousand, and nothing grows.

`make resources` (UNISONO_RESOURCES=full) runs ten times as many of each and shows what one costs.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.helpers.jobs import Ranks

FULL = os.environ.get("UNISONO_RESOURCES") == "full"
GROUPS = 10_000 if FULL else 1_000
KEPT = 10_000 if FULL else 500
CALLS = 1_000_000 if FULL else 50_000
CYCLES = 1_000 if FULL else 60

#: KiB by which a rank may grow: Python's own arenas come and go in pieces of 1 MiB.
SLACK = 4096

USAGE = """
import gc
import numpy as np
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func

def usage():
    gc.collect()
    folder = "/proc/self/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append((int(name), os.readlink(f"{folder}/{name}")))
        except OSError:
            continue  # the descriptor that read the folder
    maps = open("/proc/self/maps").read().splitlines()
    rollup = dict(line.split(":", 1) for line in open("/proc/self/smaps_rollup") if ":  " in line)
    return {
        "descriptors": len(links),
        "threads": len(os.listdir("/proc/self/task")),
        "shared mappings": sum("memfd:unisono" in line for line in maps),
        "shared KiB": sum(os.stat(fd).st_blocks // 2 for fd, to in links if "memfd:unisono" in to),
        "mappings": len(maps),
        "PSS KiB": int(rollup["Pss"].split()[0]),
    }

def measured():
    dist.barrier()  # the other rank makes and destroys nothing in the meantime
    now = usage()
    dist.barrier()
    return now

def in_parts(count, body):
    # The test hears of each part: a busy machine may be slow, but it must not be silent.
    began = said = time.perf_counter()
    for turn in range(count):
        body(turn)
        if time.perf_counter() > said + 5:
            said = time.perf_counter()
            say(part=turn)
    return (time.perf_counter() - began) / count
"""


def final(rank: Any) -> dict[str, Any]:
    """The first thing the rank says that is not about a part of the work."""
    while True:
        told = rank.read()
        if "part" not in told:
            return told


def check_flat(before: dict[str, int], after: dict[str, int], slack: int = SLACK) -> None:
    """Nothing that is counted may differ; memory may breathe."""
    for name in ("descriptors", "threads", "shared mappings", "shared KiB"):
        assert after[name] == before[name], (name, before, after)
    # malloc and Python map and unmap arenas of their own.
    assert after["mappings"] - before["mappings"] <= 16, (before, after)
    assert after["PSS KiB"] - before["PSS KiB"] <= slack, (before, after)


def check_gone(before: dict[str, int], after: dict[str, int]) -> None:
    """After close nothing of the job is left in the process."""
    assert after["shared mappings"] == 0 and after["shared KiB"] == 0, after
    for name in ("descriptors", "threads"):
        assert after[name] == before[name], (name, before, after)


def check_ranks(body: str, label: str, slack: int = SLACK) -> None:
    """Two ranks tell four states (before init, warm, at the end, closed) and what one cost."""
    with Ranks(2, USAGE + body) as ranks:
        for rank in range(2):
            told = final(ranks[rank])
            check_flat(told["warm"], told["end"], slack)
            check_gone(told["before"], told["closed"])
            if rank == 0:
                growth = told["end"]["PSS KiB"] - told["warm"]["PSS KiB"]
                print(f"{label}: {told['cost'] * 1e6:.1f} us each, PSS {growth:+d} KiB")
            assert ranks[rank].end() == 0


# ---- groups, collectives, worlds -----------------------------------------------------------------

FRAME = """
before = usage()
groups.init("shm", 600)
def one(turn):
    {one}
in_parts({warm}, one)
warm = measured()
cost = in_parts({count}, one)
end = measured()
groups.close()
say(before=before, warm=warm, end=end, closed=usage(), cost=cost)
"""

PYTORCH_GROUP = """group = dist.new_group([0, 1])
    value = np.full(3, rank + 1.0)
    dist.all_reduce(value, group=group)
    assert value[0] == 3
    dist.destroy_process_group(group)"""

MINDSPORE_GROUP = """comm.create_group("pair", [1, 0])
    value, _ = comm_func.all_reduce(np.full(3, rank + 1.0), group="pair")
    assert value[0] == 3
    comm.destroy_group("pair")"""


@pytest.mark.thorough
@pytest.mark.parametrize("one", [PYTORCH_GROUP, MINDSPORE_GROUP], ids=["PyTorch", "MindSpore"])
def test_groups_made_and_destroyed(one: str) -> None:
    body = FRAME.format(one=one, warm=GROUPS // 10, count=GROUPS // 2)
    check_ranks(body, f"{GROUPS // 2} groups made and destroyed")


@pytest.mark.thorough
def test_collectives() -> None:
    """Both faces, in place and not, blocking and asynchronous, small and sometimes larger."""
    one = """kind = turn % 10
    value = np.full(20_000 if turn % 1000 == 999 else 4, rank + 1.0)
    if kind < 5:
        dist.all_reduce(value)
    elif kind == 5:
        dist.all_reduce(value, async_op=True).wait()
    elif kind == 6:
        value, _ = comm_func.all_reduce(value)
    elif kind == 7:
        parts = [np.empty_like(value), np.empty_like(value)]
        dist.all_gather(parts, value)
        value = parts[0] + parts[1]
    elif kind == 8:
        dist.broadcast(value, 1)
        value += 1
    else:
        message = [np.empty_like(value), value][rank]
        dist.send(message, 0) if rank else dist.recv(message, 1)
        value = message + 1
    assert value[-1] == 3"""
    check_ranks(FRAME.format(one=one, warm=CALLS // 10, count=CALLS), f"{CALLS} collectives")


@pytest.mark.thorough
def test_worlds_joined_and_left() -> None:
    """The call in each of them tells that both ranks are there before one leaves again."""
    body = f"""
def one(turn):
    if turn % 2:
        dist.init_process_group("shm")
    else:
        comm.init("shm")
    assert reduce(groups.world()) == 3
    assert reduce(dist.new_group([0, 1]), 100, False) == 3
    dist.destroy_process_group() if turn % 2 else comm.release()
one(0)
before = usage()
in_parts({CYCLES // 10}, one)
warm = usage()
cost = in_parts({CYCLES}, one)
end = usage()
say(before=before, warm=warm, end=end, closed=end, cost=cost)
"""
    check_ranks(body, f"{CYCLES} worlds joined and left")


@pytest.mark.thorough
def test_groups_kept() -> None:
    """Kept groups cost what they hold; beyond a limit there is an error that names it."""
    body = f"""
before = usage()
world = groups.init("shm", 600)
kept, limit = [], None
def one(turn):
    global limit
    if limit is None:
        made = fault(lambda: kept.append(dist.new_group([0, 1])))
        limit = made if made["kind"] else None
        if limit is None:
            assert [reduce(kept[-1]) for _ in range(4)] == [3] * 4  # so that it has all its pages
cost = in_parts({KEPT}, one)
held = measured()
in_parts(len(kept), lambda turn: reduce(kept[turn]) == 3 or 1 / 0)
again = measured()
for group in kept:
    group.close()
kept.clear()
assert reduce(world) == 3
groups.close()
say(before=before, held=held, again=again, closed=usage(), cost=cost, limit=limit)
"""
    with Ranks(2, USAGE + body) as ranks:
        for rank in range(2):
            told = final(ranks[rank])
            if told["limit"] is None:
                check_flat(told["held"], told["again"])
            else:
                assert told["limit"]["kind"] in ("OutOfSharedMemory", "Unsupported"), told["limit"]
            check_gone(told["before"], told["closed"])
            for name in ("descriptors", "threads"):
                assert told["held"][name] - told["before"][name] <= 4, told
            if rank == 0:
                each = (told["held"]["PSS KiB"] - told["before"]["PSS KiB"]) / KEPT
                cost = told["cost"] * 1e3
                limit = told["limit"] or "no limit met"
                print(f"{KEPT} groups kept: {cost:.2f} ms and {each:.1f} KiB each, {limit}")
            assert ranks[rank].end() == 0


# ---- ranks that are threads ----------------------------------------------------------------------


def test_threads() -> None:
    """One process: worlds, groups and collectives on two threads leave nothing behind."""
    body = f"""
import unisono
def job(turns):
    for turn in range(turns):
        group = dist.new_group([0, 1])
        value = np.full(3, dist.get_rank() + 1.0)
        dist.all_reduce(value, group=group)
        dist.all_reduce(value, async_op=True).wait()
        assert value[0] == 6
        dist.destroy_process_group(group)
def one(turn):
    unisono.spawn(job, 2, {10 if FULL else 5})
in_parts({CYCLES // 10}, one)
before = warm = usage()
cost = in_parts({CYCLES}, one)
end = usage()
say(before=before, warm=warm, end=end, closed=end, cost=cost)
"""
    with Ranks(1, USAGE + body) as ranks:
        told = final(ranks[0])
        check_flat(told["warm"], told["end"])
        print(f"{CYCLES} worlds of threads: {told['cost'] * 1e3:.2f} ms each")
        assert ranks[0].end() == 0
