"""What hosts tell each other of a failure: errors keep their data, and ranks are the group's."""

from __future__ import annotations

import pytest

from unisono.core.engine import Engine
from unisono.engines.hybrid.failure_report import FailureReport, report_seconds, with_group_ranks
from unisono.engines.hybrid.topology import Topology
from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError

dist = pytest.importorskip("torch.distributed")


class Everyone:
    """An engine of which the report uses the store alone."""

    def __init__(self, store: object) -> None:
        self.store = store


def report(rank: int, store: object) -> FailureReport:
    everyone: Engine = Everyone(store)  # type: ignore[assignment]
    return FailureReport(Topology(((0, 1), (2, 3)), ("alpha", "beta"), rank), everyone)


@pytest.mark.parametrize("kind", [PeerLost, CommTimeout, MismatchError])
def test_ranks_are_those_of_the_group(kind: type[UnisonoError]) -> None:
    error = with_group_ranks(kind("rank 1 (pid 7) is gone", [1]), [4, 6], "host 'b'")
    assert type(error) is kind
    assert error.ranks == (6,)
    assert "rank 6" in str(error) and "rank 1 (pid 7) is gone" in str(error)
    assert "ranks 0, 1 of host 'b' are ranks 4, 6 of the group" in str(error)


def test_numbers_that_agree_are_left_alone() -> None:
    inner = PeerLost("rank 1 is gone", [1])
    assert with_group_ranks(inner, [0, 1, 2], "host 'a'") is inner


def test_the_cause_on_another_host_is_the_error_of_all() -> None:
    store = dist.HashStore()
    report(2, store).publish(PeerLost("rank 3 (pid 9) was killed by SIGKILL", [3]), 5.0)
    error = report(0, store).explain(PeerLost("lost the leader", [1]), 5.0)
    assert type(error) is PeerLost and error.ranks == (3,)
    assert str(error) == "rank 3 (pid 9) was killed by SIGKILL (on host 'beta')"


def test_a_host_that_does_not_answer_is_named() -> None:
    error = report(0, dist.HashStore()).explain(CommTimeout("no message came", [1]), 0.1)
    assert type(error) is CommTimeout and error.ranks == (2, 3)
    assert "no answer from host 'beta' (ranks [2, 3])" in str(error)


def test_without_a_store_the_error_keeps_its_text() -> None:
    error = report(0, None).explain(PeerLost("lost the leader", [1]), 5.0)
    assert error.ranks == (2,) and "lost the leader" in str(error)


def test_a_part_of_each_timeout_is_kept_for_reports() -> None:
    assert report_seconds(2.0) == 0.5
    assert report_seconds(1000.0) == 4.0
