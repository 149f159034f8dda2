"""The last words about a job that had failures: who caused them, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unisono.launch.outcome import Blame, RankOutcome, culprit, exit_text, name_ranks

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """What to say at the end of a job, the rank that it is about, and the job's exit code."""

    code: int
    text: str = ""
    others: str = ""
    rank: int | None = None


def judge(failures: Sequence[RankOutcome], left_behind: set[int], size: int) -> Verdict:
    """Find who caused the failures; those of ranks that the others left behind are no failure.

    >>> killed = RankOutcome(1, -9)
    >>> judge([killed], set(), 2)
    Verdict(code=137, text='rank 1 of 2 failed: killed by SIGKILL', others='', rank=1)
    >>> judge([killed], {1}, 2).text
    'rank 0 of 2 ended well, without rank 1 (killed by SIGKILL)'
    """
    if not failures:
        return Verdict(0)
    unresolved = [_own(one, left_behind) for one in failures if one.rank not in left_behind]
    if not unresolved:
        well = set(range(size)) - {one.rank for one in failures}
        lost = ", ".join(_folded(failures))
        return Verdict(0, f"{name_ranks(well)} of {size} ended well, without {lost}")
    sides = _sides(unresolved)
    cause = culprit(unresolved)
    if len(sides) > 1 and cause.error is not None and cause.error.side:
        few, *more = sorted(sides, key=lambda side: len(sides[side]))
        cause = min(sides[few], key=lambda one: one.rank)
        text = _disagreement(sides, few, more)
    else:
        text = f"rank {cause.rank} of {size} failed: {_reason(cause)}"
    others = [one for one in failures if one.rank != cause.rank]
    return Verdict(_code(cause), text, ", ".join(_folded(others)), cause.rank)


def _own(outcome: RankOutcome, left_behind: set[int]) -> RankOutcome:
    """A failure after a shrink is its rank's own, though Python chains it to the loss before."""
    error = outcome.error
    if (
        error is not None
        and error.blame == Blame.LOST_A_PEER
        and error.type != "PeerLost"
        and error.ranks
        and left_behind.issuperset(error.ranks)
    ):
        return replace(outcome, error=replace(error, blame=Blame.FAILED))
    return outcome


def _folded(outcomes: Sequence[RankOutcome]) -> list[str]:
    """Name ranks with how they ended, those that ended alike together."""
    alike: dict[str, list[int]] = {}
    for one in sorted(outcomes, key=lambda one: one.rank):
        alike.setdefault(_ending(one), []).append(one.rank)
    return [f"{name_ranks(ranks)} ({ending})" for ending, ranks in alike.items()]


def _sides(failures: Sequence[RankOutcome]) -> dict[str, list[RankOutcome]]:
    """The ranks that disagree, by what they called."""
    sides: dict[str, list[RankOutcome]] = {}
    for one in failures:
        if one.error is not None and one.error.side:
            sides.setdefault(one.error.side, []).append(one)
    return sides


def _disagreement(sides: dict[str, list[RankOutcome]], few: str, more: Sequence[str]) -> str:
    def ranks(side: str) -> str:
        return name_ranks(one.rank for one in sides[side])

    rest = "; ".join(f"{ranks(side)}: {_at(side)}" for side in more)
    if len(sides[few]) == len(sides[more[0]]):
        return f"ranks disagree: {ranks(few)}: {_at(few)}; {rest}"  # nobody knows who is wrong
    differ = "differs" if len(sides[few]) == 1 else "differ"
    return f"{ranks(few)} {differ}: {_at(few)}; {rest}"


def _at(side: str) -> str:
    """A call, the line first: "train.py:8 (broadcast float64 x 4 root 0, call 1)"."""
    call, at, site = side.rpartition(" at ")
    return f"{site} ({call})" if at else side


def _reason(outcome: RankOutcome) -> str:
    error = outcome.error
    if error is None or outcome.blame == Blame.KILLED:
        return _ending(outcome)
    at = f" at {error.site}" if error.site else ""
    if error.type in ("BdbQuit", "EOFError"):
        return f"{error.type}{at}: it has no terminal; give it one with --tty {outcome.rank}"
    if error.blame == Blame.TIMED_OUT and error.ranks:
        return f"{error.type}{at}, waiting for {name_ranks(error.ranks)}"
    if error.blame == Blame.LOST_A_PEER and error.ranks:
        return f"{error.type}{at}: {name_ranks(error.ranks)} had left"
    said = f": {error.message}" if error.message else ""
    return f"{error.type}{at}{said}"


def _ending(outcome: RankOutcome) -> str:
    assert outcome.code is not None
    return exit_text(outcome.code)


def _code(outcome: RankOutcome) -> int:
    assert outcome.code is not None
    return outcome.code if outcome.code > 0 else 128 - outcome.code
