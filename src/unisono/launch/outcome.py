"""How ranks ended, and which of them caused the failure of their job.

When one rank fails the others fail too, because they wait for it. `culprit` finds the one to show
to the user, for `unisono run`, for `unisono.spawn` and for the pytest plugin. It decides by data:
the exit status of each rank and, where there is one, the error that the rank reported.
"""

from __future__ import annotations

import enum
import os
import re
import signal
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError

__all__ = [
    "Blame",
    "ErrorSummary",
    "RankOutcome",
    "by_blame",
    "culprit",
    "exit_code",
    "exit_text",
    "name_ranks",
    "number_list",
]

_FEW = 8  # so many ranks are named one by one
_LONGEST = 500  # characters of a text that a rank reports
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


class Blame(enum.IntEnum):
    """What a failure says about its rank: the lower, the more likely it is the cause."""

    KILLED = 0  # by a signal, which no failure of another rank sends
    FAILED = 1  # by an error of its own, or with an exit code that says no more
    TIMED_OUT = 2  # it waited for another rank that did not come
    LOST_A_PEER = 3  # another rank was gone
    STOPPED = 4  # we ended it


@dataclass(frozen=True)
class ErrorSummary:
    """What a rank reports about the error that ended it.

    `message` is its first line, `ranks` those that it is about, `site` the user's line that raised
    it. `side` is what this rank called, where ranks disagree.
    """

    type: str
    blame: Blame = Blame.FAILED
    message: str = ""
    ranks: tuple[int, ...] = ()
    site: str = ""
    side: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorSummary:
        """Summarise an error and those that led to it, as a traceback would show them.

        >>> ErrorSummary.of(PeerLost("rank 2 was killed", [2])).blame
        <Blame.LOST_A_PEER: 3>
        """
        blame = Blame.FAILED
        ours: UnisonoError | None = None
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            if isinstance(link, PeerLost):
                blame = max(blame, Blame.LOST_A_PEER)
            elif isinstance(link, CommTimeout):
                blame = max(blame, Blame.TIMED_OUT)
            if isinstance(link, UnisonoError):
                ours = link
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        return cls(
            type(error).__name__,
            blame,
            str(error).partition("\n")[0][:_LONGEST],
            () if ours is None else ours.ranks,
            _site(error),
            _side(ours) if isinstance(ours, MismatchError) else "",
        )

    def to_data(self) -> dict[str, Any]:
        """Describe this as plain data that JSON can carry."""
        return {**asdict(self), "blame": self.blame.name}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ErrorSummary:
        """Read what `to_data` made; ValueError, KeyError or TypeError if it is something else."""
        blame = Blame[data["blame"]]
        ranks = tuple(map(int, data.get("ranks", ())))
        texts = {name: str(data.get(name, "")) for name in ("message", "site", "side")}
        return cls(str(data["type"]), blame, ranks=ranks, **texts)


def _site(error: BaseException) -> str:
    """The innermost line of the user's own files that led to an error, such as "train.py:88"."""
    found = ""
    libraries = tuple(set(sysconfig.get_paths().values()))
    step = error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        # A library in Cython names its source by a path that is not there.
        is_built = name.endswith(".pyx") and not Path(name).exists()
        if not is_built and not name.startswith((_PACKAGE, "<", *libraries)):
            found = f"{name.removeprefix(_here())}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _here() -> str:
    try:
        return str(Path.cwd()) + os.sep
    except OSError:  # the working directory is gone
        return ""


def _side(error: MismatchError) -> str:
    """What this rank called, from the error's text and from the note that says where it was."""
    notes = " ".join(getattr(error, "__notes__", ()))
    here = re.search(r", rank (\d+) of \d+", notes)
    if here is None:
        return ""
    for ranks, call in re.findall(
        r"; ranks? ([\d, ]+): (.+?)(?=; ranks? [\d, ]+: |\n|$)", str(error)
    ):
        if here[1] in ranks.split(", "):
            return str(call)[:_LONGEST]
    return ""


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


def name_ranks(ranks: Iterable[int]) -> str:
    """Name ranks in a sentence; neighbours become ranges where they are many.

    >>> name_ranks([2]), name_ranks([0, 1, 3]), name_ranks([*range(1000), 2000])
    ('rank 2', 'ranks 0, 1, 3', 'ranks 0-999, 2000')
    """
    numbers = sorted(ranks)
    return f"rank{'' if len(numbers) == 1 else 's'} {number_list(numbers)}"


def number_list(ranks: Iterable[int]) -> str:
    """The same without the word.

    >>> number_list([0, 1, 3]), number_list(range(1000))
    ('0, 1, 3', '0-999')
    """
    numbers = sorted(ranks)
    if len(numbers) <= _FEW:
        return ", ".join(map(str, numbers))
    runs: list[list[int]] = []
    for rank in numbers:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
