"""Survivors of a lost rank agree on a smaller group and go on with it."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.processes import wait_until
from tests.helpers.thorough import essential

JOIN = """
import unisono.torch.distributed as dist
from unisono.core import buffers, dispatch
world = group = groups.init("shm", {timeout})
reduce(world)
def exchange(group):
    # A message around the ring: each rank gets the world rank of its neighbour.
    ours, theirs = np.array([group.ranks[group.rank]]), np.zeros(1, int)
    work = dispatch.recv(group, buffers.view(theirs),
                          (group.rank - 1) % group.size, 0, blocking=False)
    dispatch.send(group, buffers.view(ours), (group.rank + 1) % group.size, 0)
    work.wait()
    assert theirs[0] == group.ranks[(group.rank - 1) % group.size]
def check(group):
    x = np.array([float(1 << group.ranks[group.rank])])
    start_reduce(group, x, True)
    assert x[0] == sum(1 << other for other in group.ranks), (x, group)
    exchange(group)
    return list(group.ranks)
def settle(group):
    # A rank that dies during this may be counted in; then the new group fails, and is shrunk again.
    while True:
        group = group.shrink()
        try:
            return check(group)
        except UnisonoError as error:
            assert type(error).__name__ == "PeerLost", error
"""

#: A training loop that survives: the sum of the gradients of all ranks that are left.
TRAIN = """
say(joined=True)
steps, shrinks, in_step = 0, 0, True
while True:
    try:
        if not in_step:
            # All start the next step together, in whichever step they were told.
            step = np.array([steps])
            dispatch.all_reduce(group, buffers.view(step), buffers.view(step),
                           ReduceOp.MAX)
            steps, in_step = int(step[0]), True
        gradient = np.full(1 + steps % 3000, float(1 << group.ranks[group.rank]))
        start_reduce(group, gradient, steps % 2 == 0).wait()
        expected = float(sum(1 << other for other in group.ranks))
        assert (gradient == expected).all(), (gradient, group)
        steps += 1
        if group.size == {left}:
            break
    except UnisonoError as error:
        assert type(error).__name__ in ("PeerLost", "NotReady"), error
        old = group
        group = group.shrink()
        shrinks, in_step = shrinks + 1, False
        assert set(group.ranks) <= set(old.ranks)
say(ranks=check(group), shrinks=shrinks)
"""


def body(text: str, timeout: float = 60.0, **more: Any) -> str:
    head = "from unisono.core.dtypes import ReduceOp\nfrom unisono.errors import UnisonoError\n"
    text = JOIN + text
    for name, value in {"timeout": timeout, **more}.items():
        text = text.replace("{" + name + "}", str(value))
    return head + text


# ---- training that goes on -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", essential(2, range(8)))
def test_training_survives_three_deaths(seed: int) -> None:
    """Three of eight ranks are killed at random moments, some together or during a shrink."""
    chance = random.Random(seed)
    victims = chance.sample(range(8), 3)
    if seed % 4 == 0:
        victims[0] = 0  # who would prepare the new group
        victims[1:] = chance.sample(range(1, 8), 2)
    survivors = sorted(set(range(8)) - set(victims))
    with Ranks(8, body(TRAIN, left=5)) as ranks:
        ranks.read_all()
        for victim in victims:
            time.sleep(chance.choice([0.0, 0.002, 0.02, 0.1]))
            ranks[victim].signal(signal.SIGKILL)
        for rank in survivors:
            told = ranks[rank].read()
            assert told["ranks"] == survivors, told
            assert told["shrinks"] >= 1
        for rank in survivors:
            assert ranks[rank].end() == 0


def test_two_die_together() -> None:
    text = """
say(joined=True)
if rank in (0, 3):
    hear()
error = fault(lambda: reduce(world))
assert error["kind"] == "PeerLost", error
say(ranks=settle(world))
"""
    with Ranks(5, body(text)) as ranks:
        ranks.read_all()
        ranks.wait_for_sleep(1, 2, 4)
        for victim in (0, 3):
            ranks[victim].signal(signal.SIGKILL)
        for rank in (1, 2, 4):
            assert ranks[rank].read() == {"ranks": [1, 2, 4]}
            assert ranks[rank].end() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 1, 3], ids=["the preparer", "the next", "the last"])
def test_one_dies_in_shrink(victim: int) -> None:
    """Rank 2 comes late, so that the others wait in shrink when the victim is killed there."""
    text = """
say(joined=True)
if rank == 2:
    hear()
say(ranks=settle(world))
"""
    with Ranks(4, body(text)) as ranks:
        ranks.read_all()
        ranks.wait_for_sleep(0, 1, 3)
        ranks[victim].signal(signal.SIGKILL)
        wait_until(lambda: state_of(ranks[victim].pid) == "Z")
        ranks[2].tell()
        left = [rank for rank in range(4) if rank != victim]
        for rank in left:
            assert ranks[rank].read() == {"ranks": left}
            assert ranks[rank].end() == 0


def test_preparer_that_is_stopped_and_then_killed() -> None:
    """The others have marked themselves and wait for rank 0's answer, which never comes."""
    text = """
say(joined=True)
hear()
say(ranks=settle(world))
"""
    with Ranks(3, body(text)) as ranks:
        ranks.read_all()
        # Rank 0 has to mark itself, so it is let in first, and held while rank 2 is missing.
        for rank in (0, 1):
            ranks[rank].tell()
            ranks[rank].wait_for_sleep()
        ranks[0].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(ranks[0].pid) == "T")
        ranks[2].tell()
        ranks[2].wait_for_sleep()
        assert not ranks[1].has_said() and not ranks[2].has_said()
        ranks[0].signal(signal.SIGKILL)
        for rank in (1, 2):
            assert ranks[rank].read() == {"ranks": [1, 2]}
            assert ranks[rank].end() == 0


@pytest.mark.thorough
def test_stopped_rank_is_named_and_waited_for() -> None:
    text = """
say(joined=True)
hear()
say(**fault(lambda: world.shrink()))
hear()
say(ranks=settle(world))
"""
    with Ranks(3, body(text, timeout=5.0)) as ranks:
        ranks.read_all()
        ranks[1].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(ranks[1].pid) == "T")
        for rank in (0, 2):
            ranks[rank].tell()
        for rank in (0, 2):
            error = ranks[rank].read()
            assert (error["kind"], error["ranks"]) == ("CommTimeout", [1])
            assert f"rank 1 (pid {ranks[1].pid}) is alive but stopped" in error["text"]
        # Killed, it is out of the way, and the others may try again.
        ranks[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            ranks[rank].tell()
        for rank in (0, 2):
            assert ranks[rank].read() == {"ranks": [0, 2]}
            assert ranks[rank].end() == 0


# ---- which group, and what was under way ---------------------------------------------------------


def test_shrink_twice_and_a_subgroup() -> None:
    text = """
part = world.split([1, 2, 3, 4])
say(joined=True)
hear()
if rank == 0:
    hear()
    sys.exit()
assert fault(lambda: reduce(part))["kind"] == "PeerLost"
smaller = part.shrink()
say(ranks=check(smaller), name=smaller.name, old=fault(lambda: reduce(part))["kind"])
assert groups.find(smaller.name) is smaller
hear()
assert fault(lambda: reduce(smaller))["kind"] == "PeerLost"
say(ranks=settle(smaller))
"""
    with Ranks(5, body(text)) as ranks:
        ranks.read_all()
        ranks[2].signal(signal.SIGKILL)
        for rank in (0, 1, 3, 4):
            ranks[rank].tell()
        told = [ranks[rank].read() for rank in (1, 3, 4)]
        assert [one["ranks"] for one in told] == [[1, 3, 4]] * 3
        assert len({one["name"] for one in told}) == 1
        assert [one["old"] for one in told] == ["NotReady"] * 3
        ranks[3].signal(signal.SIGKILL)
        for rank in (1, 4):
            ranks[rank].tell()
        for rank in (1, 4):
            assert ranks[rank].read() == {"ranks": [1, 4]}
        ranks[0].tell()
        for rank in (0, 1, 4):
            assert ranks[rank].end() == 0


def test_work_under_way_ends() -> None:
    """Calls that are queued or running, and messages, end with an error and do not block."""
    text = """
say(joined=True)
hear()
arrays = [np.ones(1000) for _ in range(5)]
works = [start_reduce(world, array) for array in arrays]
box = np.zeros(4)
works.append(dispatch.recv(world, buffers.view(box), (rank + 1) % 3, 9, blocking=False))
smaller = world.shrink([1])
kinds = [fault(work.wait)["kind"] for work in works]
say(ranks=check(smaller), kinds=sorted(set(kinds)))
"""
    with Ranks(3, body(text)) as ranks:
        ranks.read_all()
        for rank in (0, 2):
            ranks[rank].tell()
        for rank in (0, 2):
            told = ranks[rank].read()
            assert told["ranks"] == [0, 2]
            assert set(told["kinds"]) <= {"NotReady", "PeerLost"} and told["kinds"]
            assert ranks[rank].end() == 0


def test_torch_face_replaces_the_world() -> None:
    text = """
extra = dist.new_group([0, 1])
say(joined=True)
if rank == 1:
    hear()
assert fault(lambda: reduce(world))["kind"] == "PeerLost"
made = dist.shrink_group([])
assert made is dist.group.WORLD
x = np.full(3, dist.get_rank() + 1.0)
dist.all_reduce(x)
y = np.zeros(1) + rank
dist.broadcast(y, src=1)
say(rank=dist.get_rank(), size=dist.get_world_size(), sum=x[0], second=y[0],
    old=fault(lambda: dist.barrier(extra))["kind"] if rank == 0 else "NotReady")
dist.destroy_process_group()
"""
    with Ranks(3, body(text)) as ranks:
        ranks.read_all()
        ranks[1].signal(signal.SIGKILL)
        for new_rank, rank in enumerate((0, 2)):
            told = ranks[rank].read()
            assert told == {
                "rank": new_rank,
                "size": 2,
                "sum": 3.0,
                "second": 2.0,
                "old": "NotReady",
            }
            assert ranks[rank].end() == 0


def test_memory_of_the_lost_is_given_back() -> None:
    """Shrinking many times does not use up memory: old groups and rings lose their pages."""
    text = """
import glob
def pages():
    fd = next(f for f in os.listdir("/proc/self/fd")
              if "memfd:unisono" in os.path.realpath(f"/proc/self/fd/{f}"))
    return os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
reduce(world, 1 << 18)
exchange(world)
say(bytes=pages())
for victim in (5, 4, 3, 2):
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    assert fault(lambda: reduce(group))["kind"] == "PeerLost"
    group = group.shrink()
    reduce(group, 1 << 18)
    exchange(group)
    start_reduce(group, np.ones(1), True)
    say(bytes=pages())
"""
    with Ranks(6, body(text)) as ranks:
        sizes = {rank: [ranks[rank].read()["bytes"]] for rank in range(6)}
        for rank in (0, 1):
            for _ in range(4):
                sizes[rank].append(ranks[rank].read()["bytes"])
            assert ranks[rank].end() == 0
        # One group at a time: each is smaller than the one before, give or take one under way.
        assert sizes[0][-1] < sizes[0][0]
