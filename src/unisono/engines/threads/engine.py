"""Ranks are threads of one process: the readable reference, in plain Python and NumPy.

The engine hands each call to the group's `Hub`, which brings the ranks together and does the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.core.call import Call
from unisono.core.engine import Engine, Work
from unisono.core.environment import Launch
from unisono.core.trace import RankReport
from unisono.engines.threads.hub import CLOSED, Hub
from unisono.engines.threads.pending_call import PendingCall
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

    # Every collective is the same here: the hub knows what each verb does.

    def _collective(self, call: Call) -> Work:
        self._turn += 1
        pending = self._pending(call)
        self.hub.arrive(pending)
        if call.blocking:
            pending.wait()
        return pending

    def broadcast(self, call: Call) -> Work:
        return self._collective(call)

    def reduce(self, call: Call) -> Work:
        return self._collective(call)

    def all_reduce(self, call: Call) -> Work:
        return self._collective(call)

    def reduce_scatter(self, call: Call) -> Work:
        return self._collective(call)

    def gather(self, call: Call) -> Work:
        return self._collective(call)

    def all_gather(self, call: Call) -> Work:
        return self._collective(call)

    def scatter(self, call: Call) -> Work:
        return self._collective(call)

    def all_to_all(self, call: Call) -> Work:
        return self._collective(call)

    def barrier(self, call: Call) -> Work:
        return self._collective(call)

    def send(self, call: Call) -> Work:
        assert call.peer is not None
        pending = self._pending(call)
        self.hub.send(self.rank, call.peer, call.tag, call.src)
        pending.end()
        return pending

    def recv(self, call: Call) -> Work:
        pending = self.hub.receive(self._pending(call))
        if call.blocking:
            pending.wait()
        return pending

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

    def records(self) -> list[RankReport]:
        return self.hub.recorder.look()

    def _pending(self, call: Call) -> PendingCall:
        if self._closed:
            raise NotReady("the engine is closed")
        if self._shrunk:
            raise NotReady("the group was shrunk; use the new one")
        return PendingCall(self.hub, self.rank, self._turn, call)


def threads_world(size: int, timeout: float) -> list[ThreadsEngine]:
    """The engines of `size` ranks that are to be threads of this process."""
    hub = Hub(range(size), timeout)
    return [ThreadsEngine(hub, rank) for rank in range(size)]
