"""How ranks ended, and which of them caused the failure of their job.

When one rank fails the others fail too, because they wait for it. `culprit` finds the one to show
to the user, for `unisono run`, for `unisono.spawn` and for the pytest plugin. It decides by data:
the exit status of each rank and, where there is one, the error that the rank reported.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unisono.errors import CommTimeout, PeerLost

__all__ = ["Blame", "ErrorSummary", "RankOutcome", "by_blame", "culprit", "exit_code", "exit_text"]


class Blame(enum.IntEnum):
    """What a failure says about its rank: the lower, the more likely it is the cause."""

    KILLED = 0  # by a signal, which no failure of another rank sends
    FAILED = 1  # by an error of its own, or with an exit code that says no more
    TIMED_OUT = 2  # it waited for another rank that did not come
    LOST_A_PEER = 3  # another rank was gone
    STOPPED = 4  # we ended it


@dataclass(frozen=True)
class ErrorSummary:
    """What a rank reports about the error that ended it."""

    type: str
    blame: Blame = Blame.FAILED

    @classmethod
    def of(cls, error: BaseException) -> ErrorSummary:
        """Summarise an error and those that led to it, as a traceback would show them.

        >>> ErrorSummary.of(PeerLost("rank 2 was killed", [2]))
        ErrorSummary(type='PeerLost', blame=<Blame.LOST_A_PEER: 3>)
        """
        blame = Blame.FAILED
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            if isinstance(link, PeerLost):
                blame = max(blame, Blame.LOST_A_PEER)
            elif isinstance(link, CommTimeout):
                blame = max(blame, Blame.TIMED_OUT)
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return cls(type(error).__name__, blame)

    def to_data(self) -> dict[str, Any]:
        """Describe this as plain data that JSON can carry."""
        return {"type": self.type, "blame": self.blame.name}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ErrorSummary:
        """Read what `to_data` made; ValueError or KeyError if it is something else."""
        return cls(str(data["type"]), Blame[data["blame"]])


@dataclass(frozen=True)
class RankOutcome:
    """How a rank failed.

    `code` is its exit status as Python counts it, None if it is still running; `error` what it
    reported; `stopped` why its supervisor ended it, if that came first.
    """

    rank: int
    code: int | None = None
    error: ErrorSummary | None = None
    stopped: str | None = None

    @property
    def blame(self) -> Blame:
        """How likely this rank is the cause."""
        if self.stopped is not None:
            return Blame.STOPPED
        if self.code is not None and self.code < 0:
            return Blame.KILLED
        return Blame.FAILED if self.error is None else self.error.blame


def by_blame(failures: Iterable[RankOutcome]) -> list[RankOutcome]:
    """Sort failures by how likely they are the cause; equals stay in their order."""
    return sorted(failures, key=lambda outcome: outcome.blame)


def culprit(failures: Iterable[RankOutcome]) -> RankOutcome:
    """Choose the rank that most likely caused the others to fail; among equals, the first.

    >>> lost = ErrorSummary("PeerLost", Blame.LOST_A_PEER)
    >>> culprit([RankOutcome(0, 1, lost), RankOutcome(2, 1), RankOutcome(1, 1)]).rank
    2
    """
    return by_blame(failures)[0]


def exit_code(pid: int) -> int | None:
    """Tell how a child has ended, as Python counts it, or None while it runs; do not collect it.

    Until somebody collects it, other processes can read its exit status too, and ranks that have
    lost it can say how it ended. ChildProcessError means that somebody has collected it.
    """
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def exit_text(code: int) -> str:
    """Describe how a process ended, from the exit status that Python gives.

    >>> exit_text(3), exit_text(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"  # most real-time signals have no name
