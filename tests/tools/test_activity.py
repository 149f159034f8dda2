"""Calls per second, waiting and lateness of each rank, from calls whose times are known."""

from __future__ import annotations

import pytest

from unisono.core.trace import RankReport, Record
from unisono.tools.activity import Activity, activities
from unisono.tools.lateness import instances

SECOND = 1_000_000_000


def call(sequence: int, began: float, ended: float | None, group: int = 0) -> Record:
    """A call with times in seconds."""
    return Record(
        sequence, group, sequence, "barrier", None, None, None, None, None, "a.py:1",
        int(began * SECOND), None if ended is None else int(ended * SECOND),
        "running" if ended is None else "done",
    )  # fmt: skip


def lately(*calls: list[Record], until: float) -> list[Activity]:
    ranks = [RankReport(n, 1 + n, "running", list(one)) for n, one in enumerate(calls)]
    clock = int(until * SECOND)
    return activities(ranks, instances(ranks, clock), clock)


def test_a_rank_that_comes_late() -> None:
    on_time = [call(1, 1, 2), call(2, 3.1, 3.5), call(3, 5, None)]
    late = [call(1, 1.5, 2), call(2, 3, 3.5)]
    one, other = lately(on_time, late, until=6)
    assert (one.calls_per_second, other.calls_per_second) == pytest.approx((3 / 5, 2 / 4.5))
    # In five seconds it waited 0.5 s in the first call, and 1 s in the third one.
    assert (one.waiting, other.waiting) == pytest.approx((1.5 / 5, 0.1 / 5))
    assert (one.compared, other.compared) == (2, 2)
    assert (other.came_last, other.late, other.worst) == (1, 0.5 * SECOND, 0.5 * SECOND)
    assert other.late_share == pytest.approx(0.1)


def test_calls_that_wait_at_the_same_time_count_once() -> None:
    waits = [call(1, 0, 4), call(2, 1, 5, group=3)]
    late = [call(1, 3, 4), call(2, 4, 5, group=3)]
    one, _ = lately(waits, late, until=5)
    assert one.waiting == pytest.approx(4 / 5)


def test_only_the_time_counts_in_which_all_records_are_kept() -> None:
    long_ago = [call(1, 0, 5), call(2, 6, 8)]
    # Older records of this rank are not kept, so nobody knows when it came to the first call.
    busy = [call(2, 7, 8)]
    one, other = lately(long_ago, busy, until=9)
    assert one.waiting == pytest.approx(0)  # its wait for the second call ended when this began
    assert (one.compared, other.came_last, other.late) == (1, 1, SECOND)


def test_ranks_without_calls() -> None:
    (nothing,) = lately([], until=5)
    assert nothing == Activity(0, 0, 0, 0, 0, 0, 0)
    assert lately([call(1, 5, None)], [], until=5)[0].waiting == 0
