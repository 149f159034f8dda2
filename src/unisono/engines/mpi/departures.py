"""Ranks that have left: a rank that closes a group, or gives up a call in it, tells the others.

MPI would let them wait. The notices travel on a communicator of their own that lives as long as MPI
does, so that a late one cannot be taken for a message of a newer group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from unisono.engines.common.reductions import Array
from unisono.engines.mpi.requests import MPI_LOCK
from unisono.errors import PeerLost

__all__ = ["DepartureNotices", "GroupDepartures"]

#: Seconds for which ranks that wait in vain too may still find out by themselves for whom.
_GRACE_SECONDS = 1.0
_QUIET_SECONDS = 0.05  # without a poll
_LEAVE_TOGETHER_SECONDS = 0.3  # in which other ranks may leave as well
_POLLS_AFTER_QUIET = 50
_OVERTAKING_SECONDS = 0.2  # by which a notice may come before a message that was sent first


class _Departure:
    """How many calls of the group a rank has completed, and when that is final."""

    def __init__(self, calls: int, final: float) -> None:
        self.calls = calls
        self.final = final


class DepartureNotices:
    """The notices of this process, for all its groups; used with the lock of MPI held."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._groups: dict[int, dict[int, _Departure]] = {}
        self._sent: list[tuple[Any, Array]] = []
        self._listened = 0.0

    def join(self, group: int) -> dict[int, _Departure]:
        """The departures of a group, by rank; filled from now on."""
        return self._groups.setdefault(group, {})

    def forget(self, group: int) -> None:
        """Ignore further notices of a group."""
        self._groups.pop(group, None)

    def tell(self, group: int, rank: int, calls: int, others: Iterable[int], late: bool) -> None:
        """Say that `rank` leaves; `others` are ranks of the world."""
        notice = np.array([group, rank, calls, late], np.int64)
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        self._sent += [(self._communicator.Isend(notice, other), notice) for other in others]

    def await_others(self, group: int, count: int) -> None:
        """Receive the notices of `count` ranks, if they come soon.

        Ranks of a good job leave together, and some MPIs complain of messages that nobody takes.
        """
        deadline = time.monotonic() + _LEAVE_TOGETHER_SECONDS
        while len(self._groups[group]) < count and time.monotonic() < deadline:
            self.listen()

    def listen(self) -> None:
        """Receive the notices that have come."""
        now = time.monotonic()
        # MPI takes in little at a time, and after a pause much may be there before a notice.
        polls = 1 if now - self._listened < _QUIET_SECONDS else _POLLS_AFTER_QUIET
        self._listened = now
        notice = np.empty(4, np.int64)
        while polls:
            message = self._communicator.Improbe()
            if message is None:
                polls -= 1
                continue
            message.Recv(notice)
            group, rank, calls, late = notice.tolist()
            if group in self._groups:
                final = now + (_GRACE_SECONDS if late else 0.0)
                self._groups[group].setdefault(rank, _Departure(calls, final))


class GroupDepartures:
    """Who has left one group, as one of its ranks knows it, and this rank's own departure."""

    def __init__(
        self, notices: DepartureNotices, group: int, rank: int, world: Sequence[int], engine: str
    ) -> None:
        """`world` are the members' ranks in MPI's world."""
        self.notices = notices
        self.world = world
        self.completed = 0  # collectives that this rank has brought to their end
        self._group = group
        self._rank = rank
        self._engine = engine
        self._departures = notices.join(group)

    def announce(self, late: bool) -> None:
        """Tell the other ranks that this one leaves; `late` says that a deadline has passed."""
        others = [rank for rank in self.world if rank != self.world[self._rank]]
        self.notices.tell(self._group, self._rank, self.completed, others, late)

    def check(self, entering: bool = False, among: Sequence[int] | None = None) -> None:
        """Raise if a rank that matters (`among`, or any) has left before the current call.

        A rank that is only `entering` the call need not wait for a departure to be final.
        """
        with MPI_LOCK:
            self.notices.listen()
        now = time.monotonic()
        lost = [
            rank
            for rank, departure in sorted(self._departures.items())
            if departure.calls <= self.completed
            and (entering or departure.final <= now)
            and (among is None or rank in among)
        ]
        if lost:
            names = " and ".join(f"rank {rank}" for rank in lost)
            raise PeerLost(
                f"{self._engine}: {names} closed the group, or gave up a call in it", lost
            )

    def has_left(self, peer: int | None) -> bool:
        """Whether a peer, or every peer, will send and receive no more messages."""
        self.notices.listen()
        final = time.monotonic() - _OVERTAKING_SECONDS
        gone = {rank for rank, departure in self._departures.items() if departure.final < final}
        return peer in gone or (peer is None and len(gone) == len(self.world) - 1 > 0)

    def close(self, everyone: bool) -> None:
        """Leave; if the group is `everyone`, wait a moment for the others to leave too."""
        self.announce(late=False)
        if everyone:
            self.notices.await_others(self._group, len(self.world) - 1)

    def forget(self) -> None:
        """Ignore further notices."""
        self.notices.forget(self._group)
