"""Who has left: a rank that closes a group, or gives up a call in it, tells the others.

MPI would let them wait. The notices travel on a communicator of their own that lives as long as MPI
does, so that one which comes late cannot be taken for a message of a newer group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from unisono.engines.common.reductions import Array

__all__ = ["Leaver", "Notices"]

#: Seconds for which ranks that wait in vain as well may still find out by themselves for whom.
_GRACE = 1.0
_PAUSE = 0.05  # seconds without a question
_FAREWELL = 0.3  # seconds in which others may leave as well
_CATCH_UP = 50  # questions after that


class Leaver:
    """How many calls of the group a rank has brought to their end, and when that is final."""

    def __init__(self, calls: int, final: float) -> None:
        self.calls = calls
        self.final = final


class Notices:
    """The notices of this process, for all its groups; used with the lock of MPI held."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._groups: dict[int, dict[int, Leaver]] = {}
        self._sent: list[tuple[Any, Array]] = []
        self._listened = 0.0

    def join(self, group: int) -> dict[int, Leaver]:
        """Who has left this group, from now on."""
        return self._groups.setdefault(group, {})

    def forget(self, group: int) -> None:
        """Hear no more of a group."""
        self._groups.pop(group, None)

    def tell(self, group: int, rank: int, calls: int, others: Iterable[int], late: bool) -> None:
        """Say that `rank` leaves; `others` are ranks of the world."""
        words = np.array([group, rank, calls, late], np.int64)
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        self._sent += [(self._communicator.Isend(words, other), words) for other in others]

    def hear_out(self, group: int, count: int) -> None:
        """Take in the notices of so many ranks, if they come soon.

        Ranks of a good job leave together, and some MPIs complain of messages that nobody takes.
        """
        deadline = time.monotonic() + _FAREWELL
        while len(self._groups[group]) < count and time.monotonic() < deadline:
            self.listen()

    def listen(self) -> None:
        """Take in what has come."""
        now = time.monotonic()
        # MPI takes in little at a time, and after a pause much may be there before a notice.
        questions = 1 if now - self._listened < _PAUSE else _CATCH_UP
        self._listened = now
        words = np.empty(4, np.int64)
        while questions:
            message = self._communicator.Improbe()
            if message is None:
                questions -= 1
                continue
            message.Recv(words)
            group, rank, calls, late = words.tolist()
            if group in self._groups:
                final = now + (_GRACE if late else 0.0)
                self._groups[group].setdefault(rank, Leaver(calls, final))
