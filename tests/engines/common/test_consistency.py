"""The consistency check: what ranks tell each other of their calls, and its verdict."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.core.buffers import view
from unisono.core.call import Call, Caller
from unisono.core.dtypes import ReduceOp
from unisono.engines.common import consistency
from unisono.engines.common.consistency import Descriptor
from unisono.errors import MismatchError


def caller(rank: int, size: int = 3) -> Caller:
    return Caller(rank, size, 9, 1.0, True, True, f"rank{rank}.py:{rank}")


def reduction(rank: int, count: int = 4, op: ReduceOp = ReduceOp.SUM) -> Call:
    memory = view(np.zeros(count))
    return Call.all_reduce(caller(rank), memory, memory, op)


def exchange(rank: int, sends: list[int], receives: list[int]) -> Call:
    source, destination = view(np.zeros(sum(sends))), view(np.zeros(sum(receives)))
    return Call.all_to_all(caller(rank), source, destination, sends, receives)


def verdict(calls: list[Call]) -> MismatchError | None:
    """What every rank finds; all of them must find the same."""

    def all_of(mine: np.ndarray, everybodys: np.ndarray) -> None:
        if mine.dtype == np.uint8:
            everybodys[:] = [Descriptor.of(call).encoded() for call in calls]
        else:
            everybodys[:] = [[call.sends, call.receives] for call in calls]

    found: list[MismatchError | None] = []
    for call in calls:
        try:
            consistency.check(call, len(calls), all_of)
        except MismatchError as error:
            found.append(error)
        else:
            found.append(None)
    assert len({str(error) for error in found}) == 1
    return found[0]


def test_equal_calls_pass() -> None:
    assert verdict([reduction(rank) for rank in range(3)]) is None


def test_each_side_is_shown_with_its_ranks_and_lines() -> None:
    error = verdict([reduction(0), reduction(1, op=ReduceOp.MAX), reduction(2)])
    assert "ranks disagree in call 9 of the group" in str(error)
    assert "rank 1: all_reduce float64 x 4 max, call 9 at rank1.py:1" in str(error)
    assert "rank 0: all_reduce float64 x 4 sum, call 9 at rank0.py:0" in str(error)


def test_counts_that_must_be_equal() -> None:
    error = verdict([reduction(0), reduction(1), reduction(2, count=5)])
    assert "x 4" in str(error) and "x 5" in str(error)


def test_counts_that_fit_each_other_pass() -> None:
    assert verdict([exchange(0, [1, 2], [1, 3]), exchange(1, [3, 4], [2, 4])]) is None


def test_counts_that_do_not_fit_are_named_by_pair() -> None:
    error = verdict([exchange(0, [1, 2], [1, 3]), exchange(1, [7, 4], [2, 4])])
    assert "rank 1 sends rank 0 7 elements, which expects 3" in str(error)
    assert error is not None and error.ranks == (1,)


@pytest.mark.parametrize("site", ["", "train.py:88", "x" * 500 + "/train.py:88"])
def test_a_descriptor_survives_its_encoding(site: str) -> None:
    call = reduction(1, op=ReduceOp.premul_sum(0.25))._replace(site=site)
    sent = Descriptor.of(call)
    came = Descriptor.decoded(sent.encoded())
    assert came[:5] == sent[:5]
    assert sent.site.endswith(came.site) and came.site[-11:] == sent.site[-11:]
