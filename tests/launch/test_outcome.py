"""Which rank is shown as the cause, from exit codes and from what ranks reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unisono.errors import CommTimeout, MismatchError, PeerLost
from unisono.launch.outcome import Blame, ErrorSummary, RankOutcome, by_blame, culprit

LOST = ErrorSummary("PeerLost", Blame.LOST_A_PEER)
LATE = ErrorSummary("CommTimeout", Blame.TIMED_OUT)
OWN = ErrorSummary("ValueError")


def raised(error: BaseException, *, during: BaseException, explicit: bool) -> BaseException:
    """Raise one error while another is handled, and return it."""
    try:
        try:
            raise during
        except BaseException as first:
            if explicit:
                raise error from first
            raise error  # noqa: B904
    except BaseException as second:
        return second


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ([RankOutcome(2, 1), RankOutcome(0, 1)], 2),
        ([RankOutcome(0, 1, OWN), RankOutcome(1, -9)], 1),
        ([RankOutcome(0, 1, LOST), RankOutcome(1, 1)], 1),
        ([RankOutcome(0, 1, LOST), RankOutcome(1, 1, LATE)], 1),
        ([RankOutcome(0, 1, LATE), RankOutcome(1, None, OWN)], 1),
        ([RankOutcome(0, -9, None, "was told to end"), RankOutcome(1, 1, LOST)], 1),
        ([RankOutcome(1, 1, LOST), RankOutcome(0, 1, LOST)], 1),
        ([RankOutcome(0, 1, LATE), RankOutcome(1, -11, LOST)], 1),
    ],
    ids=[
        "the first",
        "rather a signal than an error",
        "rather an unknown error than a lost peer",
        "rather a timeout than a lost peer",
        "rather an own error than a timeout",
        "rather anyone than a rank that we ended",
        "the first of equals, not the lowest",
        "a signal whatever was reported",
    ],
)
def test_culprit(failures: list[RankOutcome], rank: int) -> None:
    assert culprit(failures).rank == rank


def test_all_failures_are_sorted_and_equals_keep_their_order() -> None:
    failures = [
        RankOutcome(3, 1, LOST),
        RankOutcome(1, 1, OWN),
        RankOutcome(0, 1),
        RankOutcome(2, -6),
    ]
    assert [outcome.rank for outcome in by_blame(failures)] == [2, 1, 0, 3]


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (ValueError("x"), Blame.FAILED),
        (MismatchError("x"), Blame.FAILED),
        (TimeoutError("not ours"), Blame.FAILED),
        (CommTimeout("x", [1]), Blame.TIMED_OUT),
        (PeerLost("x", [1]), Blame.LOST_A_PEER),
    ],
)
def test_blame_of_an_error(error: BaseException, blame: Blame) -> None:
    summary = ErrorSummary.of(error)
    assert (summary.type, summary.blame) == (type(error).__name__, blame)
    assert (summary.message, summary.ranks) == (str(error), tuple(getattr(error, "ranks", ())))
    assert ErrorSummary.from_data(json.loads(json.dumps(summary.to_data()))) == summary


@pytest.mark.parametrize("explicit", [True, False])
def test_an_error_that_follows_a_lost_peer_is_a_consequence(explicit: bool) -> None:
    error = raised(LookupError("no data"), during=PeerLost("x"), explicit=explicit)
    summary = ErrorSummary.of(error)
    assert (summary.type, summary.blame) == ("LookupError", Blame.LOST_A_PEER)


def test_an_error_that_hides_a_lost_peer_counts_for_itself() -> None:
    error = raised(LookupError("no data"), during=PeerLost("x"), explicit=False)
    error.__suppress_context__ = True  # as `raise ... from None` does
    assert ErrorSummary.of(error).blame == Blame.FAILED


def test_errors_that_refer_to_each_other_come_to_an_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__context__, second.__context__ = second, first
    assert ErrorSummary.of(first).blame == Blame.FAILED


@pytest.mark.parametrize("data", [{}, {"type": "X"}, {"type": "X", "blame": "NOBODY"}])
def test_data_of_another_kind_is_refused(data: dict[str, str]) -> None:
    with pytest.raises((KeyError, ValueError)):
        ErrorSummary.from_data(data)


def test_the_site_is_not_the_source_of_a_library_in_cython() -> None:
    inner = compile("def fail(): raise ValueError", "library/_module.pyx", "exec")
    library: dict[str, Any] = {}
    exec(inner, library)
    try:
        library["fail"]()
    except ValueError as error:
        site = ErrorSummary.of(error).site
    assert "test_outcome.py:" in site
