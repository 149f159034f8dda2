"""The steps that MPI's collectives are made of: calls that are waited for, exchanges, the end."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from unisono.core.buffers import Buffer
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.engines.common.consistency import Agreement, Call
from unisono.engines.common.executor import Serial
from unisono.engines.common.reductions import Array, combine
from unisono.engines.mpi import datatypes
from unisono.engines.mpi.datatypes import as_bytes
from unisono.engines.mpi.departures import Notices
from unisono.engines.mpi.requests import CALLING, Mailbox, Request, wait_for
from unisono.errors import ArgumentError, CommTimeout, NotReady, PeerLost

__all__ = ["FEW", "MpiSteps"]

_DRAIN = 2.0  # seconds that close() lets queued calls go on
FEW = 16  # ranks that exchange words directly
_OVERTAKING = 0.2  # seconds by which a notice may come before a message that was sent first


class MpiSteps(Engine):
    """What the verbs of engine `mpi` have in common: one communicator, used in one order."""

    def __init__(
        self, communicator: Any, timeout: float, notices: Notices, group: int, world: Sequence[int]
    ) -> None:
        from mpi4py import MPI

        communicator.Set_errhandler(MPI.ERRORS_RETURN)
        self._mpi = MPI
        self._communicator = communicator
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()
        self.timeout = timeout
        self._patience = timeout  # of the call that runs
        # The lower half of the tags is the user's. The upper half is ours: one for exchanges, then
        # some for what is in messages, and those of groups that are being made.
        half = communicator.Get_attr(MPI.TAG_UB) // 2
        self._first_own_tag = half
        self._message_tags = range(half + 1, half + half // 2)
        self._meeting_tags = range(half + half // 2, 2 * half)
        self._serial = Serial(f"{self.name}, rank {self.rank} of {self.size}")
        self._mailbox = Mailbox(communicator, self.name, self._message_tags, self._has_left)
        self._notices = notices
        self._group = group
        self._world = world  # the members' ranks in MPI's world
        self._agreement = Agreement(self.size, self._show)
        self._calls = 0  # collectives that this rank has brought to their end
        self._leavers = notices.join(group)
        self._abandoned: list[object] = []  # requests that nobody waits for, and their memory
        self._broken = ""
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        self._serial.close(_DRAIN)
        self._mailbox.close()
        with CALLING:
            self._closed = True
            if not self._mpi.Is_finalized():
                self._leave(late=False)
                if len(self._world) == self._mpi.COMM_WORLD.Get_size():
                    self._notices.hear_out(self._group, self.size - 1)
            self._notices.forget(self._group)
            # MPI keeps a communicator with calls under way; to free it might wait for others.
            abandoned = [self._abandoned, self._mailbox.abandoned]
            if any(abandoned):
                # MPI may go on with them until it is finalised, which is after Python's own end.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(abandoned))
            elif not self._mpi.Is_finalized():
                self._communicator.Free()

    def _even(self, counts: Counts, share: int) -> list[int]:
        return [share] * self.size if counts is None else list(counts)

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < self._first_own_tag:
            last = self._first_own_tag - 1
            raise ArgumentError(f"tag {tag} is out of range: this MPI leaves us 0 to {last}")
        return tag

    def _start(
        self, call: Call, job: Callable[[], None], blocking: bool, *memory: Buffer | None
    ) -> Work:
        """Run a call, or queue it; if it is given up, its memory is kept, for MPI may use it."""
        patience = self.timeout

        def guarded() -> None:
            if self._broken:
                raise NotReady(f"{self.name}: {self._broken}, so this group is of no use any more")
            self._patience = patience
            before = len(self._abandoned)
            try:
                self._look_around(True, entering=True)
                if not self.trusting or call.verb == "barrier":
                    self._agreement.reach(call)
                job()
                self._calls += 1
            finally:
                if len(self._abandoned) > before:
                    self._abandoned.append(memory)

        return self._serial.start(guarded, blocking)

    def _call(self, name: str, start: Callable[[], Any], memory: object = None) -> None:
        """Start one of MPI's collectives, and wait for it."""
        self._wait(name, lambda: [Request(start(), None, memory)])

    def _wait(
        self, name: str, start: Callable[[], Iterable[Request]], among: Sequence[int] | None = None
    ) -> None:
        """Start requests and wait for them; `among` are the ranks that matter, if not all do."""
        requests: list[Request] = []
        try:
            with CALLING:
                requests.extend(start())  # what has begun is in the list, even if the next fails
            wait_for(
                requests,
                self._patience,
                self.name,
                name,
                lambda far: self._look_around(far, among=among),
            )
        except BaseException as error:
            if requests:
                self._give_up(name, requests, error)
            if isinstance(error, self._mpi.Exception):
                raise datatypes.understood(error, self.name, name) from error
            raise

    def _give_up(self, name: str, requests: list[Request], error: BaseException) -> None:
        """Keep what MPI still has, and tell the others unless they know."""
        self._abandoned += requests
        late = isinstance(error, CommTimeout)
        how = "timed out" if late else "was given up"
        self._broken = f"an earlier {name} {how} and ranks may be in different calls"
        if not isinstance(error, PeerLost | NotReady):
            with CALLING:
                self._leave(late)

    def _leave(self, late: bool) -> None:
        others = [rank for rank in self._world if rank != self._world[self.rank]]
        self._notices.tell(self._group, self.rank, self._calls, others, late)

    def _look_around(
        self, far: bool, entering: bool = False, among: Sequence[int] | None = None
    ) -> None:
        """Raise if this engine is gone; if it is to look `far`, also if a rank is."""
        with CALLING:
            if self._closed or self._mpi.Is_finalized():
                raise NotReady(f"{self.name}: the engine is closed, or MPI was finalised")
            if not far:
                return
            self._notices.listen()
        now = time.monotonic()
        lost = [
            rank
            for rank, leaver in sorted(self._leavers.items())
            if leaver.calls <= self._calls
            and (entering or leaver.final <= now)
            and (among is None or rank in among)
        ]
        if lost:
            names = " and ".join(f"rank {rank}" for rank in lost)
            raise PeerLost(f"{self.name}: {names} closed the group, or gave up a call in it", lost)

    def _has_left(self, peer: int | None) -> bool:
        """Whether no message will come from a rank any more, nor be taken by it."""
        self._notices.listen()
        final = time.monotonic() - _OVERTAKING
        gone = {rank for rank, leaver in self._leavers.items() if leaver.final < final}
        return peer in gone or (peer is None and len(gone) == self.size - 1 > 0)

    def _exchange(
        self, name: str, sends: Sequence[Array | None], receives: Sequence[Array | None]
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

        self._wait(name, start)

    def _show(self, verb: str, mine: Array, everybodys: Array) -> None:
        """For few ranks in messages, which tell who is missing; MPI's trees are for more."""
        if self.size <= FEW:
            parts = [part.reshape(-1) for part in everybodys]
            self._exchange(verb, [mine.reshape(-1)] * self.size, parts)
        else:
            self._all_gather_equal(verb, mine.reshape(-1), everybodys.reshape(-1))

    def _all_gather_equal(self, name: str, source: Array, target: Array) -> None:
        out, into = as_bytes(source), as_bytes(target[: source.size])
        into[0] = target.view(np.uint8)
        self._call(name, lambda: self._communicator.Iallgather(out, into), (source, target))

    def _fold(self, name: str, parts: Sequence[Array], op: ReduceOp) -> Array:
        """This rank's part of a sum: everybody sends each rank what it has of its part."""
        operands = np.empty((self.size, parts[self.rank].size), parts[0].dtype)
        self._exchange(name, parts, list(operands))
        return combine(op, list(operands))

    def _meet(self, ranks: Sequence[int], tag: int) -> None:
        """Return when all of `ranks` are here: the first hears of all, and answers."""
        first, others = ranks[0], [rank for rank in ranks if rank != ranks[0]]
        peers = others if self.rank == first else [first]
        communicator, nothing = self._communicator, np.empty(0, np.uint8)

        def send() -> Iterator[Request]:
            return (Request(communicator.Isend(as_bytes(nothing), to, tag), to) for to in peers)

        def hear() -> Iterator[Request]:
            return (Request(communicator.Irecv(as_bytes(nothing), of, tag), of) for of in peers)

        for turn in (hear, send) if self.rank == first else (send, hear):
            self._wait("split", turn, ranks)
