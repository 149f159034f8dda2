"""`unisono.spawn` with threads and with real processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import unisono
from tests.helpers.processes import (
    DEADLINE,
    is_running,
    pids_of,
    wait_until,
)
from unisono.core import dispatch, groups
from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    LaunchError,
    MismatchError,
    PeerLost,
    RankFailed,
)

CORES = len(os.sched_getaffinity(0))


# ---- spawn on threads ----------------------------------------------------------------------------


def test_spawn_returns_results_in_rank_order() -> None:
    def rank_plus(base: int) -> int:
        time.sleep(0.05 * (3 - groups.world().rank))
        return base + groups.world().rank

    assert unisono.spawn(rank_plus, 4, 10) == [10, 11, 12, 13]
    assert not groups.is_initialized()


def test_spawn_lets_the_function_init() -> None:
    assert unisono.spawn(lambda: groups.init().size, 3) == [3, 3, 3]


def test_spawn_raises_the_cause_itself() -> None:
    cause = ValueError("the cause")

    def fail() -> None:
        if groups.world().rank == 2:
            time.sleep(0.1)
            raise cause
        dispatch.barrier(groups.world())

    with pytest.raises(ValueError, match="the cause") as caught:
        unisono.spawn(fail, 4)
    assert caught.value is cause
    assert cause.__notes__[0] == "on rank 2 of 4"
    assert cause.__notes__[1] == (
        "raised as well: rank 0 (PeerLost), rank 1 (PeerLost), rank 3 (PeerLost)"
    )


def test_spawn_raises_a_consequence_if_there_is_nothing_else() -> None:
    def leave_early() -> None:
        if groups.world().rank == 0:
            dispatch.barrier(groups.world())

    with pytest.raises(PeerLost, match="rank 1 closed the group"):
        unisono.spawn(leave_early, 2)


def test_spawn_from_another_thread() -> None:
    results: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: results.append(unisono.spawn(lambda: groups.world().rank, 2))
    )
    thread.start()
    thread.join(DEADLINE)
    assert results == [[0, 1]]


def test_spawn_checks_its_arguments() -> None:
    with pytest.raises(ArgumentError, match="number of ranks is 0"):
        unisono.spawn(print, 0)
    with pytest.raises(ArgumentTypeError, match="number of ranks is '2'"):
        unisono.spawn(print, "2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="needs a function"):
        unisono.spawn(3, 2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="timeout is -1"):
        unisono.spawn(print, 2, timeout=-1)
    with pytest.raises(ArgumentError, match="no engine 'nonsense'"):
        unisono.spawn(print, 2, engine="nonsense")


# ---- spawn on processes --------------------------------------------------------------------------

with_shm = pytest.mark.skipif(
    importlib.util.find_spec("unisono.engines.shm.engine") is None,
    reason="engine 'shm' is not built",
)


class UnpicklableError(Exception):
    """An error that pickle cannot restore."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def _identity(base: int) -> tuple[int, int, int, str, set[int]]:
    world = groups.init()
    return base + world.rank, world.size, os.getpid(), os.environ["RANK"], os.sched_getaffinity(0)


def _fail_on_one(how: str) -> object:
    world = groups.world()
    if world.rank == 1:
        if how == "raise":
            raise KeyError("the cause")
        if how == "unpicklable":
            raise UnpicklableError("first", "second")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(5)
        if how == "lambda":
            return lambda: None
    if how == "mismatch":
        raise MismatchError("ranks disagree")
    dispatch.barrier(world)
    return None


@with_shm
def test_spawn_processes() -> None:
    before = dict(os.environ)
    cores = os.sched_getaffinity(0)
    ranks = unisono.spawn(_identity, 2, 10, engine="shm")
    assert [rank[:2] for rank in ranks] == [(10, 2), (11, 2)]
    assert [rank[3] for rank in ranks] == ["0", "1"]
    assert len({rank[2] for rank in ranks} | {os.getpid()}) == 3
    assert CORES < 2 or not ranks[0][4] & ranks[1][4]
    assert dict(os.environ) == before
    assert os.sched_getaffinity(0) == cores
    assert not any(is_running(rank[2]) for rank in ranks)


@with_shm
def test_spawn_process_raises() -> None:
    with pytest.raises(KeyError, match="the cause") as caught:
        unisono.spawn(_fail_on_one, 3, "raise", engine="shm")
    notes = "\n".join(caught.value.__notes__)
    assert "on rank 1 of 3" in notes
    assert "in _fail_on_one" in notes


@with_shm
def test_spawn_process_raises_what_cannot_be_pickled() -> None:
    with pytest.raises(RankFailed, match="rank 1 raised UnpicklableError, which cannot be pickled"):
        unisono.spawn(_fail_on_one, 2, "unpicklable", engine="shm")


@with_shm
@pytest.mark.parametrize(("how", "text"), [("kill", "killed by SIGKILL"), ("exit", "exit code 5")])
def test_spawn_process_dies(how: str, text: str) -> None:
    with pytest.raises(RankFailed, match=f"rank 1 .*{text}") as caught:
        unisono.spawn(_fail_on_one, 3, how, engine="shm")
    assert caught.value.ranks == (1,)


@with_shm
def test_spawn_process_returns_what_cannot_be_pickled() -> None:
    with pytest.raises(ArgumentTypeError, match="the result of rank 1, a function"):
        unisono.spawn(_fail_on_one, 2, "lambda", engine="shm")


@with_shm
def test_spawn_raises_our_own_errors_as_they_are() -> None:
    with pytest.raises(MismatchError, match="ranks disagree"):
        unisono.spawn(_fail_on_one, 2, "mismatch", engine="shm")


@with_shm
def test_spawn_needs_a_function_at_module_level() -> None:
    with pytest.raises(ArgumentTypeError, match="module level, or use engine='threads'"):
        unisono.spawn(lambda: None, 2, engine="shm")
    with pytest.raises(ArgumentTypeError, match="an argument cannot be sent"):
        unisono.spawn(_identity, 2, threading.Lock(), engine="shm")


@with_shm
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_rank_survives_the_program_that_spawned_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, time, unisono

def run_rank():
    print(f"ready {os.getpid()}\\n", end="", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    unisono.spawn(run_rank, 2, engine="shm")
""")
    job = subprocess.Popen(
        [sys.executable, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = pids_of(job, 2)
    assert all(map(is_running, pids))
    job.send_signal(number)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    wait_until(lambda: not any(map(is_running, pids)))


@with_shm
def test_spawn_without_a_main_guard_is_explained(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import unisono\nunisono.spawn(print, 2, engine='shm')\n")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1  # that of the program itself
    assert "call spawn under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(
    importlib.util.find_spec("unisono.engines.shm.engine") is not None,
    reason="engine 'shm' is there",
)
def test_spawn_says_why_an_engine_cannot_run() -> None:
    with pytest.raises(LaunchError, match="engine 'shm' cannot be imported"):
        unisono.spawn(_identity, 2, 10, engine="shm")
