"""Point-to-point messages over MPI, in order; each tells its dtype and length first."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from unisono.core.call import Call
from unisono.core.dtypes import DTYPES
from unisono.core.engine import Work
from unisono.engines.common.reductions import Array
from unisono.engines.mpi.datatypes import as_bytes
from unisono.engines.mpi.library import translate_error
from unisono.engines.mpi.requests import MPI_LOCK, Request, polls
from unisono.errors import CommTimeout, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = ["MessageQueue", "PendingMessage"]


class PendingMessage(Work):
    """A message under way: a header with the user's tag, then the data with a tag of ours.

    So dtype and length are known before memory is touched.
    """

    def __init__(self, queue: MessageQueue, call: Call) -> None:
        super().__init__()
        self.call = call
        self.peer = call.peer
        self.requests: list[Request] = []
        self._queue = queue
        self._sending = sending = call.verb == "send"
        self._buffer = call.src if sending else call.dst
        self._deadline = time.monotonic() + call.timeout
        self._header = np.zeros(3, np.int64)  # code of the dtype, count, number of the message
        self._header_done = sending
        self._mismatch: MismatchError | None = None
        self._failure: UnisonoError | None = None
        self._ended = False

    def begin(self) -> None:
        """Begin to send it, if it is to be sent; a receive begins when a header has come."""
        if self._sending:
            number = self._queue.next_number()
            self._header[:] = self._buffer.dtype.code, self._buffer.count, number
            self._start(self._header, self.call.tag)
            if self._buffer.count:
                self._start(self._buffer.array, self._queue.first_tag + number)

    @property
    def waits(self) -> bool:
        """Whether this is a receive whose header has not come."""
        return not self._header_done and not self.requests

    def ended(self, behind: bool = False) -> bool:
        """Advance it, unless another one is before it; tell whether it has ended."""
        if not self._ended and not behind:
            try:
                self._ended = self._advance()
            except Exception as error:
                self.give_up(translate_error(error, self._queue.engine, self.call.verb))
        if not self._ended and time.monotonic() > self._deadline:
            who = "any rank" if self.peer is None else f"rank {self.peer}"
            engine, timeout = self._queue.engine, f"its timeout of {self.call.timeout:g} s"
            late = f"{self.call.verb} of engine {engine!r} reached {timeout} waiting for {who}"
            self.give_up(CommTimeout(late, () if self.peer is None else (self.peer,)))
        if not self._ended and self._queue.has_left(self.peer):
            lost = f"{self._queue.engine}: rank {self.peer} has left the group"
            self.give_up(PeerLost(lost, () if self.peer is None else (self.peer,)))
        return self._ended

    def give_up(self, failure: UnisonoError) -> None:
        """End it with an error; memory that MPI still uses is kept."""
        if not self._ended:
            self._failure = failure
            self._ended = True
            self._queue.abandoned += self.requests

    def competes(self, other: PendingMessage) -> bool:
        """Whether one message could match both receives."""
        return self.call.tag == other.call.tag and (
            self.peer is None or other.peer is None or self.peer == other.peer
        )

    def _advance(self) -> bool:
        if self.waits and not self._match():
            return False
        self.requests = [request for request in self.requests if not request.ended()]
        if self.requests:
            return False
        if not self._header_done:
            self._receive_data()
            return self._advance()
        self._failure = self._mismatch
        return True

    def _match(self) -> bool:
        """Begin to receive the header, if it has come."""
        from mpi4py import MPI

        status = MPI.Status()
        source = MPI.ANY_SOURCE if self.peer is None else self.peer
        message = self._queue.communicator.Improbe(source, self.call.tag, status)
        if message is None:
            return False
        self.source = status.Get_source()
        memory = as_bytes(self._header)
        self.requests.append(Request(message.Irecv(memory), self.source, self._header))
        return True

    def _receive_data(self) -> None:
        """Begin to receive the data of a header; data that do not fit go to memory of their own."""
        self._header_done = True
        code, count, number = self._header.tolist()
        into, kind = self._buffer.array, self._buffer.dtype
        if (code, count) != (kind.code, self._buffer.count):
            sent = next(each for each in DTYPES if each.code == code)
            self._mismatch = MismatchError(
                f"{self._queue.engine}: rank {self.source} sent {sent.name} x {count}, but this "
                f"rank expects {kind.name} x {self._buffer.count}",
                (self.source or 0,),
            )
            into = np.empty(count, sent.numpy)
        if count:
            self._start(into, self._queue.first_tag + number)

    def _start(self, memory: Array, tag: int) -> None:
        communicator = self._queue.communicator
        peer = self.peer if self._sending else self.source
        start = communicator.Isend if self._sending else communicator.Irecv
        self.requests.append(
            Request(start(as_bytes(memory), peer, tag), peer, (self._buffer, memory))
        )

    def _poll(self) -> bool:
        self._queue.advance()
        return self._ended

    def _block(self, timeout: float | None) -> None:
        for _ in polls(timeout):
            if self._poll():
                break
        if not self._ended:
            raise CommTimeout(f"the message has not come after {timeout:g} s; it goes on")
        if self._failure is not None:
            raise self._failure


class MessageQueue:
    """The messages of one communicator that are under way, in the order in which they began."""

    def __init__(
        self,
        communicator: Any,
        engine: str,
        tags: range,
        has_left: Callable[[int | None], bool],
    ) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.communicator = communicator
        self.first_tag = tags.start  # of those that are ours
        self._numbers = itertools.cycle(range(len(tags)))
        self.has_left = has_left
        self.engine = engine
        self.abandoned: list[Request] = []
        self._messages: list[PendingMessage] = []
        self._serving = False
        self._closed = False

    def next_number(self) -> int:
        """The number of one more message, which no other one under way has."""
        return next(self._numbers)

    def post(self, call: Call) -> Work:
        """Begin a message; unless the caller waits for it, a thread advances it."""
        message = PendingMessage(self, call)
        with MPI_LOCK:
            if self._closed or self._mpi.Is_finalized():
                raise NotReady(f"{self.engine}: the engine is closed, or MPI was finalised")
            try:
                message.begin()
            except Exception as error:
                raise translate_error(error, self.engine, call.verb) from error
            self._messages.append(message)
            serve = not call.blocking and not self._serving and not message.ended()
            self._serving = self._serving or serve
        if serve:
            name = f"unisono {self.engine} messages"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        if call.blocking:
            self._wait(message)
        return message

    def _wait(self, message: PendingMessage) -> None:
        try:
            message.wait()
        except KeyboardInterrupt:
            # A later call must not lose its message to this one.
            message.give_up(NotReady("the call was interrupted"))
            raise

    def advance(self) -> None:
        """Advance every message; the first receive that matches a message takes it."""
        with MPI_LOCK:
            if self._closed or self._mpi.Is_finalized():
                return
            waiting: list[PendingMessage] = []
            left: list[PendingMessage] = []
            for message in self._messages:
                behind = message.waits and any(map(message.competes, waiting))
                if message.ended(behind):
                    continue
                left.append(message)
                if message.waits:
                    waiting.append(message)
            self._messages = left

    def close(self) -> None:
        """End what is under way."""
        with MPI_LOCK:
            self.advance()
            self._closed = True
            left, self._messages = self._messages, []
            for message in left:
                message.give_up(NotReady(f"{self.engine}: the engine was closed before the end"))

    def _serve(self) -> None:
        for _ in polls(None):
            self.advance()
            with MPI_LOCK:
                if not self._messages:
                    self._serving = False
                    return
