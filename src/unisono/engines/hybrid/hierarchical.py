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
from unisono.engines.common.consistency import Agreement, Call
from unisono.engines.common.executor import Serial
from unisono.engines.common.reductions import Array
from unisono.engines.hybrid.failure_report import RollCall, answer_time, renamed
from unisono.engines.hybrid.topology import Layout
from unisono.errors import MismatchError, NotReady, UnisonoError

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
        for lane in self._lanes:
            lane.trusting = True  # all ranks have compared their calls before leaders meet
        self.leaders = self._lanes[0] if self._lanes else None
        self.here = layout.hosts[layout.host]
        home = f"{key} on {layout.names[layout.host]}"
        self._home = Group(home, range(local.size), local, local.rank)
        self._roll_call = RollCall(layout, everyone)
        self._agreement = Agreement(self.size, self._show)
        self._verdict: UnisonoError | None = None  # of the leader, about the other hosts
        self._broken: UnisonoError | None = None
        self.serial = Serial(f"{self.name}, rank {self.rank} of {self.size}")

    def local_ranks(self) -> Sequence[int]:
        return self.here

    def exit(self) -> None:
        self.local.exit()

    def close(self) -> None:
        self.serial.close(_DRAIN)
        for engine in (*self._lanes, self.everyone, self.local):
            engine.close()

    def even(self, counts: Counts, share: int) -> list[int]:
        """The count of each rank."""
        return [share] * self.size if counts is None else list(counts)

    def start(self, call: Call, job: Callable[[], None], blocking: bool) -> Work:
        """Run a call, or queue it. After a mismatch all ranks are in step; other errors end it."""

        def guarded() -> None:
            if self._broken is not None:
                raise NotReady(f"the group is broken since an earlier call: {self._broken}")
            # A host that misses one of its own ranks says so while the others still wait for it.
            talk = answer_time(self.timeout)
            self.local.timeout = self.timeout - talk
            for lane in self._lanes:
                lane.timeout = self.timeout - talk / 2
            try:
                self._agreement.reach(call)
                job()
            except MismatchError:
                raise
            except UnisonoError as error:
                if error is not self._verdict:
                    error = renamed(error, self.here)
                    self._roll_call.report(error, talk)
                self._broken = error
                for engine in self._lanes:
                    engine.close()  # the other hosts' leaders hear of it, and tell theirs
                raise error from None

        return self.serial.start(guarded, blocking)

    def _show(self, verb: str, mine: Array, everybodys: Array) -> None:
        """Give all ranks a copy of everybody's array: through leaders, in one exchange."""
        own = mine.reshape(-1)
        counts = [own.size] * self.size
        blocks = [np.empty(length, own.dtype) for length in self.layout.by_host(counts)]
        block = blocks[self.layout.host]
        self.collect(own, block, counts[: len(self.here)])
        whole = np.concatenate(blocks)
        lengths = [block.size for block in blocks]
        self.between(lambda net: net.all_gather(view(block), view(whole), lengths, True))
        self.spread(whole)
        blocks = np.split(whole, np.cumsum(lengths)[:-1])
        everybodys.reshape(-1)[:] = self.layout.to_rank_order(blocks, counts)

    # ---- between hosts ----

    def between(self, step: Callable[[Engine], Work]) -> None:
        """Let leaders do something together; the other ranks wait, and hear how it went."""
        if self.leaders is None:
            self.across(None)
            return
        try:
            work = step(self.leaders)
        except UnisonoError as error:
            self._tell(self._explained(error))
        else:
            self.across(work)

    def across(self, work: Work | None) -> None:
        """Wait for what leaders began (`work` is None on the others), and tell how it went."""
        failure = None
        if work is not None:
            try:
                work.wait()
            except UnisonoError as error:
                failure = self._explained(error)
        self._tell(failure)

    def _explained(self, error: UnisonoError) -> UnisonoError:
        return self._roll_call.explained(error, answer_time(self.timeout))

    def _tell(self, failure: UnisonoError | None) -> None:
        """The leader's verdict, for all ranks of the host: one small broadcast, two on failure."""
        failed = np.array([failure is not None])
        # The leader may have waited for the network and for answers until its deadline.
        before, self.local.timeout = self.local.timeout, self.timeout + _MARGIN
        try:
            self.spread(failed)
            self._verdict = objects.broadcast(self._home, failure, 0) if failed[0] else None
        except UnisonoError:
            if failure is None:
                raise
            self._verdict = failure  # a rank that is gone now is not what went wrong
        finally:
            self.local.timeout = before
        if self._verdict is not None:
            raise self._verdict

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
