"""Signal handlers of the program that run while a call waits, and make calls themselves."""

from __future__ import annotations

import signal

import pytest

from tests.helpers.jobs import Ranks

#: Rank 0 waits in a call; its handler does something and says what came of it.
WAITING = """
world = groups.init("shm", 600)
other = world.split([0, 1])
if rank == 0:
    def handle(*_):
        {handler}
    signal.signal(signal.SIGUSR1, handle)
    say(ready=True)
    say(outer=fault(lambda: {call}))
else:
    hear()
    say(outer=fault(lambda: {peer}))
"""

MEETS = "say(inner=fault(lambda: {}))"
CLOSES = "groups.close(); say(inner=fault(lambda: reduce(world)))"


@pytest.mark.parametrize(
    "inner",
    [
        "reduce(world)",
        "start_reduce(world, np.ones(2)).wait()",
        "world.shrink()",
    ],
    ids=["a call", "a call that is waited for", "shrink"],
)
def test_handler_that_waits_for_the_group(inner: str) -> None:
    """It is told at once, because the call that it interrupts cannot go on before it returns."""
    peer = "reduce(world)"
    if "start" in inner:  # it has been queued, and is made when the call has ended
        peer = "(reduce(world), start_reduce(world, np.ones(2)).wait())"
    body = WAITING.format(handler=MEETS.format(inner), call="reduce(world)", peer=peer)
    with Ranks(2, body) as job:
        assert job[0].read() == {"ready": True}
        job.wait_for_sleep(0)
        job[0].signal(signal.SIGUSR1)
        error = job[0].read()["inner"]
        assert error["kind"] == "NotReady"
        assert "this thread is waiting in another call of the group" in error["text"]
        job[1].tell()
        assert [told["outer"]["kind"] for told in job.read_all()] == [None, None]


def test_handler_that_calls_another_group() -> None:
    body = WAITING.format(
        handler="say(inner=reduce(other))",
        call="reduce(world)",
        peer="(reduce(other), reduce(world))",
    )
    with Ranks(2, body) as job:
        assert job[0].read() == {"ready": True}
        job.wait_for_sleep(0)
        job[0].signal(signal.SIGUSR1)
        job[1].tell()
        assert job[0].read() == {"inner": 3.0}
        assert [told["outer"]["kind"] for told in job.read_all()] == [None, None]


@pytest.mark.parametrize(
    "call",
    [
        "reduce(world)",
        "start_reduce(world, np.ones(2)).wait()",
        "(start_reduce(other, np.ones(2)), start_reduce(world, np.ones(2)))[1].wait()",
        "recv(world, 1)",
    ],
    ids=["a call", "a call under way", "with another one under way", "a message"],
)
def test_handler_that_closes_the_world(call: str) -> None:
    """As handlers of SIGTERM do: the call ends with an error, and the peer learns of it."""
    body = WAITING.format(handler=CLOSES, call=call, peer="reduce(world)")
    with Ranks(2, body) as job:
        assert job[0].read() == {"ready": True}
        job.wait_for_sleep(0)
        job[0].signal(signal.SIGUSR1)
        assert job[0].read()["inner"]["kind"] == "NotReady"
        error = job[0].read()["outer"]
        assert error["kind"] == "NotReady"
        assert "closed" in error["text"]
        assert job[0].end() == 0
        job[1].tell()
        assert job[1].read()["outer"]["kind"] == "PeerLost"
        assert job[1].end() == 0
