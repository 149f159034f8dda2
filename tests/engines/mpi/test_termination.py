"""Engine `mpi` when something goes wrong: ranks that disagree, come late, leave, die; Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import hosts
from tests.helpers.mpi_cases import SOON, call, error_of, heard, job, on_ranks, run
from tests.helpers.processes import is_running, wait_until
from tests.helpers.thorough import essential
from unisono.core import registry
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.errors import CommTimeout, MismatchError, NotReady, PeerLost, UnisonoError

_reason = registry.load("mpi").unavailable()
if _reason is not None:
    pytest.skip(_reason, allow_module_level=True)


def short_share(group: Group) -> UnisonoError | None:
    share = np.zeros(3 if group.rank == 2 else 2, np.int16)
    whole = np.zeros(6, np.int16) if group.rank == 0 else None
    error = error_of(lambda: call(group, "gather", share, whole, 0, None))
    call(group, "barrier")
    return error


def test_shares_that_do_not_fit() -> None:
    for error in on_ranks(3, short_share):
        assert type(error) is MismatchError
        assert error.ranks == (2,) and "gather" in str(error)


def short_message(group: Group) -> UnisonoError | None:
    if group.rank == 0:
        call(group, "send", np.zeros(5), 1, 0)
        call(group, "send", np.ones(5), 1, 0)
        return None
    error = error_of(lambda: call(group, "recv", np.zeros(7), None, 0))
    found = np.zeros(5)
    call(group, "recv", found, 0, 0)
    assert found.all()
    return error


def test_a_message_that_does_not_fit() -> None:
    error = on_ranks(2, short_message)[1]
    assert type(error) is MismatchError
    assert error.ranks == (0,)
    assert "float64 x 5" in str(error) and "float64 x 7" in str(error)


def nobody_comes(group: Group, verb: str, seconds: float) -> list[UnisonoError | None]:
    if group.rank == 1:
        return []
    zeros = np.zeros(3)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: call(
            group, "all_reduce", zeros, zeros, ReduceOp.SUM, timeout=seconds
        ),
        "barrier": lambda: call(group, "barrier", timeout=seconds),
        "recv": lambda: call(group, "recv", zeros, 1, 0, timeout=seconds),
        "split": lambda: group.split([0, 1]),
    }
    return [error_of(calls[verb]), error_of(calls["barrier"])]


@pytest.mark.parametrize("verb", essential(1, ["all_reduce", "barrier", "recv", "split"]))
def test_deadline(verb: str) -> None:
    began = time.monotonic()
    # A split has the timeout of its group, with which the ranks join too.
    seconds, joining = (3.0, 3.0) if verb == "split" else (1.0, 30.0)
    error, after = on_ranks(2, nobody_comes, verb, seconds, timeout=joining)[0]
    assert time.monotonic() - began < SOON
    assert type(error) is CommTimeout
    assert "mpi" in str(error) and verb in str(error) and f"{seconds:g} s" in str(error)
    assert error.ranks == (1,)
    # After a message the group works on; after a collective no rank knows which call others are in.
    assert type(after) is (CommTimeout if verb == "recv" else NotReady)


def test_memory_of_a_call_that_was_given_up_is_there_until_the_end() -> None:
    """MPI may go on with the call when it is finalised, after Python has let go of everything."""
    body = """
world = groups.init("mpi", 30)
def late():
    memory = buffers.view(np.zeros(200 << 20, np.int8))
    dispatch.all_reduce(world, memory, memory, ReduceOp.MAX, timeout=0.1)
say(**fault(late))
groups.close()
del world
"""
    code, said = run(2, body)
    assert code == 0
    assert "CommTimeout" in [line["kind"] for line in said]


def leave_early(group: Group) -> UnisonoError | None:
    child = group.split([0, 1, 2])
    call(child, "barrier")
    error = None
    if group.rank == 2:
        child.close()
    else:
        error = error_of(lambda: call(child, "all_gather", np.zeros(1), np.zeros(3), None))
    call(group, "barrier")
    child.close()
    return error


def test_a_rank_that_leaves_is_named() -> None:
    *waited, _ = on_ranks(3, leave_early)
    for error in waited:
        assert type(error) is PeerLost
        assert error.ranks == (2,) and "rank 2" in str(error)


def test_a_rank_that_dies() -> None:
    body = """
world = groups.init("mpi", 600)
reduce(world)
with open("/proc/self/maps") as stream:
    files = {word for line in stream for word in line.split() if word.startswith("/dev/shm/")}
say(pid=os.getpid(), files=sorted(files))
if world.rank == 1:
    time.sleep(0.5)
    os._exit(7)
reduce(world)
"""
    began = time.monotonic()
    code, said = run(3, body)
    assert code != 0
    assert time.monotonic() - began < SOON
    wait_until(lambda: not any(is_running(line["pid"]) for line in said))
    if hosts.why_not() is None:  # the job had a /dev/shm of its own
        assert not [file for line in said for file in line["files"] if Path(file).exists()]


@pytest.mark.thorough
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_ctrl_c(blocking: bool) -> None:
    body = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
world = groups.init("mpi", 600)
reduce(world)
say(rank=world.rank, pid=os.getpid())
if world.rank == 0:
    say(**fault(lambda: reduce(world, {blocking})))
    groups.close()
else:
    time.sleep(3)
    say(**fault(lambda: reduce(world)))
say(end=1)
"""
    with job(2, body) as process:
        pids = {}
        while len(pids) < 2:
            for line in heard(process.stdout.readline()):
                pids[line["rank"]] = line["pid"]
        time.sleep(0.5)
        os.kill(pids[0], signal.SIGINT)
        began = time.monotonic()
        first = json.loads(process.stdout.readline())
        waited = time.monotonic() - began
        rest, _ = process.communicate(timeout=SOON)
    assert first["kind"] == "KeyboardInterrupt"
    assert waited < SOON
    kinds = [line["kind"] for line in heard(rest) if "kind" in line]
    assert kinds == ["PeerLost"]
    assert process.returncode == 0
