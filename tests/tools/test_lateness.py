"""Who came late, from the calls of all ranks side by side."""

from __future__ import annotations

from unisono.core.trace import RankReport, Record
from unisono.tools.lateness import instances, latest, totals, waiting_time

#: After all calls.
LATER = 1_000_000


def record(
    sequence: int, began: int, number: int | None = None, group: int = 0, ended: int | None = 5
) -> Record:
    name = sequence if number is None else number
    return Record(
        sequence, group, name, "barrier", None, None, None, None, None, "a.py:1", began,
        None if ended is None else began + ended, "running" if ended is None else "done",
    )  # fmt: skip


def test_records_that_are_gone_are_not_missing_ranks() -> None:
    early = RankReport(0, 1, "running", [record(1, 100), record(2, 200), record(3, 300)])
    # This one has made so many calls that its first is not kept, and has not come to the third.
    busy = RankReport(1, 2, "running", [record(2, 210), record(9, 220, 1, group=4)])
    silent = RankReport(2, 3, "running", [])
    found = {one.number: one for one in instances([early, busy], LATER) if not one.group}
    assert [found[number].missing for number in (1, 2, 3)] == [(), (), (1,)]
    assert [found[number].complete for number in (1, 2, 3)] == [False, True, False]
    assert instances([early, busy, silent], LATER)[0].missing == (2,)


def test_a_rank_that_is_awaited_now_is_missing_though_its_records_are_gone() -> None:
    waits = RankReport(0, 1, "running", [record(1, 100, ended=None)], missing=[1])
    busy = RankReport(1, 2, "running", [record(5000, 200, 7, group=4)])
    found = {one.group: one for one in instances([waits, busy], LATER)}
    assert found[0].missing == (1,)
    waits.missing = None  # as in a file
    found = {one.group: one for one in instances([waits, busy], LATER)}
    assert found[0].missing == ()


def test_calls_that_began_after_the_look_are_left_out() -> None:
    # Rank 1 was read later, when it had made one more call.
    ranks = [
        RankReport(0, 1, "running", [record(1, 100)]),
        RankReport(1, 2, "running", [record(1, 110), record(2, 150)]),
    ]
    assert [one.number for one in instances(ranks, 140)] == [1]
    assert instances(ranks, 150)[1].missing == (0,)


def test_lateness_counts_from_the_median() -> None:
    ranks = [
        RankReport(n, n, "running", [record(1, when)]) for n, when in enumerate((10, 70, 20, 30))
    ]
    (instance,) = instances(ranks, LATER)
    assert (instance.last_rank, instance.late) == (1, 50)
    assert instance.last_arrival - instance.first_arrival == 60
    by_rank, by_line = totals([instance])
    assert [(rank, one.calls, one.late) for rank, one in by_rank.items()] == [(1, 1, 50)]
    assert [(line, one.worst) for line, one in by_line.items()] == [("a.py:1", 50)]
    assert latest([instance]) == [instance]


def test_waiting_ends_when_the_last_rank_comes() -> None:
    ranks = [RankReport(n, n, "running", [record(1, when)]) for n, when in enumerate((10, 13))]
    (met,) = instances(ranks, LATER)
    assert waiting_time(ranks[0].calls[0], 15, met) == 3
    assert waiting_time(ranks[1].calls[0], 18, met) == 0
    (alone,) = instances(ranks[:1], LATER)
    assert waiting_time(ranks[0].calls[0], 15, alone) == 0
    ranks[1].calls = []
    (unmet,) = instances(ranks, LATER)
    assert waiting_time(ranks[0].calls[0], 15, unmet) == 5
    message = Record(1, 0, None, "recv", "float32", 1, None, None, 1, None, 10, 15, "done")
    assert waiting_time(message, 15, None) == 5
