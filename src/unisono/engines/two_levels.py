"""The steps that calls on several hosts are made of: within a host, between leaders, in pieces.

Every rank of a host makes the same calls on `local`, in the same order; only the leader has
`leaders`. What a step needs, whom it waits for and what it moves stands at each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from unisono.core import objects
from unisono.core.buffers import view
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.groups import Group
from unisono.engines.arithmetic import Array
from unisono.engines.between import RollCall, answer_time
from unisono.engines.layout import Layout
from unisono.engines.serial import Serial
from unisono.errors import NotReady, UnisonoError

__all__ = ["TwoLevels"]

_PIECE = 2 << 20  # bytes that cross the network at a time
_DRAIN = 2.0  # seconds that close() lets queued calls go on
_MARGIN = 5.0  # seconds that a leader may be late beyond its deadline
_LANES = 3  # groups of leaders: while one computes or waits for an answer, others send


class TwoLevels(Engine):
    """Ranks of several hosts: an engine within each host, and one between their leaders."""

    def __init__(self, layout: Layout, local: Engine, everyone: Engine, key: str) -> None:
        self.layout = layout
        self.rank = layout.rank
        self.size = layout.size
        self.timeout = everyone.timeout
        self.local = local
        self.everyone = everyone
        self._lanes: list[Engine] = []
        if layout.is_leader:
            names = [f"{key} leaders {lane}" for lane in range(_LANES)]
            self._lanes = [everyone.split(layout.leaders, name) for name in names]
        self.leaders = self._lanes[0] if self._lanes else None
        self.here = layout.hosts[layout.host]
        home = f"{key} on {layout.names[layout.host]}"
        self._home = Group(home, range(local.size), local, local.rank)
        self._roll_call = RollCall(layout, everyone)
        self._broken: UnisonoError | None = None
        self.serial = Serial(f"{self.name}, rank {self.rank} of {self.size}")

    def close(self) -> None:
        self.serial.close(_DRAIN)
        for engine in (*self._lanes, self.everyone, self.local):
            engine.close()

    def even(self, counts: Counts, share: int) -> list[int]:
        """The count of each rank."""
        return [share] * self.size if counts is None else list(counts)

    def start(self, job: Callable[[], None], blocking: bool) -> Work:
        """Run a call, or queue it. An error that other hosts cannot know of ends the group."""

        def guarded() -> None:
            if self._broken is not None:
                raise NotReady(f"the group is broken since an earlier call: {self._broken}")
            self.local.timeout = self.timeout
            for lane in self._lanes:
                lane.timeout = self.timeout - answer_time(self.timeout)
            try:
                job()
            except UnisonoError as error:
                self._broken = error
                for engine in self._lanes:
                    engine.close()  # the other hosts' leaders hear of it, and tell theirs
                raise

        return self.serial.start(guarded, blocking)

    # ---- between hosts ----

    def between(self, step: Callable[[Engine], Work]) -> None:
        """Let leaders do something together; the other ranks wait, and hear how it went."""
        if self.leaders is None:
            self.across(None)
            return
        try:
            work = step(self.leaders)
        except UnisonoError as error:
            self._tell(self._named(error))
        else:
            self.across(work)

    def across(self, work: Work | None) -> None:
        """Wait for what leaders began (`work` is None on the others), and tell how it went."""
        failure = None
        if work is not None:
            try:
                work.wait()
            except UnisonoError as error:
                failure = self._named(error)
        self._tell(failure)

    def _named(self, error: UnisonoError) -> UnisonoError:
        return self._roll_call.named(error, answer_time(self.timeout))

    def _tell(self, failure: UnisonoError | None) -> None:
        """The leader's verdict, for all ranks of the host: one small broadcast, two on failure."""
        verdict = np.array([failure is not None])
        # The leader may have waited for the network and for answers until its deadline.
        self.local.timeout = self.timeout + _MARGIN
        try:
            self.spread(verdict)
            told = objects.broadcast(self._home, failure, 0) if verdict[0] else None
        except UnisonoError as error:
            raise (failure or error) from None  # a rank that is gone now is not what went wrong
        finally:
            self.local.timeout = self.timeout
        if told is not None:
            raise told

    def in_pieces(
        self,
        like: Array,
        out: Callable[[slice, Engine | None], Work | None],
        back: Callable[[slice], None],
    ) -> None:
        """Cut a vector into pieces; `out` hands one to the network, `back` gets it from there.

        A piece is on each lane while `out` prepares the next one; `out` gets the lane, which only
        leaders have. All ranks of a host do this in one order, so that their local calls agree.
        """
        flight: deque[tuple[slice, Work | None]] = deque()

        def land() -> None:
            piece, work = flight.popleft()
            self.across(work)
            back(piece)

        for number, piece in enumerate(_pieces(like)):
            lane = self._lanes[number % _LANES] if self._lanes else None
            flight.append((piece, out(piece, lane)))
            if len(flight) > _LANES:
                land()
        while flight:
            land()

    # ---- within a host ----

    def spread(self, target: Array, source: Array | None = None, place: int = 0) -> None:
        """Copy an array of one local rank, the leader unless said otherwise, to all of them."""
        into = view(target)
        given = into if source is None else view(source)
        self.local.broadcast(given if self.local.rank == place else None, into, place, True)

    def reduce_here(self, source: Array, target: Array, op: ReduceOp) -> None:
        """Combine the arrays of the host's ranks into the leader's."""
        into = view(target) if self.layout.is_leader else None
        self.local.reduce(view(source), into, op, 0, True)

    def collect(self, source: Array, whole: Array, counts: Sequence[int]) -> None:
        """Join the arrays of the host's ranks in the leader's."""
        leads = self.layout.is_leader
        into = view(whole) if leads else None
        self.local.gather(view(source), into, 0, counts if leads else None, True)

    def deal(self, whole: Array, target: Array, counts: Sequence[int]) -> None:
        """Deal the leader's array out to the host's ranks."""
        leads = self.layout.is_leader
        source = view(whole) if leads else None
        self.local.scatter(source, view(target), 0, counts if leads else None, True)

    def hand(self, array: Array, giver: int, taker: int) -> None:
        """Copy an array from one local rank to another."""
        if giver == taker:
            return
        if self.local.rank == giver:
            self.local.send(view(array), taker, 0, True).wait()
        elif self.local.rank == taker:
            self.local.recv(view(array), giver, 0, True).wait()

    def counts_here(self, count: int) -> list[int]:
        """What each rank of the host says."""
        counts = np.zeros(self.local.size, np.int64)
        self.local.all_gather(view(np.array([count])), view(counts), None, True)
        return [int(each) for each in counts]


def _pieces(like: Array) -> Iterator[slice]:
    """Stretches that are not too long for the network, at least one."""
    step = max(1, _PIECE // like.itemsize)
    for start in range(0, max(len(like), 1), step):
        yield slice(start, min(start + step, len(like)))
