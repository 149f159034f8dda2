"""The faults of jobs as users of each face see them: who is told what, and how soon.

One program for the PyTorch face, the MindSpore face and the registered backend of torch; only the
names of its calls differ. The core's own tests go into each fault more deeply.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.helpers.backend_cases import ForkedRanks, ForkServer
from tests.helpers.processes import DEADLINE
from tests.helpers.thorough import essential

SOON = 10.0  # seconds; the ranks themselves would wait for ten minutes
N = 3

_VARIABLES = """
import hashlib
import numpy as np
os.environ["UNISONO_SIZE"] = os.environ["WORLD_SIZE"]
os.environ["UNISONO_JOB"] = hashlib.sha256(os.environ["BACKEND_STORE"].encode()).hexdigest()
"""

#: The same functions in each dialect: enter, total, start (a handle), gather, copy and leave.
FACES = {
    "torch face": f"""{_VARIABLES}
import unisono.torch.distributed as dist
from datetime import timedelta
def enter(seconds=600.0):
    dist.init_process_group("shm", timeout=timedelta(seconds=seconds))
    say(joined=True)
def total(x, op="SUM"):
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    return x
def start(x): return dist.all_reduce(x, async_op=True)
def gather(x): return dist.all_gather_into_tensor(np.empty(3 * x.size, x.dtype), x)
def copy(x, root): dist.broadcast(x, root)
leave = dist.destroy_process_group
""",
    "comm_func": f"""{_VARIABLES}
import unisono.mindspore.communication as comm
from unisono.mindspore.communication import comm_func
def enter(seconds=600.0):
    os.environ["UNISONO_TIMEOUT"] = str(seconds)
    comm.init("shm")
    say(joined=True)
def total(x, op="SUM"): return comm_func.all_reduce(x, op.lower())[0]
def start(x): return comm_func.all_reduce(x, async_op=True)[1]
def gather(x): return comm_func.all_gather_into_tensor(x)
def copy(x, root): comm_func.broadcast(x, root)
leave = comm.release
""",
    "backend": """
import numpy as np
from tests.helpers.backend_cases import enter as enter_group
def enter(seconds=600.0): enter_group(seconds)
def total(x, op="SUM"):
    dist.all_reduce(torch.from_numpy(x), getattr(dist.ReduceOp, op))
    return x
def start(x): return dist.all_reduce(torch.from_numpy(x), async_op=True)
def gather(x):
    x = torch.from_numpy(x)
    dist.all_gather_into_tensor(torch.empty(3 * x.numel(), dtype=x.dtype), x)
def copy(x, root): dist.broadcast(torch.from_numpy(x), root)
leave = dist.destroy_process_group
""",
}

Start = Callable[[str], ForkedRanks]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    process = ForkServer()
    yield process
    process.close()


@pytest.fixture(params=essential(1, FACES))
def start(request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path: Path) -> Start:
    """`start(body)` forks three ranks that call one of the faces."""
    functions = FACES[request.param]
    return lambda body: ForkedRanks(fork_server, tmp_path, N, f"{functions}\n{body}")


def read_all(ranks: ForkedRanks, *numbers: int) -> list[dict]:
    return [ranks[rank].read() for rank in numbers or range(N)]


def wait_until_ready(ranks: ForkedRanks, *asleep: int) -> None:
    """All ranks have joined and said that they are ready; those named wait for others."""
    assert read_all(ranks) == [{"joined": True}] * N
    assert read_all(ranks) == [{"ready": True}] * N
    for rank in asleep:
        ranks[rank].wait_for_sleep()


# ---- a rank that is lost -------------------------------------------------------------------------

WAYS = {
    "killed": ("", "killed by SIGKILL"),
    "ends abruptly": ("os._exit(3)", "exited with code 3"),
    # An interpreter with torch may take longer to end than the others wait to hear how.
    "exits": ("sys.exit(4)", "exited with code 4|is exiting"),
    "raises": ("raise ValueError('the cause')", "exited with code 1|is exiting"),
}


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("way", essential(2, WAYS))
def test_lost_rank(start: Start, way: str, blocking: bool) -> None:
    action, reason = WAYS[way]
    call = "total(np.ones(3))" if blocking else "start(np.ones(3)).wait()"
    body = f"""
enter()
assert total(np.ones(3)).tolist() == [3, 3, 3]
say(ready=True)
if rank == 1:
    hear()
    {action}
say(**fault(lambda: {call}))
"""
    with start(body) as ranks:
        wait_until_ready(ranks, 0, 2)
        began = time.monotonic()
        if way == "killed":
            ranks[1].signal(signal.SIGKILL)
        else:
            ranks[1].tell()
        for error in read_all(ranks, 0, 2):
            assert error["kinds"][0] == "PeerLost", error
            assert error["ranks"] == [1], error
            assert re.search(f"rank 1 .*({reason})", error["text"]), error
        assert time.monotonic() - began < SOON


# ---- a rank that does not come -------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_rank_that_does_not_call(start: Start, blocking: bool) -> None:
    call = "total(np.ones(3))" if blocking else "start(np.ones(3)).wait()"
    body = f"""
enter(3.0)
total(np.ones(7))
if rank == 1:
    hear()
    say(done=True)
else:
    say(**fault(lambda: {call}))
"""
    with start(body) as ranks:
        assert read_all(ranks) == [{"joined": True}] * N
        for error in read_all(ranks, 0, 2):
            assert error["kinds"][0] == "CommTimeout", error
            assert error["ranks"] == [1] and "rank 1" in error["text"], error
            assert "all_reduce" in error["text"] and "x 7" in error["text"], error  # its last call
            assert 2.0 < error["seconds"] < DEADLINE
        ranks[1].tell()
        assert ranks[1].read() == {"done": True}


@pytest.mark.parametrize("seconds", [600.0, 3.0], ids=["waits it out", "deadline"])
def test_stopped_rank(start: Start, seconds: float) -> None:
    body = f"""
enter({seconds})
total(np.ones(3))
say(ready=True)
if rank == 1:
    hear()
say(**fault(lambda: total(np.ones(3))))
"""
    with start(body) as ranks:
        wait_until_ready(ranks)
        ranks[1].signal(signal.SIGSTOP)
        ranks[1].tell()
        if seconds > SOON:
            ranks[0].wait_for_sleep()
            time.sleep(1.0)
            assert not ranks[0].has_said() and not ranks[2].has_said()
            ranks[1].signal(signal.SIGCONT)
            assert all(error["kinds"] == [] for error in read_all(ranks))
        else:
            for error in read_all(ranks, 0, 2):
                assert error["kinds"][0] == "CommTimeout", error
                assert error["ranks"] == [1] and "stopped" in error["text"], error


# ---- ranks that disagree -------------------------------------------------------------------------

#: What rank 1 does, what the others do, and what the error of each must show.
MISMATCHES = {
    "count": ("total(np.ones(11))", "total(np.ones(10))", ("x 11", "x 10")),
    "count, large": ("total(np.ones(1 << 20))", "total(np.ones(10))", ("x 1048576", "x 10")),
    "dtype": ("total(np.ones(4, 'i4'))", "total(np.ones(4, 'f4'))", ("int32", "float32")),
    "operator": ("total(np.ones(4), 'MAX')", "total(np.ones(4), 'SUM')", ("max", "sum")),
    "collective": ("gather(np.ones(4))", "total(np.ones(4))", ("all_gather", "all_reduce")),
    "root": ("copy(np.ones(4), 2)", "copy(np.ones(4), 0)", ("root 2", "root 0")),
    "asynchronous": ("start(np.ones(5)).wait()", "start(np.ones(4)).wait()", ("x 5", "x 4")),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch(start: Start, name: str) -> None:
    theirs, ours, shown = MISMATCHES[name]
    body = f"""
enter()
if rank == 1:
    say(**fault(lambda: {theirs}))
else:
    say(**fault(lambda: {ours}))
assert total(np.ones(3)).tolist() == [3, 3, 3]  # the group works as before
say(done=True)
"""
    with start(body) as ranks:
        assert read_all(ranks) == [{"joined": True}] * N
        for error in read_all(ranks):
            assert error["kinds"][0] == "MismatchError", error
            assert all(text in error["text"] for text in shown), error
            assert "<string>:" in error["text"], error  # the source line of each side
            assert error["seconds"] < SOON
        assert read_all(ranks) == [{"done": True}] * N


# ---- Ctrl-C ------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
def test_interrupt(start: Start, blocking: bool) -> None:
    call = "total(np.ones(3))" if blocking else "start(np.ones(3)).wait()"
    body = f"""
enter()
say(ready=True)
if rank == 1:
    hear()
else:
    say(**fault(lambda: {call}))
"""
    with start(body) as ranks:
        wait_until_ready(ranks, 0, 2)
        began = time.monotonic()
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].read()["kinds"][0] == "KeyboardInterrupt"
        assert time.monotonic() - began < SOON
        error = ranks[2].read()
        assert error["kinds"][0] == "PeerLost" and 0 in error["ranks"], error


# ---- before and after ----------------------------------------------------------------------------


def test_use_after_the_end(start: Start) -> None:
    body = """
enter()
total(np.ones(3))
leave()
say(**fault(lambda: total(np.ones(3))))
say(alive=True)
"""
    with start(body) as ranks:
        assert read_all(ranks) == [{"joined": True}] * N
        for error in read_all(ranks):
            assert error["kinds"], error
            assert "RuntimeError" in error["kinds"] or "ValueError" in error["kinds"], error
        assert read_all(ranks) == [{"alive": True}] * N
