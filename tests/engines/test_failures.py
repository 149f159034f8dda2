"""Ranks that disagree, come late or leave: everybody is told, by name, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import cases
from tests.helpers.cases import Case
from tests.helpers.device_memory import memory_of
from tests.helpers.thorough import essential
from unisono.core import dispatch
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError

SUM, MAX = ReduceOp.SUM, ReduceOp.MAX


def fault(action: Callable[[], object]) -> UnisonoError:
    """The error that the action must raise; it travels to the test as the rank's result."""
    try:
        action()
    except UnisonoError as error:
        return error
    raise AssertionError("no error although the call cannot be right")


def call(
    group: Group, blocking: bool, verb: str, *arguments: object, timeout: float | None = None
) -> None:
    """One call, waited for; arrays are viewed."""
    memory = memory_of(group)
    viewed = [memory.view(a) if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        getattr(dispatch, verb)(group, *viewed, blocking=blocking, timeout=timeout).wait()
    finally:
        memory.fetch()


def note(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def sends_itself_too_much(group: Group) -> tuple[UnisonoError, list[float]]:
    room = np.zeros(100)  # the destination and what must not be touched behind it
    error = fault(lambda: call(group, True, "all_to_all", np.ones(90), room[:3], [90], [3]))
    return error, room[3:].tolist()


def test_a_rank_alone_may_disagree_with_itself(world):
    ((error, behind),) = world(1, sends_itself_too_much)
    assert isinstance(error, MismatchError)
    assert set(behind) == {0.0}


# ---- mismatch ------------------------------------------------------------------------------------

# What ranks 0 and 2 call, what rank 1 calls, and what the error must show of both sides.
MISMATCHES = {
    "count": (
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("all_reduce", np.zeros(11), np.zeros(11), SUM),
        ("10", "11"),
    ),
    "dtype": (
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("all_reduce", np.zeros(10, np.float32), np.zeros(10, np.float32), SUM),
        ("float64", "float32"),
    ),
    "dtype of the same size": (
        ("all_reduce", np.zeros(10, np.int64), np.zeros(10, np.int64), SUM),
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("int64", "float64"),
    ),
    "operator": (
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("all_reduce", np.zeros(10), np.zeros(10), MAX),
        ("sum", "max"),
    ),
    "factor": (
        ("all_reduce", np.zeros(10), np.zeros(10), ReduceOp.premul_sum(0.5)),
        ("all_reduce", np.zeros(10), np.zeros(10), ReduceOp.premul_sum(0.125)),
        ("0.5", "0.125"),
    ),
    "root": (
        ("reduce", np.zeros(10), np.zeros(10), SUM, 0),
        ("reduce", np.zeros(10), np.zeros(10), SUM, 2),
        ("root 0", "root 2"),
    ),
    "root of a broadcast": (
        ("broadcast", np.zeros(10), np.zeros(10), 0),
        ("broadcast", np.zeros(10), np.zeros(10), 1),
        ("root 0", "root 1"),
    ),
    "collective": (
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("broadcast", np.zeros(10), np.zeros(10), 1),
        ("all_reduce", "broadcast"),
    ),
    "barrier": (
        ("all_reduce", np.zeros(10), np.zeros(10), SUM),
        ("barrier",),
        ("all_reduce", "barrier"),
    ),
    "share": (
        ("reduce_scatter", np.zeros(9), np.zeros(3), SUM, None),
        ("reduce_scatter", np.zeros(12), np.zeros(4), SUM, None),
        ("3", "4"),
    ),
    "uneven counts of a scatter": (
        ("reduce_scatter", np.zeros(3), np.zeros(1), SUM, [1, 1, 1]),
        ("reduce_scatter", np.zeros(7), np.zeros(5), SUM, [1, 5, 1]),
        ("1", "5"),
    ),
    "all_gather share": (
        ("all_gather", np.zeros(2), np.zeros(6), None),
        ("all_gather", np.zeros(7), np.zeros(21), None),
        ("2", "7"),
    ),
    "what a rank sends itself": (
        ("all_to_all", np.zeros(6), np.zeros(6), None, None),
        ("all_to_all", np.zeros(900), np.zeros(6), [2, 896, 2], [2, 2, 2]),
        ("896", "2"),
    ),
    "all_to_all counts": (
        ("all_to_all", np.zeros(6), np.zeros(6), None, None),
        ("all_to_all", np.zeros(11), np.zeros(6), [2, 2, 7], [2, 2, 2]),
        ("2", "7"),
    ),
    "gather share": (
        ("gather", np.zeros(2), np.zeros(6), 0, None),
        ("gather", np.zeros(5), None, 0, None),
        ("2", "5"),
    ),
    "scatter share": (
        ("scatter", np.zeros(6), np.zeros(2), 0, None),
        ("scatter", None, np.zeros(5), 0, None),
        ("2", "5"),
    ),
}


def disagree(group: Group, name: str, blocking: bool) -> UnisonoError:
    ours, theirs, _ = MISMATCHES[name]
    chosen = theirs if group.rank == 1 else ours
    error = fault(lambda: call(group, blocking, *chosen))
    for salt, verb in enumerate(cases.MOVES + cases.REDUCTIONS):
        cases.run(group, Case(verb, "float32", 101, salt=salt))  # the group works as before
    return error


@pytest.mark.essential
@pytest.mark.parametrize("blocking", essential(1, [True, False]), ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.needs("mismatch")
def test_mismatch_is_told_to_every_rank(world, name, blocking):
    ours, theirs, texts = MISMATCHES[name]
    for rank, error in enumerate(world(3, disagree, name, blocking)):
        assert type(error) is MismatchError, f"rank {rank}: {error!r}"
        for text in texts:
            assert text in str(error), f"rank {rank} does not show {text!r}: {error}"
        verb = (theirs if rank == 1 else ours)[0]
        assert f"in {verb}" in note(error)
        assert f"rank {rank} of 3" in note(error)
        assert "'world'" in note(error)


def disagree_about_the_pass(group: Group, blocking: bool) -> UnisonoError:
    def in_our_pass() -> object:
        with dispatch.in_pass(backward=group.rank == 1):
            return call(group, blocking, "all_reduce", np.zeros(10), np.zeros(10), SUM)

    error = fault(in_our_pass)
    with dispatch.in_pass(backward=True):
        cases.run(group, Case("all_reduce", "float32", 101))
    return error


@pytest.mark.essential
@pytest.mark.parametrize("blocking", essential(1, [True, False]), ids=["blocking", "asynchronous"])
@pytest.mark.needs("mismatch")
def test_a_backward_call_does_not_meet_an_equal_one_of_a_forward_pass(world, blocking):
    for error in world(3, disagree_about_the_pass, blocking):
        assert type(error) is MismatchError, repr(error)
        assert "rank 1: all_reduce float64 x 10 sum (backward)" in str(error)


def other_message(group: Group, sent: np.ndarray, wanted: np.ndarray) -> UnisonoError | None:
    error = None
    if group.rank == 0:
        # Whether the sender learns of it depends on whether the message waits for the receiver.
        with contextlib.suppress(MismatchError):
            call(group, False, "send", sent, 1, 0)
    else:
        error = fault(lambda: call(group, True, "recv", wanted, 0, 0))
        assert not wanted.any(), "something was written"
    cases.run(group, Case("all_reduce", "float32", 101))
    return error


@pytest.mark.parametrize(
    ("sent", "wanted", "texts"),
    [
        (np.ones(10), np.zeros(11), ("10", "11")),
        (np.ones(11), np.zeros(10), ("10", "11")),
        (np.ones(10), np.zeros(10, np.int64), ("float64", "int64")),
        (np.ones(1 << 19), np.zeros(5), (str(1 << 19), "5")),
    ],
    ids=["too short", "too long", "dtype", "much too long"],
)
@pytest.mark.needs("mismatch")
def test_message_that_does_not_fit(world, sent, wanted, texts):
    error = world(2, other_message, sent, wanted)[1]
    assert type(error) is MismatchError
    assert all(text in str(error) for text in texts), str(error)
    assert "in recv" in note(error)
    assert "rank 1 of 2" in note(error)


# ---- a rank that does not come -------------------------------------------------------------------


def absent(group: Group, blocking: bool) -> UnisonoError:
    """Ranks 0 and 1 wait for rank 2, which comes when they have given up."""
    dispatch.barrier(group)
    if group.rank == 2:
        time.sleep(3.0)
    array = np.zeros(10)
    return fault(lambda: call(group, blocking, "all_reduce", array, array, SUM, timeout=1.0))


@pytest.mark.essential
@pytest.mark.parametrize("blocking", essential(1, [True, False]), ids=["blocking", "asynchronous"])
def test_rank_that_does_not_come(world, blocking):
    *waited, late = world(3, absent, blocking, of_its_own=True)
    for rank, error in enumerate(waited):
        assert type(error) is CommTimeout, repr(error)
        assert "rank 2" in str(error)
        assert error.ranks == (2,)
        assert "in all_reduce" in note(error)
        assert f"rank {rank} of 3" in note(error)
    assert isinstance(late, PeerLost | CommTimeout), repr(late)


def no_message(group: Group) -> UnisonoError | None:
    if group.rank == 1:
        return None
    return fault(lambda: call(group, True, "recv", np.zeros(3), 1, 0, timeout=1.0))


def test_message_that_does_not_come(world):
    error = world(2, no_message, of_its_own=True)[0]
    assert type(error) is CommTimeout
    assert "rank 1" in str(error)
    assert "in recv" in note(error)


# ---- a rank that leaves --------------------------------------------------------------------------


def leave(group: Group, pause: float, verb: str) -> UnisonoError | None:
    """Rank 2 closes a subgroup that the others wait in; the world is not touched by it."""
    child = group.split([0, 1, 2])
    if group.rank == 2:
        time.sleep(pause)
        child.close()
        error = None
    elif verb == "recv":
        error = fault(lambda: call(child, True, "recv", np.zeros(4), 2, 0))
    else:
        error = fault(lambda: call(child, True, "all_reduce", np.zeros(4), np.zeros(4), SUM))
    # Nobody else leaves before all have their error, or they would be told of the wrong rank.
    dispatch.barrier(group)
    child.close()
    cases.run(group, Case("all_reduce", "float32", 101))
    return error


@pytest.mark.parametrize("verb", ["all_reduce", "recv"])
@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["before they wait", "while they wait"])
def test_rank_that_closes_its_group(world, pause, verb):
    *waited, _ = world(3, leave, pause, verb)
    for rank, error in enumerate(waited):
        assert type(error) is PeerLost, repr(error)
        assert "rank 2" in str(error)
        assert error.ranks == (2,)
        assert f"in {verb}" in note(error)
        assert f"rank {rank} of 3" in note(error)


def die(group: Group, folder: Path) -> None:
    """Rank 1 ends abruptly; the others write down their error, because their pool ends too."""
    cases.run(group, Case("all_reduce", "float32", 101))
    if group.rank == 1:
        os._exit(7)
    start = time.monotonic()
    error = fault(lambda: call(group, True, "all_reduce", np.zeros(4), np.zeros(4), SUM))
    waited = time.monotonic() - start
    lines = [type(error).__name__, str(error.ranks), str(waited < 10), str(error)]
    (folder / str(group.rank)).write_text("\n".join(lines))


@pytest.mark.needs("lost rank")
def test_rank_that_dies(world, engine, tmp_path):
    if engine == "threads":
        pytest.skip("a thread cannot end abruptly")
    with pytest.raises(RuntimeError, match="rank 1 of 3 died with exit code 7"):
        world(3, die, tmp_path, of_its_own=True)
    for rank in (0, 2):
        kind, lost, soon, text = (tmp_path / str(rank)).read_text().split("\n", 3)
        assert (kind, lost, soon) == ("PeerLost", "(1,)", "True"), text
        assert "rank 1" in text
