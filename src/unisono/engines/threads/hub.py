"""Where ranks that are threads meet: tickets on boards.

Every call puts a ticket (what this rank calls, and with which memory) on the board of its turn. The
rank that completes the board does the work for all of them, for it can see everybody's memory, and
then all tickets are done. So a call never needs a thread of its own, and an asynchronous call is
one that does not wait for its ticket.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.core.buffers import Buffer
from unisono.core.dtypes import DType
from unisono.core.engine import ReduceOp, Work
from unisono.core.trace import Recorder, Tracer
from unisono.engines.common.reductions import Array
from unisono.engines.threads.collectives import VERBS
from unisono.errors import CommTimeout, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = ["CLOSED", "Call", "Hub", "Ticket", "disagree"]

#: The reason of a rank that has left its group as it should.
CLOSED = "closed the group"


@dataclass(frozen=True)
class Call:
    """What a rank calls. The first five fields must agree; counts must fit each other."""

    verb: str
    dtype: DType | None = None
    op: ReduceOp | None = None
    root: int | None = None
    count: int | None = None
    sends: tuple[int, ...] = field(default=(), compare=False)
    receives: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        words = [self.verb]
        if self.dtype is not None:
            words.append(self.dtype.name)
        if self.count is not None:
            words.append(f"x {self.count}")
        if self.op is not None:
            words.append(repr(self.op).removeprefix("ReduceOp.").lower())
        if self.root is not None:
            words.append(f"root {self.root}")
        if self.sends:
            words.append(f"sending {list(self.sends)}")
        if self.receives:
            words.append(f"receiving {list(self.receives)}")
        return " ".join(words)

    def share(self) -> int | None:
        """How many elements the rank gives or gets, for the records."""
        if self.count is not None or not self.sends:
            return self.count
        return max(self.sends + self.receives)


#: Numbers the worlds of this process, for the names of their traces.
_worlds = itertools.count()


class Ticket(Work):
    """One rank's part in a call: its call, its memory, and later the outcome."""

    def __init__(self, hub: Hub, rank: int, turn: int, call: Call, deadline: float) -> None:
        super().__init__()
        self.hub, self.rank, self.turn, self.call, self.deadline = hub, rank, turn, call, deadline
        self.patience = hub.timeout  # seconds until the deadline, as they were at the start
        self.src: Buffer | None = None
        self.dst: Buffer | None = None
        self.ended = threading.Event()
        self.failure: UnisonoError | None = None
        message = call.verb in ("send", "recv")
        self.record = hub.recorder.begin(
            hub.world_ranks[rank],
            hub.number,
            None if message else turn,
            call.verb,
            call.dtype.name if call.dtype is not None else None,
            call.share(),
            call.op.name if call.op is not None else None,
            call.root,
        )

    def end(self, failure: UnisonoError | None = None) -> None:
        """Note the outcome and wake whoever waits."""
        if not self.ended.is_set():
            self.hub.recorder.end(self.record, failure)
        self.failure = failure
        self.ended.set()

    def _poll(self) -> bool:
        return self.ended.is_set()

    def _block(self, timeout: float | None) -> None:
        left = self.deadline - time.monotonic()
        if timeout is not None and timeout < left:
            if not self.ended.wait(max(timeout, 0)):
                raise CommTimeout(f"{self.call} has not ended after {timeout:g} s")
        elif not self.ended.wait(max(left, 0)):
            self.hub.give_up(self)
        if self.failure is not None:
            # Each rank and each wait gets an error object of its own to write notes on.
            error = type(self.failure)(str(self.failure), self.failure.ranks)
            self.hub.tracer(self.rank).explain(error)
            raise error


class Hub:
    """What the threads of one group share: boards by turn, letters by receiver."""

    def __init__(
        self, ranks: Sequence[int], timeout: float, parent: Hub | None = None, key: str = ""
    ) -> None:
        self.ranks = tuple(ranks)  # of the parent's ranks, in our order
        self.size = len(self.ranks)
        self.parent = parent
        self.key = key
        self.timeout = timeout
        self.lock = threading.RLock()
        self.boards: dict[int, dict[int, Ticket]] = {}
        self.last: dict[int, Ticket] = {}  # by rank, of collectives
        self.gone: dict[int, str] = {}
        self.letters: list[tuple[int, int, int, Array, DType]] = []
        self.waiting: list[tuple[Ticket, int | None, int]] = []
        self.children: dict[str, Hub] = {}
        self.ended: set[int] = set()  # those of `gone` that will not come back to shrink the group
        self.shrinking: set[int] = set()
        self.waited: set[int] = set()  # for that, in vain
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

    def post(self, ticket: Ticket) -> Ticket:
        """Put a ticket on the board of its turn; whoever completes the board does the work."""
        with self.lock:
            board = self.boards.setdefault(ticket.turn, {})
            board[ticket.rank] = ticket
            self.last[ticket.rank] = ticket
            if len(board) == self.size:
                del self.boards[ticket.turn]
                _finish_board([board[rank] for rank in range(self.size)])
            else:
                self._fail_lonely()
        return ticket

    def leave(self, rank: int, reason: str, *, for_good: bool = True) -> None:
        """A rank is gone: calls that it has not joined can never end well.

        Unless that is `for_good` it still lives, and is gone from this group alone.
        """
        with self.lock:
            self.gone.setdefault(rank, reason)
            self._fail_lonely()
            if for_good:
                self.ended.add(rank)
                self.changed.notify_all()
                if self.parent is None:
                    self.recorder.states[rank] = "left" if reason == CLOSED else "ended"
                for child in list(self.children.values()):
                    if rank in child.ranks:
                        child.leave(child.ranks.index(rank), reason)
            forgotten = len(self.gone) == self.size
        if forgotten and self.parent is not None:
            self.parent.children.pop(self.key, None)

    def child(self, ranks: Sequence[int], key: str) -> Hub:
        """The hub of a subgroup; whoever of its members comes first makes it."""
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
                    self.waited.add(rank)
                    # Who gave up at the same deadline as we do is not to blame.
                    missing = sorted(absent - self.waited) or sorted(absent)
                    names = ", ".join(f"rank {other}" for other in missing)
                    deeds = "; ".join(f"rank {other}: {self._deed(other)}" for other in missing)
                    late = f"shrinking the group reached its timeout of {timeout:g} s"
                    raise CommTimeout(f"{late} waiting for {names}; last calls: {deeds}", missing)
                self._shrink_to(sorted((wanted & self.shrinking) - self.ended))
            assert self.shrunk is not None
            if self.world_ranks[rank] not in self.shrunk.world_ranks:
                raise NotReady("the others have shrunk the group without this rank")
            return self.shrunk

    def _shrink_to(self, survivors: Sequence[int]) -> None:
        """Make their hub. It hangs on the world's, for this one will be closed."""
        root = self
        while root.parent is not None:
            root = root.parent
        key = f"shrunk {self.number}"
        made = Hub([self.world_ranks[rank] for rank in survivors], self.timeout, root, key)
        # Without the root's lock: who holds that may wait for ours. So look at the dead afterwards.
        root.children[key] = made
        for place, world_rank in enumerate(made.ranks):
            if world_rank in root.ended:
                made.leave(place, root.gone[world_rank])
        self.shrunk = made

    def _end_calls(self, rank: int) -> None:
        """End what a rank has under way here: it will not wait for it any more."""
        closed = NotReady("the group was shrunk before this call had ended")
        for turn, board in list(self.boards.items()):
            if rank in board:
                del self.boards[turn]
                board.pop(rank).end(closed)
                for ticket in board.values():
                    text = f"rank {rank} {self.gone[rank]}; {ticket.call} cannot end"
                    ticket.end(PeerLost(text, [rank]))
        for ticket, _, _ in self.waiting:
            if ticket.rank == rank:
                ticket.end(closed)
        self.waiting = [entry for entry in self.waiting if not entry[0].ended.is_set()]

    def _fail_lonely(self) -> None:
        for board in self.boards.values():
            lost = [rank for rank in self.gone if rank not in board]
            if lost:
                text = "; ".join(
                    f"rank {rank} {self.gone[rank]}, its last call was {self._deed(rank)}"
                    for rank in lost
                )
                for ticket in board.values():
                    ticket.end(PeerLost(f"{text}; {ticket.call} cannot end", lost))
        for ticket, peer, _ in list(self.waiting):
            others = [r for r in range(self.size) if r != ticket.rank]
            if peer in self.gone or (
                peer is None and others and all(r in self.gone for r in others)
            ):
                lost = [peer] if peer is not None else others
                text = "; ".join(f"rank {rank} {self.gone[rank]}" for rank in lost)
                ticket.end(PeerLost(f"{text}; {ticket.call} cannot end", lost))
        self.waiting = [entry for entry in self.waiting if not entry[0].ended.is_set()]

    def give_up(self, ticket: Ticket) -> None:
        """The deadline has passed: say who is missing and what each rank did last."""
        with self.lock:
            if ticket.ended.is_set():
                return
            if ticket.call.verb == "recv":
                self.waiting = [entry for entry in self.waiting if entry[0] is not ticket]
                peer = ticket.call.root
                sender = "any rank" if peer is None else f"rank {peer}"
                text = f"no message from {sender} for {ticket.call} after {ticket.patience:g} s"
                ticket.end(CommTimeout(text, () if peer is None else (peer,)))
                return
            # The others on the board wait for the same ranks: without us their call cannot end.
            board = self.boards.pop(ticket.turn)
            missing = [rank for rank in range(self.size) if rank not in board]
            names = ", ".join(f"rank {rank}" for rank in missing)
            deeds = "; ".join(f"rank {rank}: {self._deed(rank)}" for rank in missing)
            here = ", ".join(f"rank {rank}{board[rank].record.story()}" for rank in sorted(board))
            for other in board.values():
                late = f"{other.call} (call {other.turn}){_at(other)} reached its timeout"
                text = f"{late} of {ticket.patience:g} s waiting for {names}"
                other.end(CommTimeout(f"{text}; last calls: {deeds}; arrived: {here}", missing))
            for rank, other in board.items():
                self.leave(rank, f"gave up {other.call} at its deadline", for_good=False)

    def _deed(self, rank: int) -> str:
        """What a rank does or did last, in this group or else in another."""
        ticket = self.last.get(rank)
        if ticket is not None:
            return f"{ticket.call} (call {ticket.turn}){ticket.record.story()}"
        record = self.recorder.last(self.world_ranks[rank])
        return f"{record.verb}{record.story()}" if record is not None else "no call yet"

    def deliver(self, source: int, target: int, tag: int, src: Buffer) -> None:
        """Give a copy of `src` to the first receive that fits it, or keep it."""
        with self.lock:
            for index, (ticket, peer, wanted) in enumerate(self.waiting):
                if ticket.rank == target and wanted == tag and peer in (None, source):
                    del self.waiting[index]
                    _hand_over(ticket, source, src.array, src.dtype)
                    return
            self.letters.append((source, target, tag, src.array.copy(), src.dtype))

    def collect(self, ticket: Ticket, peer: int | None, tag: int) -> Ticket:
        """Take the first letter that fits, or wait for one."""
        with self.lock:
            for index, (source, target, sent, array, dtype) in enumerate(self.letters):
                if target == ticket.rank and sent == tag and peer in (None, source):
                    del self.letters[index]
                    _hand_over(ticket, source, array, dtype)
                    return ticket
            self.waiting.append((ticket, peer, tag))
            self._fail_lonely()
        return ticket


def _hand_over(ticket: Ticket, source: int, array: Array, dtype: DType) -> None:
    dst = ticket.dst
    assert dst is not None
    ticket.source = source
    if dst.dtype is not dtype or dst.count != array.size:
        ticket.end(
            MismatchError(
                f"rank {source} sent {dtype.name} x {array.size}, "
                f"but rank {ticket.rank} receives {dst.dtype.name} x {dst.count}",
                [source, ticket.rank],
            )
        )
        return
    dst.array[:] = array
    ticket.end()


def _finish_board(tickets: list[Ticket]) -> None:
    """All ranks are here: compare what they call, do it, and end every ticket."""
    failure: UnisonoError | None = None
    if disagree([ticket.call for ticket in tickets]):
        sides: dict[str, list[Ticket]] = {}
        for ticket in tickets:
            sides.setdefault(str(ticket.call), []).append(ticket)
        text = "; ".join(_side(call, side) for call, side in sides.items())
        failure = MismatchError(f"ranks disagree in call {tickets[0].turn}: {text}")
    else:
        VERBS[tickets[0].call.verb](tickets)
    for ticket in tickets:
        ticket.end(failure)


def _side(call: str, tickets: list[Ticket]) -> str:
    """Who calls this, and from where; a rank of each place is enough."""
    ranks = ", ".join(str(ticket.rank) for ticket in tickets)
    places = " and".join(dict.fromkeys(filter(None, map(_at, tickets))))
    return (
        f"{'ranks' if len(tickets) > 1 else 'rank'} {ranks}: {call}, call {tickets[0].turn}{places}"
    )


def _at(ticket: Ticket) -> str:
    return f" at {ticket.record.place}" if ticket.record.place else ""


def disagree(calls: Sequence[Call]) -> bool:
    """Tell whether ranks call different things, or counts that do not fit each other."""
    if any(call != calls[0] for call in calls):
        return True
    return any(
        sender.sends[j] != receiver.receives[i]
        for i, sender in enumerate(calls)
        for j, receiver in enumerate(calls)
        if sender.sends and receiver.receives
    )
