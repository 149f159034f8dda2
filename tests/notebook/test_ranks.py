"""`unisono.ranks`: calls, variables, errors and lost ranks, on threads and on processes."""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator

import numpy as np
import pytest

import unisono
import unisono.torch.distributed as dist
from tests.helpers.processes import wait_until
from unisono.core import groups, registry
from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    MismatchError,
    NotReady,
    PeerLost,
    RankFailed,
)
from unisono.notebook.ranks import Ranks

KINDS = [
    "threads",
    pytest.param(
        "shm",
        marks=pytest.mark.skipif(
            registry.available()["shm"] is not None, reason="engine 'shm' is not built"
        ),
    ),
]
NEW_WORLD = "the next call has a new world"


@pytest.fixture(scope="module", params=KINDS)
def three(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with unisono.ranks(3, engine=request.param, timeout=60) as ranks:
        yield ranks


def total(start: int) -> list[float]:
    """The sum over ranks of their numbers and `start`."""
    values = np.full(2, float(start + dist.get_rank()))
    dist.all_reduce(values)
    return values.tolist()


def is_whole(ranks: Ranks) -> bool:
    """Whether the ranks can still call collectives."""
    return ranks(total, 1) == [[6.0, 6.0]] * 3


def notes_of(error: BaseException) -> str:
    return "\n".join(error.__notes__)


# ---- calls and variables -------------------------------------------------------------------------


def test_results_come_in_rank_order(three: Ranks) -> None:
    assert is_whole(three)
    assert three(lambda start, by: start + by * dist.get_rank(), 1, by=10) == [1, 11, 21]
    assert repr(three) == f"<3 ranks, engine {three.engine!r}>"


def test_each_rank_has_variables_that_stay(three: Ranks) -> None:
    assert three.execute("import unisono.torch.distributed as dist\nmine = dist.get_rank()") == (
        [None] * 3
    )
    assert three.execute("mine += 1\nmine") == [1, 2, 3]
    assert three.pull("mine") == [1, 2, 3]
    three.push(mine=[7], other="x")
    assert three.execute("mine, other", results=False) == [None] * 3
    assert three.execute("mine, other") == [([7], "x")] * 3
    with pytest.raises(NameError, match="there is no variable 'missing' on this rank"):
        three.pull("missing")


def test_every_call_may_init(three: Ranks) -> None:
    init = "import unisono.torch.distributed as dist\ndist.init_process_group()\ndist.get_rank()"
    for _ in range(2):  # as a cell that is run again
        assert three.execute(init) == [0, 1, 2]
    three(dist.destroy_process_group)
    assert three.execute(init) == [0, 1, 2]


def test_a_class_of_a_cell_travels_between_processes() -> None:
    source = "class Mine: pass\nfound = [None] * 2\n"
    source += "dist.all_gather_object(found, Mine())\n[isinstance(one, Mine) for one in found]"
    with unisono.ranks(2, engine="shm") as ranks:
        ranks.execute("import unisono.torch.distributed as dist")
        assert ranks.execute(source) == [[True, True]] * 2


def test_a_value_of_a_cell_that_cannot_travel_looks_the_same(three: Ranks) -> None:
    found = three.execute("import threading\nthreading.Lock()")
    assert all(repr(value).startswith("<unlocked _thread.lock") for value in found)


def test_arguments_are_checked(three: Ranks) -> None:
    with pytest.raises(ArgumentError, match="number of ranks is 0"):
        unisono.ranks(0)
    with pytest.raises(ArgumentTypeError, match="number of ranks is '2'"):
        unisono.ranks("2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no engine 'nonsense'"):
        unisono.ranks(2, engine="nonsense")
    with pytest.raises(ArgumentError, match="timeout is -1"):
        unisono.ranks(2, timeout=-1)
    with pytest.raises(ArgumentTypeError, match="ranks need a function, not 3"):
        three(3)  # type: ignore[arg-type]
    with pytest.raises(SyntaxError) as caught:
        three.execute("if x")
    assert "raised as well" not in str(caught.value)  # it is found before any rank gets it


def test_ranks_are_not_for_two_calls_at_once() -> None:
    with unisono.ranks(2) as ranks:
        with pytest.raises(NotReady, match="running another call"):
            ranks(lambda: ranks(total, 1))
        assert ranks(lambda: 1) == [1, 1]


def test_ranks_that_are_closed_say_so() -> None:
    ranks = unisono.ranks(2)
    ranks.close()
    ranks.close()
    assert repr(ranks) == "<2 ranks, engine 'threads', closed>"
    with pytest.raises(NotReady, match=r"these ranks are closed; .*restart\(\)"):
        ranks(total, 1)
    ranks.restart()
    assert ranks(total, 0) == [[1.0, 1.0]] * 2
    ranks.close()


def test_a_thread_that_has_ended_takes_no_ranks_with_it() -> None:
    made: list[Ranks] = []
    thread = threading.Thread(target=lambda: made.append(unisono.ranks(2, engine="shm")))
    thread.start()
    thread.join()
    with made[0] as ranks:
        assert ranks(total, 0) == [[1.0, 1.0]] * 2
        # A terminal sends Ctrl-C to a whole process group, and only the program is to get it.
        assert os.getpgrp() not in ranks(os.getpgrp)


@pytest.mark.thorough
def test_ranks_over_torch() -> None:
    pytest.importorskip("torch")
    with unisono.ranks(2, engine="torch:gloo") as ranks:
        assert ranks(total, 0) == [[1.0, 1.0]] * 2
        with pytest.raises(ZeroDivisionError):
            ranks.execute("1 / 0")  # such an engine keeps no records, so there is a new world
        assert ranks(total, 0) == [[1.0, 1.0]] * 2


# ---- errors --------------------------------------------------------------------------------------


def test_an_error_on_all_ranks_keeps_their_groups(three: Ranks) -> None:
    three.execute("import unisono.torch.distributed as dist, numpy as np")
    three.execute("pair = dist.new_group([0, 1])\none = np.ones(1)")
    three.execute("if dist.get_rank() < 2: dist.all_reduce(one, group=pair)")
    with pytest.raises(NameError, match="nonsense") as caught:
        three.execute("x = 1\nnonsense")
    shown = "".join(traceback.format_exception(caught.value))
    assert re.search(r'File "ranks source \d+", line 2, in <module>\n    nonsense', shown)
    assert NEW_WORLD not in notes_of(caught.value)
    three.execute("if dist.get_rank() < 2: dist.all_reduce(one, group=pair)")
    assert three.execute("float(one[0])") == [4.0, 4.0, 1.0]


def test_a_mismatch_keeps_the_world(three: Ranks) -> None:
    def differ() -> None:
        dist.all_reduce(np.ones(2 + dist.get_rank()))

    with pytest.raises(MismatchError, match="ranks disagree") as caught:
        three(differ)
    assert NEW_WORLD not in notes_of(caught.value)
    assert is_whole(three)


def test_an_error_of_one_rank_ends_the_others_calls(three: Ranks) -> None:
    three.execute("kept = 5")

    def fail_on_one() -> None:
        if dist.get_rank() == 1:
            raise KeyError("the cause")
        dist.barrier()

    with pytest.raises(KeyError, match="the cause") as caught:
        three(fail_on_one)
    notes = notes_of(caught.value)
    assert "on rank 1 of 3" in notes
    assert "raised as well: rank 0 (PeerLost), rank 2 (PeerLost)" in notes
    assert NEW_WORLD in notes
    assert three.pull("kept") == [5, 5, 5]
    assert is_whole(three)


def test_a_message_that_nobody_received_is_not_there_later(three: Ranks) -> None:
    def send_and_fail(value: float, fails: bool) -> float:
        found = np.full(1, value)
        if dist.get_rank() == 0:
            dist.send(found, 1)
        if fails:
            raise ValueError(value)
        if dist.get_rank() == 1:
            dist.recv(found, 0)
        return float(found[0])

    with pytest.raises(ValueError, match="7"):
        three(send_and_fail, 7.0, True)
    assert three(send_and_fail, 8.0, False) == [8.0] * 3


def test_exit_does_not_end_the_program(three: Ranks) -> None:
    with pytest.raises(RankFailed, match=r"sys.exit\(3\) was called by a rank"):
        three.execute("import sys\nsys.exit(3)")
    assert is_whole(three)


def test_what_cannot_travel_is_named() -> None:
    with unisono.ranks(2, engine="shm") as ranks:
        group = ranks.execute("import unisono.torch.distributed as dist\npair = dist.new_group()")
        assert group == [None, None]
        with pytest.raises(ArgumentTypeError, match="an argument cannot be sent"):
            ranks(print, threading.Lock())
        with pytest.raises(ArgumentTypeError, match=r"the function .* cannot be sent"):
            ranks(threading.Lock().acquire)
        with pytest.raises(ArgumentTypeError, match=r"the result of rank [01], a lock, cannot"):
            ranks(threading.Lock)
        assert ranks.execute("dist.barrier(pair)") == [None, None]  # the groups are still there


# ---- lost ranks ----------------------------------------------------------------------------------


def test_a_rank_that_dies() -> None:
    def die() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with unisono.ranks(2, engine="shm") as ranks:
        with pytest.raises(RankFailed, match=r"rank 1 .*killed by SIGKILL") as caught:
            ranks(die)
        assert "restart() starts new ranks" in notes_of(caught.value)
        assert repr(ranks) == "<2 ranks, engine 'shm', lost>"
        with pytest.raises(PeerLost, match=r"rank 1 of 2 ended .*; restart\(\) starts") as lost:
            ranks(total, 0)
        assert lost.value.ranks == (1,)
        ranks.restart()
        assert ranks(total, 0) == [[1.0, 1.0]] * 2
        os.kill(ranks(os.getpid)[0], signal.SIGKILL)  # between two calls
        wait_until(lambda: not ranks.is_usable)
        with pytest.raises(PeerLost, match="rank 0: killed by SIGKILL"):
            ranks(total, 0)


# ---- the program that uses ranks -----------------------------------------------------------------


def test_nothing_of_the_program_is_changed(three: Ranks) -> None:
    before = dict(os.environ), os.sched_getaffinity(0), signal.getsignal(signal.SIGINT)
    is_whole(three)
    assert (
        dict(os.environ),
        os.sched_getaffinity(0),
        signal.getsignal(signal.SIGINT),
    ) == before
    assert not groups.is_initialized()
