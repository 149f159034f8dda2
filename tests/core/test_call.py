"""A call is complete and immutable: the counts of both sides fit each other for every verb."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from unisono.core.buffers import Buffer, view
from unisono.core.call import Call, Caller
from unisono.core.dtypes import ReduceOp

SIZE = 3
ROOT = 2  # not the middle one: rows that are counted from the wrong end must differ
COUNTS = [2, 0, 5]


def caller(rank: int) -> Caller:
    return Caller(rank, SIZE, 4, 1.5, blocking=False, checked=False, site="train.py:8")


def memory(count: int) -> Buffer:
    return view(np.zeros(count, np.float32))


#: Each verb whose counts may differ by rank, called with equal shares and with counts of its own.
CALLS: dict[str, Callable[[int], Call]] = {
    "reduce_scatter": lambda rank: Call.reduce_scatter(
        caller(rank), memory(6), memory(2), ReduceOp.SUM
    ),
    "reduce_scatter, uneven": lambda rank: Call.reduce_scatter(
        caller(rank), memory(7), memory(COUNTS[rank]), ReduceOp.SUM, COUNTS
    ),
    "gather": lambda rank: Call.gather(caller(rank), memory(2), memory(6), ROOT),
    "gather, uneven": lambda rank: Call.gather(
        caller(rank), memory(COUNTS[rank]), memory(7), ROOT, COUNTS
    ),
    "all_gather": lambda rank: Call.all_gather(caller(rank), memory(2), memory(6)),
    "all_gather, uneven": lambda rank: Call.all_gather(
        caller(rank), memory(COUNTS[rank]), memory(7), COUNTS
    ),
    "scatter": lambda rank: Call.scatter(caller(rank), memory(6), memory(2), ROOT),
    "scatter, uneven": lambda rank: Call.scatter(
        caller(rank), memory(7), memory(COUNTS[rank]), ROOT, COUNTS
    ),
    "all_to_all": lambda rank: Call.all_to_all(caller(rank), memory(6), memory(6)),
    "all_to_all, uneven": lambda rank: Call.all_to_all(
        caller(rank), memory(sum(COUNTS)), memory(3 * COUNTS[rank]), COUNTS, [COUNTS[rank]] * SIZE
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_one_rank_sends_another_expects(name: str) -> None:
    calls = [CALLS[name](rank) for rank in range(SIZE)]
    for sender in range(SIZE):
        for receiver in range(SIZE):
            assert calls[sender].sends[receiver] == calls[receiver].receives[sender]


@pytest.mark.parametrize("name", CALLS)
def test_counts_add_up_to_the_memory(name: str) -> None:
    for rank in range(SIZE):
        call = CALLS[name](rank)
        if call.destination is not None and call.verb != "reduce_scatter":
            assert sum(call.receives) == call.dst.count
        if call.source is not None and call.verb in ("scatter", "all_to_all", "reduce_scatter"):
            assert sum(call.sends) == call.src.count


@pytest.mark.parametrize("name", CALLS)
def test_only_a_caller_that_gives_counts_is_uneven(name: str) -> None:
    given = name.endswith("uneven")
    for rank in range(SIZE):
        call = CALLS[name](rank)
        at_root_only = call.root is not None and rank != call.root
        assert call.uneven == (given and not at_root_only)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_root_has_both_sides(rank: int) -> None:
    whole, part = memory(4), memory(4)
    at_root = rank == 1
    assert (Call.broadcast(caller(rank), whole, part, 1).source is whole) == at_root
    assert (Call.reduce(caller(rank), part, whole, ReduceOp.MAX, 1).destination is whole) == at_root
    assert (Call.gather(caller(rank), part, whole, 1).destination is whole) == at_root
    assert (Call.scatter(caller(rank), whole, part, 1).source is whole) == at_root


def test_it_says_who_calls_and_how() -> None:
    made = [
        Call.all_reduce(caller(2), memory(3), memory(3), ReduceOp.SUM),
        Call.barrier(caller(2)),
        Call.send(caller(2), memory(3), 0, tag=7),
        Call.recv(caller(2), memory(3), None, tag=7),
    ]
    for call in made:
        assert (call.number, call.timeout, call.blocking, call.checked) == (4, 1.5, False, False)
        assert call.site == "train.py:8"
    assert [call.peer for call in made[2:]] == [0, None]
    assert [call.tag for call in made[2:]] == [7, 7]


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Call.barrier(caller(0)).timeout = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call.barrier(caller(0)), "barrier"),
        (
            Call.reduce(caller(0), memory(3), None, ReduceOp.premul_sum(0.5), 1),
            "reduce float32 x 3 premul_sum(0.5) root 1",
        ),
        (Call.all_gather(caller(0), memory(2), memory(7), COUNTS), "all_gather float32"),
        (Call.send(caller(0), memory(2), 1), "send float32 x 2"),
    ],
    ids=["barrier", "reduce", "uneven", "send"],
)
def test_it_describes_itself(call: Call, text: str) -> None:
    assert str(call) == text
