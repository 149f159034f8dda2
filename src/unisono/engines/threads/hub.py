"""What the threads of one group share: the calls that wait for ranks, and messages.

Every collective has a turn. A rank adds its call to those of its turn; the rank that comes last
does the work for all of them, because it sees everybody's memory, and then all calls have ended. So
a call never needs a thread of its own, and an asynchronous call is one that does not wait.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence

import numpy as np

from unisono.core.buffers import Buffer
from unisono.core.dtypes import DType
from unisono.core.trace import Tracer
from unisono.engines.common.consistency import Descriptor, compare
from unisono.engines.common.reductions import Array
from unisono.engines.threads.collectives import COLLECTIVES
from unisono.engines.threads.pending_call import PendingCall
from unisono.engines.threads.recorder import Recorder
from unisono.errors import CommTimeout, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = ["CLOSED", "Hub"]

#: The reason of a rank that has left its group as it should.
CLOSED = "closed the group"

_NO_CALL = "no call yet"

#: Numbers the worlds of this process, for the names of their traces.
_worlds = itertools.count()


class Hub:
    """One group of threads. The rank that comes last to a collective does it for all."""

    def __init__(
        self, ranks: Sequence[int], timeout: float, parent: Hub | None = None, key: str = ""
    ) -> None:
        self.ranks = tuple(ranks)  # of the parent's ranks, in our order
        self.size = len(self.ranks)
        self.parent = parent
        self.key = key
        self.timeout = timeout
        self.lock = threading.RLock()
        self.arrived: dict[int, dict[int, PendingCall]] = {}  # by turn and rank
        self.last: dict[int, PendingCall] = {}  # by rank, of collectives
        self.gone: dict[int, str] = {}
        #: Messages that came before their receive: source, target, tag, data, dtype.
        self.unexpected: list[tuple[int, int, int, Array, DType]] = []
        #: Receives whose message has not come.
        self.receives: list[PendingCall] = []
        self.children: dict[str, Hub] = {}
        self.ended: set[int] = set()  # those of `gone` that will not come back to shrink the group
        self.shrinking: set[int] = set()
        self.gave_up_shrinking: set[int] = set()
        self.shrunk: Hub | None = None
        self.changed = threading.Condition(self.lock)  # of the three above
        if parent is None:
            self.job = f"threads {os.getpid()}.{next(_worlds)}"
            self.world_ranks = self.ranks
            self.recorder = Recorder(self.size)
        else:
            self.job = parent.job
            self.world_ranks = tuple(parent.world_ranks[rank] for rank in self.ranks)
            self.recorder = parent.recorder
        self.number = self.recorder.new_group()

    def tracer(self, rank: int) -> Tracer:
        """What writes the job's trace for a rank of this group."""
        return Tracer(self.job, self.world_ranks[rank], self.recorder)

    # ---- collectives ----

    def arrive(self, pending: PendingCall) -> PendingCall:
        """Add a call to those of its turn; the rank that completes them does the work."""
        with self.lock:
            here = self.arrived.setdefault(pending.turn, {})
            here[pending.rank] = pending
            self.last[pending.rank] = pending
            if len(here) == self.size:
                del self.arrived[pending.turn]
                _complete([here[rank] for rank in range(self.size)])
            else:
                self._fail_hopeless()
        return pending

    def give_up(self, pending: PendingCall) -> None:
        """End a call whose deadline has passed: say who is missing and what each did last."""
        with self.lock:
            if pending.ended.is_set():
                return
            if pending.call.verb == "recv":
                self._give_up_receive(pending)
                return
            # The other ranks of this turn wait for the same ranks: without us it cannot end.
            here = self.arrived.pop(pending.turn)
            missing = [rank for rank in range(self.size) if rank not in here]
            names = ", ".join(f"rank {rank}" for rank in missing)
            last = "; ".join(f"rank {rank}: {self._last_call(rank)}" for rank in missing)
            arrived = ", ".join(f"rank {rank}{here[rank].record.age()}" for rank in sorted(here))
            for other in here.values():
                late = f"{other.call} (call {other.turn}){_at(other)} reached its timeout"
                text = f"{late} of {pending.call.timeout:g} s waiting for {names}"
                other.end(CommTimeout(f"{text}; last calls: {last}; arrived: {arrived}", missing))
            for rank, other in here.items():
                self.leave(rank, f"gave up {other.call} at its deadline", for_good=False)

    # ---- membership ----

    def leave(self, rank: int, reason: str, *, for_good: bool = True) -> None:
        """A rank is gone: calls that it has not joined can never end well.

        Unless it is gone `for_good` it still lives, and is gone from this group alone.
        """
        with self.lock:
            self.gone.setdefault(rank, reason)
            self._fail_hopeless()
            if for_good:
                self.ended.add(rank)
                self.changed.notify_all()
                if self.parent is None:
                    self.recorder.states[rank] = "left" if reason == CLOSED else "ended"
                for child in list(self.children.values()):
                    if rank in child.ranks:
                        child.leave(child.ranks.index(rank), reason)
            unused = len(self.gone) == self.size
        if unused and self.parent is not None:
            self.parent.children.pop(self.key, None)

    def child(self, ranks: Sequence[int], key: str) -> Hub:
        """The hub of a subgroup; the first of its members to ask makes it."""
        with self.lock:
            if key not in self.children:
                self.children[key] = Hub(ranks, self.timeout, self, key)
            return self.children[key]

    def shrink(self, rank: int, exclude: Sequence[int], timeout: float) -> Hub:
        """The hub of the members that are alive, once each of them asks for it."""
        with self.lock:
            self.shrinking.add(rank)
            self.leave(rank, "left the group to shrink it", for_good=False)
            self._end_calls(rank)
            self.changed.notify_all()
            wanted = set(range(self.size)) - set(exclude)
            self.changed.wait_for(
                lambda: self.shrunk or wanted <= self.shrinking | self.ended, timeout
            )
            if self.shrunk is None:
                absent = wanted - self.shrinking - self.ended
                if absent:
                    self.shrinking.discard(rank)
                    self.gave_up_shrinking.add(rank)
                    # A rank that gave up at the same deadline as this one is not the cause.
                    missing = sorted(absent - self.gave_up_shrinking) or sorted(absent)
                    names = ", ".join(f"rank {other}" for other in missing)
                    last = "; ".join(f"rank {other}: {self._last_call(other)}" for other in missing)
                    late = f"shrinking the group reached its timeout of {timeout:g} s"
                    raise CommTimeout(f"{late} waiting for {names}; last calls: {last}", missing)
                self._shrink_to(sorted((wanted & self.shrinking) - self.ended))
            assert self.shrunk is not None
            if self.world_ranks[rank] not in self.shrunk.world_ranks:
                raise NotReady("the others have shrunk the group without this rank")
            return self.shrunk

    def _shrink_to(self, survivors: Sequence[int]) -> None:
        """Make their hub. Its parent is the world's hub, because this one will be closed."""
        root = self
        while root.parent is not None:
            root = root.parent
        key = f"shrunk {self.number}"
        made = Hub([self.world_ranks[rank] for rank in survivors], self.timeout, root, key)
        # Without the root's lock: its owner may wait for ours. So look at ended ranks afterwards.
        root.children[key] = made
        for position, world_rank in enumerate(made.ranks):
            if world_rank in root.ended:
                made.leave(position, root.gone[world_rank])
        self.shrunk = made

    def _end_calls(self, rank: int) -> None:
        """End what a rank has under way here: it will not wait for it any more."""
        closed = NotReady("the group was shrunk before this call had ended")
        for turn, here in list(self.arrived.items()):
            if rank in here:
                del self.arrived[turn]
                here.pop(rank).end(closed)
                for pending in here.values():
                    text = f"rank {rank} {self.gone[rank]}; {pending.call} cannot end"
                    pending.end(PeerLost(text, [rank]))
        for pending in self.receives:
            if pending.rank == rank:
                pending.end(closed)
        self._forget_ended_receives()

    def _fail_hopeless(self) -> None:
        """End the calls that wait for a rank that is gone."""
        for here in self.arrived.values():
            lost = [rank for rank in self.gone if rank not in here]
            if lost:
                text = "; ".join(
                    f"rank {rank} {self.gone[rank]}, {self._history(rank)}" for rank in lost
                )
                for pending in here.values():
                    pending.end(PeerLost(f"{text}; {pending.call} cannot end", lost))
        for pending in list(self.receives):
            peer = pending.call.peer
            others = [rank for rank in range(self.size) if rank != pending.rank]
            senders = others if peer is None else [peer]
            if senders and all(rank in self.gone for rank in senders):
                text = "; ".join(f"rank {rank} {self.gone[rank]}" for rank in senders)
                pending.end(PeerLost(f"{text}; {pending.call} cannot end", senders))
        self._forget_ended_receives()

    def _history(self, rank: int) -> str:
        last = self._last_call(rank)
        return "it has made no call yet" if last == _NO_CALL else f"its last call was {last}"

    def _last_call(self, rank: int) -> str:
        """What a rank calls or called last, in this group or else in another."""
        pending = self.last.get(rank)
        if pending is not None:
            return f"{pending.call} (call {pending.turn}){pending.record.age()}"
        record = self.recorder.last(self.world_ranks[rank])
        return f"{record.verb}{record.age()}" if record is not None else _NO_CALL

    # ---- point-to-point ----

    def send(self, source: int, target: int, tag: int, data: Buffer) -> None:
        """Give a copy of `data` to the first receive that matches, or keep it until one does."""
        with self.lock:
            for index, pending in enumerate(self.receives):
                call = pending.call
                if (pending.rank, call.tag) == (target, tag) and call.peer in (None, source):
                    del self.receives[index]
                    _deliver(pending, source, data.array, data.dtype)
                    return
            self.unexpected.append((source, target, tag, data.array.copy(), data.dtype))

    def receive(self, pending: PendingCall) -> PendingCall:
        """Take the first message that matches, or wait for one."""
        call = pending.call
        with self.lock:
            for index, (source, target, tag, data, dtype) in enumerate(self.unexpected):
                if (target, tag) == (pending.rank, call.tag) and call.peer in (None, source):
                    del self.unexpected[index]
                    _deliver(pending, source, data, dtype)
                    return pending
            self.receives.append(pending)
            self._fail_hopeless()
        return pending

    def _give_up_receive(self, pending: PendingCall) -> None:
        self.receives = [other for other in self.receives if other is not pending]
        peer = pending.call.peer
        sender = "any rank" if peer is None else f"rank {peer}"
        text = f"no message from {sender} for {pending.call} after {pending.call.timeout:g} s"
        pending.end(CommTimeout(text, () if peer is None else (peer,)))

    def _forget_ended_receives(self) -> None:
        self.receives = [pending for pending in self.receives if not pending.ended.is_set()]


def _deliver(pending: PendingCall, source: int, data: Array, dtype: DType) -> None:
    destination = pending.call.dst
    pending.source = source
    if destination.dtype is not dtype or destination.count != data.size:
        pending.end(
            MismatchError(
                f"rank {source} sent {dtype.name} x {data.size}, but rank {pending.rank} receives "
                f"{destination.dtype.name} x {destination.count}",
                [source, pending.rank],
            )
        )
        return
    destination.array[:] = data
    pending.end()


def _complete(pending: list[PendingCall]) -> None:
    """All ranks are here: compare their calls, do the work, and end every call."""
    calls = [one.call for one in pending]

    def counts() -> Array:
        return np.array([[call.sends, call.receives] for call in calls], np.int64)

    failure: UnisonoError | None = None
    try:
        descriptors = [Descriptor.of(call) for call in calls]
        compare(pending[0].turn, descriptors, counts if calls[0].sends else None)
        COLLECTIVES[calls[0].verb](calls)
    except MismatchError as mismatch:
        failure = mismatch
    for one in pending:
        one.end(failure)


def _at(pending: PendingCall) -> str:
    return f" at {pending.call.site}" if pending.call.site else ""
