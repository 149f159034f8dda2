"""What MPI's collectives are made of: calls that are waited for, exchanges, and the end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from unisono.core.call import Call
from unisono.core.engine import DRAIN_SECONDS, Engine, ReduceOp, Work
from unisono.engines.common import consistency
from unisono.engines.common.executor import SerialExecutor
from unisono.engines.common.reductions import Array, combine
from unisono.engines.mpi.datatypes import as_bytes
from unisono.engines.mpi.departures import DepartureNotices, GroupDepartures
from unisono.engines.mpi.library import translate_error
from unisono.engines.mpi.point_to_point import MessageQueue
from unisono.engines.mpi.requests import MPI_LOCK, Request, wait_for
from unisono.errors import ArgumentError, CommTimeout, NotReady, PeerLost

__all__ = ["FEW", "MpiPrimitives"]

FEW = 16  # ranks that exchange messages directly


class MpiPrimitives(Engine):
    """What the verbs of engine `mpi` have in common: one communicator, used in one order."""

    def __init__(
        self,
        communicator: Any,
        timeout: float,
        notices: DepartureNotices,
        group: int,
        world: Sequence[int],
    ) -> None:
        """`group` numbers the group in notices; `world` are its ranks in MPI's world."""
        from mpi4py import MPI

        communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self._mpi = MPI
        self._communicator = communicator
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()
        self.timeout = timeout
        # The lower half of the tags is the user's. The upper half is ours: one for exchanges, then
        # some for the data of messages, and those of groups that are being made.
        half = communicator.Get_attr(MPI.TAG_UB) // 2
        self._first_own_tag = half
        self._message_tags = range(half + 1, half + half // 2)
        self._split_tags = range(half + half // 2, 2 * half)
        self._departures = GroupDepartures(notices, group, self.rank, world, self.name)
        self._executor = SerialExecutor(f"{self.name}, rank {self.rank} of {self.size}")
        self._messages = MessageQueue(
            communicator, self.name, self._message_tags, self._departures.has_left
        )
        self._abandoned: list[object] = []  # requests that nobody waits for, and their memory
        self._broken = ""
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        self._executor.close(DRAIN_SECONDS)
        self._messages.close()
        with MPI_LOCK:
            self._closed = True
            if not self._mpi.Is_finalized():
                self._departures.close(self.size == self._mpi.COMM_WORLD.Get_size())
            self._departures.forget()
            # MPI keeps a communicator with calls under way; to free it might wait for others.
            abandoned = [self._abandoned, self._messages.abandoned]
            if any(abandoned):
                # MPI may use them until it is finalised, which is after Python's own end.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(abandoned))
            elif not self._mpi.Is_finalized():
                self._communicator.Free()

    def _check_tag(self, tag: int) -> None:
        if not 0 <= tag < self._first_own_tag:
            last = self._first_own_tag - 1
            raise ArgumentError(f"tag {tag} is out of range: this MPI leaves us 0 to {last}")

    def _start(self, call: Call, task: Callable[[Call], None]) -> Work:
        """Run a call, or queue it; if it is given up, its memory is kept, because MPI may use it.

        Ranks meet in the consistency check, so that a barrier needs nothing else.
        """

        def run() -> None:
            if self._broken:
                raise NotReady(f"{self.name}: {self._broken}, so this group can no longer be used")
            before = len(self._abandoned)
            try:
                self._check(entering=True)
                if call.checked or call.verb == "barrier":
                    self._check_consistency(call)
                task(call)
                self._departures.completed += 1
            finally:
                if len(self._abandoned) > before:
                    self._abandoned.append(call)

        return self._executor.submit(run, call.blocking)

    def _run(self, call: Call, start: Callable[[], Any], memory: object = None) -> None:
        """Start one of MPI's collectives, and wait for it."""
        self._wait(call.verb, call.timeout, lambda: [Request(start(), None, memory)])

    def _wait(
        self,
        verb: str,
        timeout: float,
        start: Callable[[], Iterable[Request]],
        among: Sequence[int] | None = None,
    ) -> None:
        """Start requests and wait for them; `among` are the ranks that matter, if not all do."""
        requests: list[Request] = []
        try:
            with MPI_LOCK:
                requests.extend(start())  # what has begun is in the list, even if the next fails

            def check(thorough: bool) -> None:
                self._check(among=among, departures=thorough)

            wait_for(requests, timeout, self.name, verb, check)
        except BaseException as error:
            if requests:
                self._give_up(verb, requests, error)
            if isinstance(error, self._mpi.Exception):
                raise translate_error(error, self.name, verb) from error
            raise

    def _give_up(self, verb: str, requests: list[Request], error: BaseException) -> None:
        """Keep what MPI still uses, and tell the others unless they know."""
        self._abandoned += requests
        late = isinstance(error, CommTimeout)
        how = "timed out" if late else "was given up"
        self._broken = f"an earlier {verb} {how} and ranks may be in different calls"
        if not isinstance(error, PeerLost | NotReady):
            with MPI_LOCK:
                self._departures.announce(late)

    def _check(
        self,
        entering: bool = False,
        among: Sequence[int] | None = None,
        departures: bool = True,
    ) -> None:
        """Raise if this engine is closed, or a rank that matters has left."""
        with MPI_LOCK:
            if self._closed or self._mpi.Is_finalized():
                raise NotReady(f"{self.name}: the engine is closed, or MPI was finalised")
        if departures:
            self._departures.check(entering, among)

    def _exchange(
        self, call: Call, sends: Sequence[Array | None], receives: Sequence[Array | None]
    ) -> None:
        """Send each rank its part and receive each rank's; where None is, there is no message."""
        own, mine = sends[self.rank], receives[self.rank]
        if own is not None and mine is not None and own.ctypes.data != mine.ctypes.data:
            mine[:] = own
        communicator, tag = self._communicator, self._first_own_tag

        def start() -> Iterator[Request]:
            for step in range(1, self.size):
                source, target = (self.rank - step) % self.size, (self.rank + step) % self.size
                into, out = receives[source], sends[target]
                if into is not None:
                    yield Request(communicator.Irecv(as_bytes(into), source, tag), source, into)
                if out is not None:
                    yield Request(communicator.Isend(as_bytes(out), target, tag), target, out)

        self._wait(call.verb, call.timeout, start)

    def _check_consistency(self, call: Call) -> None:
        """For few ranks in messages, which tell who is missing; MPI's trees are for more."""

        def exchange(mine: Array, everybodys: Array) -> None:
            if self.size <= FEW:
                parts = [part.reshape(-1) for part in everybodys]
                self._exchange(call, [mine.reshape(-1)] * self.size, parts)
            else:
                self._all_gather_equal(call, mine.reshape(-1), everybodys.reshape(-1))

        consistency.check(call, self.size, exchange)

    def _all_gather_equal(self, call: Call, source: Array, target: Array) -> None:
        out, into = as_bytes(source), as_bytes(target[: source.size])
        into[0] = target.view(np.uint8)
        self._run(call, lambda: self._communicator.Iallgather(out, into), (source, target))

    def _reduced_part(self, call: Call, parts: Sequence[Array], op: ReduceOp) -> Array:
        """This rank's part of a sum: everybody sends each rank what it has of its part."""
        operands = np.empty((self.size, parts[self.rank].size), parts[0].dtype)
        self._exchange(call, parts, list(operands))
        return combine(op, list(operands))

    def _await_members(self, ranks: Sequence[int], tag: int) -> None:
        """Return when all of `ranks` are here: the first hears of all, and answers."""
        first, others = ranks[0], [rank for rank in ranks if rank != ranks[0]]
        peers = others if self.rank == first else [first]
        communicator, nothing = self._communicator, np.empty(0, np.uint8)

        def send() -> Iterator[Request]:
            return (Request(communicator.Isend(as_bytes(nothing), to, tag), to) for to in peers)

        def receive() -> Iterator[Request]:
            return (Request(communicator.Irecv(as_bytes(nothing), of, tag), of) for of in peers)

        for step in (receive, send) if self.rank == first else (send, receive):
            self._wait("split", self.timeout, step, ranks)
