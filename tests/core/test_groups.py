"""Groups in the core: names of the world, and which members are on this host."""

from __future__ import annotations

import subprocess
import sys
import time

import unisono
from unisono.core import groups
from unisono.errors import CommTimeout

NAMES = """
from unisono.core import groups
from unisono.errors import ArgumentError

world = groups.init()
assert groups.find("world") is world
try:
    groups.find("hccl_world_group")
except ArgumentError:
    pass
else:
    raise SystemExit("the core knows a name of MindSpore")
import unisono.mindspore.communication
assert groups.find("hccl_world_group") is groups.resolve("mccl_world_group") is world
"""


def test_a_face_adds_its_names_of_the_world() -> None:
    """In a process of its own, because another test may have imported that face."""
    done = subprocess.run(
        [sys.executable, "-c", NAMES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


BESIDE_THREADS = """
import threading
import numpy as np
import unisono
from unisono.core import groups
from unisono.torch import distributed as dist

begun, go_on = threading.Barrier(3), threading.Event()

def rank():
    begun.wait(30)
    assert go_on.wait(30)
    x = np.ones(2)
    dist.all_reduce(x)
    return dist.get_rank(), dist.get_world_size(), x.tolist()

def spawn():
    answers.extend(unisono.spawn(rank, 2))

answers = []
thread = threading.Thread(target=spawn)
thread.start()
begun.wait(30)
world = groups.init("shm")
go_on.set()
thread.join(30)
assert answers == [(0, 2, [2.0, 2.0]), (1, 2, [2.0, 2.0])], answers
assert world.calls == 0
dist.all_reduce(np.ones(2))
assert world.engine.fast_calls() == 1, "native code does not know that the threads have ended"
"""


def test_a_world_of_the_process_beside_worlds_of_threads() -> None:
    """Threads that have a world of their own keep it when the process gets one."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_THREADS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def local_ranks() -> list[list[int]]:
    world = groups.world()
    assert world.engine is not None
    everyone = world.local_ranks()
    # Two names of one host, and one name of two hosts: the identity decides.
    world.engine.hosts = ["one a", "two a", "one b"]
    return [everyone, world.local_ranks(), world.split([2, 1, 0]).local_ranks()]


def test_local_ranks_of_a_group() -> None:
    on_one, on_two = [[0, 1, 2], [0, 2], [2, 0]], [[0, 1, 2], [1], [1]]
    assert unisono.spawn(local_ranks, 3) == [on_one, on_two, on_one]


def test_an_error_in_making_a_group_names_its_ranks() -> None:
    assert unisono.spawn(other_members, 2, engine="shm", timeout=2) == [
        "",
        "in making a group of ranks [0, 1]; all of them must ask for it",
    ]


def other_members() -> str:
    rank = groups.world().rank
    try:
        groups.world().split([0] if rank == 0 else [0, 1])
    except CommTimeout as error:
        return str(error.__notes__[-1])
    time.sleep(4)  # rank 1 waits until its deadline
    return ""
