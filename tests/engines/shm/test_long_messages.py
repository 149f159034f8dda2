"""Messages that are longer than a ring: the receiver reads them where they are, and only right."""

from __future__ import annotations

import signal
import time

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.thorough import essential

#: So that a message of this many bytes takes the direct way on any machine.
DIRECT = {"UNISONO_SINGLE_COPY": "send/2=1,send/slow=1,send/shared=1"}
STAGED = {"UNISONO_SINGLE_COPY": "0"}

START = """
import unisono.torch.distributed as dist
from datetime import timedelta
from unisono.errors import UnisonoError
COUNT = 300_001  # of float64: more than two pieces
dist.init_process_group(timeout=timedelta(seconds=TIMEOUT))
def message(number):
    return np.arange(COUNT, dtype=np.float64) + number * 1e6
def received(source, tag=0):
    found = np.zeros(COUNT)
    dist.recv(found, source, tag=tag)
    return float(found[0]) / 1e6 if (np.diff(found) == 1).all() else "wrong"
"""

TAGS = """
if rank == 0:
    works = [dist.isend(message(tag), 1, tag=tag) for tag in range(4)]
    short = dist.isend(np.arange(3.0), 1, tag=9)
    for work in (*works, short):
        work.wait()
    say(found=received(1))
else:
    few = np.zeros(3)
    dist.recv(few, 0, tag=9)
    found = [received(0, tag) for tag in (3, 0, 2, 1)]
    dist.send(message(7), 0)
    say(found=[few.tolist(), *found])
"""


@pytest.mark.parametrize("setting", essential(1, [DIRECT, STAGED]), ids=lambda s: str(s)[24:30])
def test_tags_choose_the_message(setting: dict[str, str]) -> None:
    with Ranks(2, f"TIMEOUT = 60\n{START}{TAGS}", **setting) as ranks:
        first, second = ranks.read_all()
    assert first["found"] == 7
    assert second["found"] == [[0, 1, 2], 3, 0, 2, 1]


GIVES_UP = """
if rank == 0:
    array = message(5)
    say(ready=True)
    try:
        dist.send(array, 1)
    except (KeyboardInterrupt, UnisonoError) as error:
        kind = type(error).__name__
    array[:] = -1  # the caller has its memory back
    say(kind=kind)
    hear()
else:
    hear()
    say(**fault(lambda: say(found=received(0))))
"""


@pytest.mark.parametrize("setting", essential(1, [DIRECT, STAGED]), ids=lambda s: str(s)[24:30])
def test_an_interrupted_send_goes_on_from_a_copy(setting: dict[str, str]) -> None:
    with Ranks(2, f"TIMEOUT = 60\n{START}{GIVES_UP}", **setting) as ranks:
        assert ranks[0].read() == {"ready": True}
        ranks[0].wait_for_sleep()  # now it sends
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].read() == {"kind": "KeyboardInterrupt"}
        ranks[1].tell()
        assert ranks[1].read() == {"found": 5}
        ranks[0].tell()


@pytest.mark.parametrize("setting", essential(1, [DIRECT, STAGED]), ids=lambda s: str(s)[24:30])
def test_a_send_that_has_timed_out_is_no_wrong_message(setting: dict[str, str]) -> None:
    with Ranks(2, f"TIMEOUT = 1\n{START}{GIVES_UP}", **setting) as ranks:
        assert ranks[0].read() == {"ready": True}
        assert ranks[0].read() == {"kind": "CommTimeout"}
        time.sleep(1)  # mostly, the background thread has given it up as well
        ranks[1].tell()
        said = ranks[1].read()
        assert said == {"found": 5} or said["kind"] == "CommTimeout"
        ranks[0].tell()


LEAVES = """
if rank == 0:
    array = message(5)
    work = dist.isend(array, 1)
    say(sent=True)
    hear()
    dist.destroy_process_group()
    array[:] = -1
    say(**fault(work.wait))
    hear()
else:
    hear()
    say(**fault(lambda: received(0)))
"""


def test_a_sender_that_leaves_is_no_wrong_message() -> None:
    with Ranks(2, f"TIMEOUT = 5\n{START}{LEAVES}", **DIRECT) as ranks:
        assert ranks[0].read() == {"sent": True}
        ranks[0].tell()
        assert ranks[0].read()["kind"]
        ranks[1].tell()
        assert ranks[1].read()["kind"] == "PeerLost"
        ranks[0].tell()


LOOP = """
if rank == 0:
    array = message(5)
    say(**fault(lambda: [dist.send(array, 1) for _ in range(1_000_000)]))
else:
    say(ready=True)
    found = [5]
    def receive():
        while found[-1] == 5:
            found.append(received(0))
    say(**fault(receive), wrong=found[-1] != 5)
"""


@pytest.mark.parametrize("victim", essential(1, [0, 1]))
def test_a_rank_that_dies_while_messages_move(victim: int) -> None:
    with Ranks(2, f"TIMEOUT = 60\n{START}{LOOP}", **DIRECT) as ranks:
        ranks[1].read()
        ranks[victim].signal(signal.SIGKILL)
        said = ranks[1 - victim].read()
    assert said["kind"] == "PeerLost"
    assert not said.get("wrong")
