"""The last line of a job: who caused its failure, by data and with real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.launcher import run
from unisono.launch.outcome import Blame, ErrorSummary, RankOutcome, name_ranks
from unisono.launch.verdict import judge

LOST = ErrorSummary("PeerLost", Blame.LOST_A_PEER, "rank 1 is gone", (1,), "train.py:9")
LATE = ErrorSummary("CommTimeout", Blame.TIMED_OUT, "too late", (1, 3), "train.py:9")
OWN = ErrorSummary("ValueError", Blame.FAILED, "no data", (), "train.py:5")


def side(rank: int, text: str) -> RankOutcome:
    return RankOutcome(rank, 1, ErrorSummary("MismatchError", side=text))


@pytest.mark.parametrize(
    ("failures", "code", "text", "others"),
    [
        ([RankOutcome(1, 7)], 7, "rank 1 of 4 failed: exit code 7", ""),
        (
            [RankOutcome(0, 1, LOST), RankOutcome(2, 3, OWN)],
            3,
            "rank 2 of 4 failed: ValueError at train.py:5: no data",
            "rank 0 (exit code 1)",
        ),
        (
            [RankOutcome(2, 1, LATE), RankOutcome(0, 1, LATE)],
            1,
            "rank 2 of 4 failed: CommTimeout at train.py:9, waiting for ranks 1, 3",
            "rank 0 (exit code 1)",
        ),
        (
            [RankOutcome(0, 1, LOST)],
            1,
            "rank 0 of 4 failed: PeerLost at train.py:9: rank 1 had left",
            "",
        ),
        (
            [
                side(0, "barrier at a.py:1"),
                side(1, "reduce at a.py:2"),
                side(3, "barrier at a.py:1"),
            ],
            1,
            "rank 1 differs: a.py:2 (reduce); ranks 0, 3: a.py:1 (barrier)",
            "ranks 0, 3 (exit code 1)",
        ),
        (
            [side(0, "barrier at a.py:1"), side(1, "reduce")],
            1,
            "ranks disagree: rank 0: a.py:1 (barrier); rank 1: reduce",
            "rank 1 (exit code 1)",
        ),
        (
            [RankOutcome(1, 1, ErrorSummary("BdbQuit", site="train.py:3"))],
            1,
            "rank 1 of 4 failed: BdbQuit at train.py:3: it has no terminal; give it one with "
            "--tty 1",
            "",
        ),
    ],
    ids=["a code", "an error", "a timeout", "a loss", "one differs", "two disagree", "pdb"],
)
def test_verdict(failures: list[RankOutcome], code: int, text: str, others: str) -> None:
    verdict = judge(failures, set(), 4)
    assert (verdict.code, verdict.text, verdict.others) == (code, text, others)


def test_ranks_that_were_left_behind() -> None:
    killed, failed = RankOutcome(1, -9), RankOutcome(2, 3)
    verdict = judge([killed, failed], {1, 2}, 4)
    assert verdict.code == 0 and verdict.rank is None
    assert verdict.text == (
        "ranks 0, 3 of 4 ended well, without rank 1 (killed by SIGKILL), rank 2 (exit code 3)"
    )
    assert judge([killed, failed], {1}, 4).rank == 2
    assert judge([], {1}, 4).text == ""


def test_an_error_after_a_shrink_is_an_own_one() -> None:
    """Python chains it to the loss that it was raised behind."""
    chained = ErrorSummary("ValueError", Blame.LOST_A_PEER, "no data", (1,), "train.py:5")
    verdict = judge(
        [RankOutcome(1, -9), RankOutcome(0, 1, LOST), RankOutcome(2, 1, chained)], {1}, 4
    )
    assert verdict.rank == 2
    assert verdict.text == "rank 2 of 4 failed: ValueError at train.py:5: no data"


def test_many_ranks_are_ranges() -> None:
    assert name_ranks([*range(3, 20), 30]) == "ranks 3-19, 30"


MISMATCH = """import numpy as np
import unisono.torch.distributed as dist

dist.init_process_group()
x = np.ones(4 if {same_shape} or dist.get_rank() != 2 else 5)
if {same_line} or dist.get_rank() != 2:
    dist.all_reduce(x)
else:
    dist.broadcast(x, src=0)
"""


def test_a_mismatch_ends_with_who_differs(tmp_path: Path) -> None:
    (tmp_path / "mismatch.py").write_text(MISMATCH.format(same_line=False, same_shape=True))
    done = run("-n", "4", "mismatch.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "unisono: rank 2 differs: mismatch.py:9 (broadcast float64 x 4 root 0, call 1); "
        "ranks 0, 1, 3: mismatch.py:7 (all_reduce float64 x 4 sum, call 1)"
    )
    # Two tracebacks: that of the three is shown once, and that of the culprit last.
    starts = [line for line in done.stderr.splitlines() if "Traceback" in line]
    assert starts == [f"[{who}] Traceback (most recent call last):" for who in ("0,1,3", "2")]


def test_the_line_may_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "mismatch.py").write_text(MISMATCH.format(same_line=True, same_shape=False))
    done = run("-n", "4", "mismatch.py", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith(
        "unisono: rank 2 differs: mismatch.py:7 (all_reduce float64 x 5 sum, call 1); ranks 0, 1, 3"
    )
    assert done.stderr.count("Traceback") == 1
    assert "[0,1,2,3] " in done.stderr
