"""One rank's part in a call of ranks that are threads: the call, its turn, and its outcome."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from unisono.core.call import Call
from unisono.core.engine import Work
from unisono.errors import CommTimeout, UnisonoError

if TYPE_CHECKING:
    from unisono.engines.threads.hub import Hub

__all__ = ["PendingCall"]


class PendingCall(Work):
    """A call that other ranks have yet to join, or a message that has yet to come."""

    def __init__(self, hub: Hub, rank: int, turn: int, call: Call) -> None:
        super().__init__()
        self.hub, self.rank, self.turn, self.call = hub, rank, turn, call
        self.deadline = time.monotonic() + call.timeout
        self.ended = threading.Event()
        self.failure: UnisonoError | None = None
        number = None if call.verb in ("send", "recv") else turn
        self.record = hub.recorder.begin(hub.world_ranks[rank], hub.number, number, call)

    def end(self, failure: UnisonoError | None = None) -> None:
        """Note the outcome and wake the threads that wait."""
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
