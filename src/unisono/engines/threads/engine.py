"""Ranks are threads of one process: the readable reference, in plain Python and NumPy.

The engine only says what is called; `board` brings the ranks together and does the work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from unisono.core.buffers import Buffer
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.core.trace import Rank
from unisono.engines.threads.hub import CLOSED, Call, Hub, Ticket
from unisono.errors import LaunchError, NotReady, UnisonoError

__all__ = ["ThreadsEngine", "threads_world"]


class ThreadsEngine(Engine):
    """One rank's handle on a hub."""

    name = "threads"

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub = hub
        self.rank = rank
        self.size = hub.size
        self.timeout = hub.timeout
        self._turn = 0
        self._closed = False
        self._shrunk = False

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> ThreadsEngine:
        if launch.size != 1:
            raise LaunchError(
                f"ranks of engine 'threads' live in one process, but {launch.source} started "
                f"{launch.size} processes; use engine 'shm', or unisono.spawn"
            )
        return cls(Hub([0], timeout), 0)

    def _ticket(self, call: Call) -> Ticket:
        if self._closed:
            raise NotReady("the engine is closed")
        if self._shrunk:
            raise NotReady("the group was shrunk; use the new one")
        ticket = Ticket(self.hub, self.rank, self._turn, call, time.monotonic() + self.timeout)
        ticket.patience = self.timeout
        return ticket

    def _collective(
        self, call: Call, src: Buffer | None, dst: Buffer | None, blocking: bool
    ) -> Work:
        self._turn += 1
        ticket = self._ticket(call)
        ticket.src, ticket.dst = src, dst
        return self._answer(self.hub.post(ticket), blocking)

    def _answer(self, ticket: Ticket, blocking: bool) -> Work:
        if blocking:
            ticket.wait()
        return ticket

    def _even(self, counts: Counts, share: int) -> tuple[int, ...]:
        return (share,) * self.size if counts is None else tuple(counts)

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        call = Call("broadcast", dst.dtype, root=root, count=dst.count)
        return self._collective(call, src, dst, blocking)

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        call = Call("reduce", src.dtype, op, root, src.count)
        return self._collective(call, src, dst if self.rank == root else None, blocking)

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        return self._collective(
            Call("all_reduce", src.dtype, op, None, src.count), src, dst, blocking
        )

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        sends = self._even(counts, dst.count)
        call = Call("reduce_scatter", src.dtype, op, None, None, sends, (dst.count,) * self.size)
        return self._collective(call, src, dst, blocking)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        at_root = self.rank == root
        sends = tuple(src.count if rank == root else 0 for rank in range(self.size))
        receives = self._even(counts, src.count) if at_root else (0,) * self.size
        call = Call("gather", src.dtype, None, root, None, sends, receives)
        return self._collective(call, src, dst if at_root else None, blocking)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        receives = self._even(counts, src.count)
        call = Call("all_gather", src.dtype, None, None, None, (src.count,) * self.size, receives)
        return self._collective(call, src, dst, blocking)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends = self._even(counts, dst.count) if self.rank == root else (0,) * self.size
        receives = tuple(dst.count if rank == root else 0 for rank in range(self.size))
        call = Call("scatter", dst.dtype, None, root, None, sends, receives)
        return self._collective(call, src, dst, blocking)

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        call = Call(
            "all_to_all",
            src.dtype,
            sends=self._even(sends, src.count // self.size),
            receives=self._even(receives, dst.count // self.size),
        )
        return self._collective(call, src, dst, blocking)

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        ticket = self._ticket(Call("send", src.dtype, root=peer, count=src.count))
        self.hub.deliver(self.rank, peer, tag, src)
        ticket.end()
        return ticket

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        ticket = self._ticket(Call("recv", dst.dtype, root=peer, count=dst.count))
        ticket.dst = dst
        return self._answer(self.hub.collect(ticket, peer, tag), blocking)

    def barrier(self, blocking: bool) -> Work:
        return self._collective(Call("barrier"), None, None, blocking)

    def split(self, ranks: Sequence[int], key: str) -> ThreadsEngine:
        return ThreadsEngine(self.hub.child(ranks, key), list(ranks).index(self.rank))

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[ThreadsEngine, tuple[int, ...]]:
        try:
            hub = self.hub.shrink(self.rank, exclude, self.timeout)
        except UnisonoError as error:
            self.hub.tracer(self.rank).explain(error)
            raise
        self._shrunk = True
        here = self.hub.world_ranks
        engine = ThreadsEngine(hub, hub.world_ranks.index(here[self.rank]))
        engine.timeout = self.timeout
        return engine, tuple(here.index(rank) for rank in hub.world_ranks)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.hub.leave(self.rank, CLOSED)

    def records(self) -> list[Rank]:
        return self.hub.recorder.look()


def threads_world(size: int, timeout: float) -> list[ThreadsEngine]:
    """The engines of `size` ranks that are to be threads of this process."""
    hub = Hub(range(size), timeout)
    return [ThreadsEngine(hub, rank) for rank in range(size)]
