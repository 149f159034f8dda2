"""The steps that calls on several hosts are made of: within a host, between leaders, in chunks.

Every rank of a host takes the same local steps in the same order; only leaders take part in
inter-node steps. What a step needs, whom it waits for and what it moves stands at each of them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from unisono import errors
from unisono.core.buffers import view
from unisono.core.call import Call, Caller
from unisono.core.engine import Engine, ReduceOp, Work
from unisono.engines.common.inner_calls import broadcast_bytes, inner_caller
from unisono.engines.common.reductions import Array
from unisono.engines.hybrid.failure_report import FailureReport, report_seconds
from unisono.engines.hybrid.topology import Topology
from unisono.errors import UnisonoError

__all__ = ["LANES", "Levels", "Steps"]

_CHUNK_BYTES = 2 << 20  # that cross the network at a time
_MARGIN_SECONDS = 5.0  # by which a leader may be late beyond its deadline
LANES = 3  # groups of leaders: while one computes or waits for an answer, others send


class Levels(NamedTuple):
    """The engines of one rank: within its host, between leaders (on leaders only), and of all."""

    topology: Topology
    local: Engine
    lanes: tuple[Engine, ...]
    everyone: Engine
    report: FailureReport


class Steps:
    """The steps of one call. Its deadline is divided between the levels.

    A host that misses one of its own ranks says so while the other hosts still wait for it; so
    local steps end before inter-node steps do, and those before the call.
    """

    def __init__(self, levels: Levels, call: Call) -> None:
        self.topology, self._local, self._lanes, _, self._report = levels
        self._call = call
        self.report_seconds = report_seconds(call.timeout)
        self._caller = inner_caller(self._local, call.timeout - self.report_seconds, site=call.site)
        #: What the leader has told about the other hosts, if that is an error.
        self.verdict: UnisonoError | None = None

    @property
    def leaders(self) -> Engine | None:
        """The engine between leaders; None on ranks that do not lead."""
        return self._lanes[0] if self._lanes else None

    def internode_caller(self, lane: Engine, *, blocking: bool = True) -> Caller:
        """The caller of a call between leaders."""
        timeout = self._call.timeout - self.report_seconds / 2
        return inner_caller(lane, timeout, blocking=blocking, site=self._call.site)

    # ---- between hosts ----

    def internode(self, step: Callable[[Engine, Caller], Work]) -> None:
        """Let leaders do something together; the other ranks wait, and learn how it went."""
        if self.leaders is None:
            self.await_internode(None)
            return
        try:
            work = step(self.leaders, self.internode_caller(self.leaders))
        except UnisonoError as error:
            self._tell(self._explain(error))
        else:
            self.await_internode(work)

    def await_internode(self, work: Work | None) -> None:
        """Wait for what leaders began (`work` is None on the others), and tell how it went."""
        failure = None
        if work is not None:
            try:
                work.wait()
            except UnisonoError as error:
                failure = self._explain(error)
        self._tell(failure)

    def _explain(self, error: UnisonoError) -> UnisonoError:
        return self._report.explain(error, self.report_seconds)

    def _tell(self, failure: UnisonoError | None) -> None:
        """Tell all ranks of the host the leader's verdict: one broadcast, three on failure."""
        failed = np.array([failure is not None])
        # The leader may have waited for the network and for answers until its deadline.
        timeout = self._call.timeout + _MARGIN_SECONDS
        try:
            self._broadcast(failed, failed, 0, timeout)
            if failed[0]:
                data = json.dumps(failure.to_data()).encode() if failure is not None else b""
                told = broadcast_bytes(self._local, data, 0, timeout)
                self.verdict = failure or errors.from_data(json.loads(told))
        except UnisonoError:
            if failure is None:
                raise
            self.verdict = failure  # a rank that is gone now is not what went wrong
        if self.verdict is not None:
            raise self.verdict

    def pipeline(
        self,
        like: Array,
        start: Callable[[slice, Engine | None], Work | None],
        finish: Callable[[slice], None],
    ) -> None:
        """Cut a vector into chunks: `start` gives one to the network, `finish` gets it from there.

        A chunk is on each lane while `start` prepares the next one; it gets the lane, which only
        leaders have. All ranks of a host do this in one order, so that their local calls agree.
        """
        under_way: deque[tuple[slice, Work | None]] = deque()

        def complete() -> None:
            chunk, work = under_way.popleft()
            self.await_internode(work)
            finish(chunk)

        for number, chunk in enumerate(_chunks(like)):
            lane = self._lanes[number % LANES] if self._lanes else None
            under_way.append((chunk, start(chunk, lane)))
            if len(under_way) > LANES:
                complete()
        while under_way:
            complete()

    # ---- within a host ----

    def broadcast(self, target: Array, source: Array | None = None, root: int = 0) -> None:
        """Copy an array of one local rank, the leader unless said otherwise, to all of them."""
        self._broadcast(target, target if source is None else source, root, self._caller.timeout)

    def _broadcast(self, target: Array, source: Array, root: int, timeout: float) -> None:
        caller = self._caller._replace(timeout=timeout)
        self._local.broadcast(Call.broadcast(caller, view(source), view(target), root)).wait()

    def reduce(self, source: Array, target: Array, op: ReduceOp) -> None:
        """Combine the arrays of the host's ranks into the leader's."""
        self._local.reduce(Call.reduce(self._caller, view(source), view(target), op, 0)).wait()

    def gather(self, source: Array, whole: Array, counts: Sequence[int]) -> None:
        """Join the arrays of the host's ranks in the leader's."""
        call = Call.gather(self._caller, view(source), view(whole), 0, counts)
        self._local.gather(call).wait()

    def scatter(self, whole: Array, target: Array, counts: Sequence[int]) -> None:
        """Distribute the leader's array to the host's ranks."""
        call = Call.scatter(self._caller, view(whole), view(target), 0, counts)
        self._local.scatter(call).wait()

    def all_gather(self, mine: Array, everybodys: Array) -> None:
        """Join the arrays of the host's ranks on each of them."""
        call = Call.all_gather(self._caller, view(mine), view(everybodys))
        self._local.all_gather(call).wait()

    def copy(self, array: Array, sender: int, receiver: int) -> None:
        """Copy an array from one local rank to another."""
        if sender == receiver:
            return
        if self._local.rank == sender:
            self._local.send(Call.send(self._caller, view(array), receiver)).wait()
        elif self._local.rank == receiver:
            self._local.recv(Call.recv(self._caller, view(array), sender)).wait()


def _chunks(like: Array) -> Iterator[slice]:
    """Stretches that are not too long for the network, at least one."""
    step = max(1, _CHUNK_BYTES // like.itemsize)
    for start in range(0, max(len(like), 1), step):
        yield slice(start, min(start + step, len(like)))
