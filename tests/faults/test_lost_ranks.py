"""Ranks that die, leave, stop, never come or are interrupted: the others are told, by name."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.processes import DEADLINE, wait_until
from tests.helpers.thorough import essential, essential_rows

SOON = 10.0  # seconds; the ranks themselves would wait for ten minutes

JOIN = """
world = groups.init("shm", 600)
reduce(world)
say(joined=True)
"""


def check_lost(ranks: Ranks, survivors: list[int], lost: int) -> list[dict[str, Any]]:
    """Every survivor is soon told who is lost, goes on, and ends with code 0."""
    began = time.monotonic()
    errors = [ranks[rank].read() for rank in survivors]
    assert time.monotonic() - began < SOON
    for error in errors:
        assert error["kind"] == "PeerLost", error
        assert error["ranks"] == [lost], error
        assert f"rank {lost}" in error["text"], error
    for rank in survivors:
        assert ranks[rank].read() == {"alive": 45}
        assert ranks[rank].end() == 0
    return errors


# ---- a rank that ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("count", [1, 1 << 20], ids=["8 B", "8 MiB"])
def test_rank_killed_in_a_loop(count: int, blocking: bool) -> None:
    body = f"""{JOIN}
def loop():
    while True:
        assert reduce(world, {count}, {blocking}) == 6
say(**fault(loop))
say(alive=sum(range(10)))
"""
    with Ranks(3, body) as ranks:
        ranks.read_all()
        time.sleep(0.3)
        ranks[1].signal(signal.SIGKILL)
        check_lost(ranks, [0, 2], lost=1)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_rank_killed_while_others_sleep(blocking: bool) -> None:
    body = f"""{JOIN}
if rank == 1:
    hear()
say(**fault(lambda: reduce(world, blocking={blocking})))
say(alive=sum(range(10)))
"""
    with Ranks(3, body) as ranks:
        ranks.read_all()
        ranks.wait_for_sleep(0, 2)
        ranks[1].signal(signal.SIGKILL)
        for error in check_lost(ranks, [0, 2], lost=1):
            assert f"pid {ranks[1].pid}" in error["text"]
            assert "all_reduce" in error["text"]  # what it did last


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_rank_killed_after_it_has_arrived(blocking: bool) -> None:
    """Those who wait are told before the last rank comes, which is told when it does."""
    body = f"""{JOIN}
if rank == 1:
    hear()
say(**fault(lambda: reduce(world, blocking={blocking})))
say(alive=sum(range(10)))
say(sum=reduce(world.shrink()))
"""
    with Ranks(4, body) as ranks:
        ranks.read_all()
        ranks.wait_for_sleep(0, 2, 3)
        ranks[2].signal(signal.SIGKILL)
        for rank in (0, 3):
            assert ranks[rank].read()["ranks"] == [2]
        ranks[1].tell()
        late = ranks[1].read()
        assert (late["kind"], late["ranks"]) == ("PeerLost", [2])
        for rank in (0, 1, 3):
            assert ranks[rank].read() == {"alive": 45}
            assert ranks[rank].read() == {"sum": 6}
            assert ranks[rank].end() == 0


def test_two_ranks_killed_at_once() -> None:
    body = f"""{JOIN}
if rank in (1, 2):
    hear()
error = fault(lambda: reduce(world))
say(**error)
# Later calls say the same without waiting.
say(**fault(lambda: reduce(world)))
"""
    with Ranks(4, body) as ranks:
        ranks.read_all()
        for rank in (1, 2):
            ranks[rank].signal(signal.SIGKILL)
        for rank in (0, 3):
            for _ in range(2):
                error = ranks[rank].read()
                assert error["kind"] == "PeerLost"
                assert set(error["ranks"]) <= {1, 2} and error["ranks"]
            assert error["seconds"] < SOON
            assert ranks[rank].end() == 0


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize(
    ("way", "code"),
    essential_rows(
        1, [("raise ValueError('the cause')", 1), ("os._exit(3)", 3), ("sys.exit()", 0)]
    ),
)
def test_rank_that_ends_by_itself(way: str, code: int, blocking: bool) -> None:
    body = f"""{JOIN}
if rank == 2:
    hear()
    {way}
say(**fault(lambda: reduce(world, blocking={blocking})))
say(alive=sum(range(10)))
"""
    with Ranks(3, body) as ranks:
        ranks.read_all()
        ranks.wait_for_sleep(0, 1)
        ranks[2].tell()
        check_lost(ranks, [0, 1], lost=2)
        assert ranks[2].end() == code


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "exits"])
def test_rank_that_ends_while_another_receives(killed: bool) -> None:
    body = f"""{JOIN}
if rank == 1:
    hear()
    sys.exit()
say(**fault(lambda: recv(world, 1)))
say(alive=sum(range(10)))
"""
    with Ranks(2, body) as ranks:
        ranks.read_all()
        ranks[0].wait_for_sleep()
        if killed:
            ranks[1].signal(signal.SIGKILL)
        else:
            ranks[1].tell()
        check_lost(ranks, [0], lost=1)


# ---- a rank that does not come -------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_rank_that_never_calls(blocking: bool) -> None:
    body = f"""
world = groups.init("shm", 600)
reduce(world, 77)
if rank == 2:
    hear()
    sys.exit()
say(**fault(lambda: reduce(world, blocking={blocking}, timeout=1.0)))
"""
    waited = []
    with Ranks(3, body) as ranks:
        for rank in (0, 1):
            error = ranks[rank].read()
            assert error["kind"] == "CommTimeout"
            assert error["ranks"] == [2]
            assert "rank 2" in error["text"] and f"pid {ranks[2].pid}" in error["text"]
            assert "all_reduce float64 x 77 sum (call 1)" in error["text"]
            assert error["seconds"] < SOON
            waited.append(error["seconds"])
        assert max(waited) >= 1.0  # the deadline of the first is that of all
        ranks[2].tell()
        for rank in range(3):
            assert ranks[rank].end() == 0


TWO_TIMEOUTS = """
group = groups.init("shm", 600)
reduce(group)
say(joined=True)
if rank == 2:
    hear()
say(**fault(lambda: reduce(group, 10, timeout=0.5 if rank == 1 else 300)))
"""


def test_one_deadline_is_that_of_all() -> None:
    """A call that one rank has given up fails on all, whether they wait or come later."""
    with Ranks(3, TWO_TIMEOUTS) as ranks:
        ranks.read_all()
        long, short = (ranks[rank].read() for rank in range(2))
        ranks[2].tell()
        late = ranks[2].read()
        assert short["kind"] == "CommTimeout" and short["ranks"] == [2], short
        assert long["kind"] == "CommTimeout" and long["ranks"] == [2], long
        assert "the deadline of rank 1" in long["text"], long
        assert late["kind"] == "PeerLost" and "waiting for this rank" in late["text"], late


@pytest.mark.parametrize("count", essential(1, [1, 1 << 20]), ids=["8 B", "8 MiB"])
def test_stopped_rank_is_waited_for(count: int) -> None:
    body = f"""
world = groups.init("shm", {DEADLINE})
reduce(world)
say(joined=True)
hear()
say(sum=reduce(world, {count}))
say(sum=reduce(world, {count}, False))
"""
    with Ranks(3, body) as ranks:
        ranks.read_all()
        ranks[1].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(ranks[1].pid) == "T")
        for rank in range(3):
            ranks[rank].tell()
        time.sleep(2.0)
        assert state_of(ranks[1].pid) == "T"
        ranks[1].signal(signal.SIGCONT)
        for rank in range(3):
            assert [ranks[rank].read() for _ in range(2)] == [{"sum": 6.0}, {"sum": 6.0}]
            assert ranks[rank].end() == 0


# ---- Unix signals --------------------------------------------------------------------------------


def test_rank_with_a_timer_loses_nobody() -> None:
    """A signal ends system calls early, also those that ask whether the others are alive."""
    body = f"""{JOIN}
if rank == 0:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
    say(sum=reduce(world))
    signal.setitimer(signal.ITIMER_REAL, 0)
else:
    hear()
    say(sum=reduce(world))
"""
    with Ranks(2, body) as ranks:
        ranks.read_all()
        time.sleep(1.0)
        ranks[1].tell()
        assert ranks.read_all() == [{"sum": 3.0}] * 2
        assert [ranks[rank].end() for rank in range(2)] == [0, 0]


# ---- Ctrl-C --------------------------------------------------------------------------------------

WAITS = {
    "a blocking collective": "reduce(world)",
    "a blocking collective behind an asynchronous one": (
        "(start_reduce(world, np.ones(1)), reduce(world))"
    ),
    "a receive": "recv(world, 2)",
    "the wait for a work": "start_reduce(world, np.ones(1)).wait()",
}


@pytest.mark.parametrize("wait", essential(2, WAITS))
def test_interrupt(wait: str) -> None:
    """Rank 0 is interrupted while it waits; then ranks 1 and 2 call until they are told."""
    body = f"""{JOIN}
def loop():
    while True:
        reduce(world)
if rank == 0:
    say(**fault(lambda: {WAITS[wait]}))
    hear()
    sys.exit()
hear()
say(**fault(loop))
say(alive=sum(range(10)))
"""
    with Ranks(3, body) as ranks:
        ranks.read_all()
        ranks[0].wait_for_sleep()
        interrupted = time.monotonic()
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].read()["kind"] == "KeyboardInterrupt"
        assert time.monotonic() - interrupted < SOON
        if "collective" not in wait:
            ranks[0].tell()  # these have given nothing up until the rank leaves
        for rank in (1, 2):
            ranks[rank].tell()
        for error in check_lost(ranks, [1, 2], lost=0):
            assert "interrupted" in error["text"] or wait != "a blocking collective"
        if "collective" in wait:
            ranks[0].tell()
        assert ranks[0].end() == 0


def test_interrupt_while_another_rank_receives() -> None:
    body = f"""{JOIN}
if rank == 0:
    recv(world, 1)
say(**fault(lambda: recv(world, 0)))
say(alive=sum(range(10)))
"""
    with Ranks(2, body) as ranks:
        ranks.read_all()
        ranks[0].wait_for_sleep()
        ranks[0].signal(signal.SIGINT)
        check_lost(ranks, [1], lost=0)
        assert ranks[0].end() == -signal.SIGINT


@pytest.mark.parametrize("call", ["dist.barrier()", "reduce(world)"])
def test_interrupt_while_the_error_is_made(call: str) -> None:
    """Ctrl-C in the middle of the error that tells of a lost rank does not end the process."""
    body = f"""{JOIN}
import signal
import unisono.torch.distributed as dist
from unisono import errors
class Interrupted(errors.PeerLost):
    def __init__(self, *arguments):
        signal.raise_signal(signal.SIGINT)
        super().__init__(*arguments)
errors.PeerLost = Interrupted
if rank == 0:
    sys.exit()
say(**fault(lambda: {call}))
"""
    with Ranks(2, body) as ranks:
        ranks.read_all()
        assert ranks[1].read()["kind"] == "KeyboardInterrupt"
        assert ranks[1].end() == 0
