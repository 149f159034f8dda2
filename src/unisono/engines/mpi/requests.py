"""Requests of MPI under way: waited for with a deadline, open to Ctrl-C; and messages in order.

MPI moves nothing unless somebody calls it, so whoever waits keeps asking.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from unisono.core.buffers import Buffer
from unisono.core.dtypes import DTYPES
from unisono.core.engine import Work
from unisono.engines.common.reductions import Array
from unisono.engines.mpi.datatypes import as_bytes, understood
from unisono.errors import CommTimeout, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = ["CALLING", "Mailbox", "Message", "Request", "asking", "wait_for"]

#: Held during each call of MPI, all of which are short. An operator of ours runs within one and
#: then wants Python's own lock, which another thread must not hold while it waits for MPI.
CALLING = threading.RLock()

_SPIN = 5e-4  # seconds of asking without a pause
_BURST = 16  # questions between two pauses: each may bring a large message a piece further
_PAUSE = 2e-5  # seconds, the first pause
_LONGEST = 5e-4


class Request:
    """One request of MPI, with the rank that it waits for, if it is one, and its memory."""

    def __init__(self, request: Any, peer: int | None = None, memory: object = None) -> None:
        from mpi4py import MPI

        self.request = request
        self.peer = peer
        self.status = MPI.Status()
        self.memory = memory  # MPI uses it until the end, even if nobody waits any more

    def ended(self) -> bool:
        """Ask MPI."""
        return bool(self.request.Test(self.status))


def asking(timeout: float | None) -> Iterator[bool]:
    """Ask again at each turn: without a pause at first; ends when the time is over.

    True says that it is time to look around as well.
    """
    began = time.monotonic()
    pause = _PAUSE
    while True:
        yield True
        for _ in range(_BURST - 1):
            yield False
        waited = time.monotonic() - began
        if timeout is not None and waited > timeout:
            return
        if waited < _SPIN:
            os.sched_yield()  # there may be more ranks than cores
        else:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)


def wait_for(
    requests: list[Request],
    timeout: float,
    engine: str,
    call: str,
    look_around: Callable[[bool], None],
) -> None:
    """Wait for all; those that have not ended at an error stay in the list.

    `look_around` raises what makes it vain to wait; True asks it to take its time.
    """
    misfits: list[MismatchError] = []
    for now_and_then in asking(timeout):
        with CALLING:
            look_around(now_and_then)
            for request in list(requests):
                try:
                    if not request.ended():
                        continue
                except Exception as error:
                    failure = understood(error, engine, call, request.peer)
                    if not isinstance(failure, MismatchError):
                        raise failure from error
                    misfits.append(failure)  # the others come to their end nevertheless
                requests.remove(request)
        if not requests:
            if misfits:
                raise misfits[0]
            return
    missing = sorted({request.peer for request in requests if request.peer is not None})
    raise CommTimeout(_late(engine, call, timeout, missing), missing)


def _late(engine: str, call: str, timeout: float, missing: list[int]) -> str:
    if not missing:
        return (
            f"{call} of engine {engine!r} reached its timeout of {timeout:g} s; MPI does not say "
            "which rank is missing"
        )
    names = " and ".join(f"rank {rank}" for rank in missing)
    return f"{call} of engine {engine!r} reached its timeout of {timeout:g} s waiting for {names}"


# ---- messages ------------------------------------------------------------------------------------


class Message(Work):
    """A message under way: an envelope with the user's tag, then what is in it, with one of ours.

    So what comes is known before memory is touched, its dtype included.
    """

    def __init__(
        self, mailbox: Mailbox, sending: bool, buffer: Buffer, peer: int | None, tag: int
    ) -> None:
        super().__init__()
        self.sending = sending
        self.peer = peer
        self.tag = tag
        self.requests: list[Request] = []
        self.deadline = 0.0
        self._patience = 0.0
        self._mailbox = mailbox
        self._buffer = buffer
        self._envelope = np.zeros(3, np.int64)  # code of the dtype, count, number of the message
        self._open = sending
        self._refusal: MismatchError | None = None
        self._failure: UnisonoError | None = None
        self._over = False

    def begin(self, timeout: float) -> None:
        """Give it a deadline; send it if it is to be sent."""
        self._patience = timeout
        self.deadline = time.monotonic() + timeout
        if self.sending:
            number = self._mailbox.next_number()
            self._envelope[:] = self._buffer.dtype.code, self._buffer.count, number
            self._begin(True, self._envelope, self.tag)
            if self._buffer.count:
                self._begin(True, self._buffer.array, self._mailbox.first_tag + number)

    @property
    def waits(self) -> bool:
        """Whether it is to come, and has not begun to."""
        return not self._open and not self.requests

    def ended(self, behind: bool = False) -> bool:
        """Bring it further, unless another is before it; tell whether it has ended."""
        if not self._over and not behind:
            try:
                self._over = self._further()
            except Exception as error:
                self.give_up(understood(error, self._mailbox.engine, self._call))
        if not self._over and time.monotonic() > self.deadline:
            who = "any rank" if self.peer is None else f"rank {self.peer}"
            name = self._mailbox.engine
            timeout = f"its timeout of {self._patience:g} s"
            late = f"{self._call} of engine {name!r} reached {timeout} waiting for {who}"
            self.give_up(CommTimeout(late, () if self.peer is None else (self.peer,)))
        if not self._over and self._mailbox.has_left(self.peer):
            lost = f"{self._mailbox.engine}: rank {self.peer} has left the group"
            self.give_up(PeerLost(lost, () if self.peer is None else (self.peer,)))
        return self._over

    def give_up(self, failure: UnisonoError) -> None:
        """End it badly; what MPI still has is kept."""
        if not self._over:
            self._failure = failure
            self._over = True
            self._mailbox.abandoned += self.requests

    def competes(self, other: Message) -> bool:
        """Whether a message that comes might be for either."""
        return self.tag == other.tag and (
            self.peer is None or other.peer is None or self.peer == other.peer
        )

    @property
    def _call(self) -> str:
        return "send" if self.sending else "recv"

    def _further(self) -> bool:
        if self.waits and not self._match():
            return False
        self.requests = [request for request in self.requests if not request.ended()]
        if self.requests:
            return False
        if not self._open:
            self._look_inside()
            return self._further()
        self._failure = self._refusal
        return True

    def _match(self) -> bool:
        """Begin to receive the envelope, if it is there."""
        from mpi4py import MPI

        status = MPI.Status()
        source = MPI.ANY_SOURCE if self.peer is None else self.peer
        message = self._mailbox.communicator.Improbe(source, self.tag, status)
        if message is None:
            return False
        self.source = status.Get_source()
        memory = as_bytes(self._envelope)
        self.requests.append(Request(message.Irecv(memory), self.source, self._envelope))
        return True

    def _look_inside(self) -> None:
        """Begin to receive what belongs to the envelope; what does not fit comes to nowhere."""
        self._open = True
        code, count, number = self._envelope.tolist()
        into, kind = self._buffer.array, self._buffer.dtype
        if (code, count) != (kind.code, self._buffer.count):
            sent = next(each for each in DTYPES if each.code == code)
            self._refusal = MismatchError(
                f"{self._mailbox.engine}: rank {self.source} sent {sent.name} x {count}, but this "
                f"rank expects {kind.name} x {self._buffer.count}",
                (self.source or 0,),
            )
            into = np.empty(count, sent.numpy)
        if count:
            self._begin(False, into, self._mailbox.first_tag + number)

    def _begin(self, sending: bool, memory: Array, tag: int) -> None:
        communicator = self._mailbox.communicator
        peer = self.peer if sending else self.source
        start = communicator.Isend if sending else communicator.Irecv
        self.requests.append(
            Request(start(as_bytes(memory), peer, tag), peer, (self._buffer, memory))
        )

    def _poll(self) -> bool:
        self._mailbox.advance()
        return self._over

    def _block(self, timeout: float | None) -> None:
        for _ in asking(timeout):
            if self._poll():
                break
        if not self._over:
            raise CommTimeout(f"the message has not come after {timeout:g} s; it goes on")
        if self._failure is not None:
            raise self._failure


class Mailbox:
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
        self._messages: list[Message] = []
        self._serving = False
        self._closed = False

    def next_number(self) -> int:
        """What tells the messages that are under way apart."""
        return next(self._numbers)

    def post(self, message: Message, timeout: float, blocking: bool) -> Work:
        """Begin it; unless the caller waits for it, a thread sees to it."""
        with CALLING:
            if self._closed or self._mpi.Is_finalized():
                raise NotReady(f"{self.engine}: the engine is closed, or MPI was finalised")
            try:
                message.begin(timeout)
            except Exception as error:
                raise understood(error, self.engine, message._call) from error
            self._messages.append(message)
            serve = not blocking and not self._serving and not message.ended()
            self._serving = self._serving or serve
        if serve:
            name = f"unisono {self.engine} messages"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        if blocking:
            self._wait(message)
        return message

    def _wait(self, message: Message) -> None:
        try:
            message.wait()
        except KeyboardInterrupt:
            # A later call must not lose its message to this one.
            message.give_up(NotReady("the call was interrupted"))
            raise

    def advance(self) -> None:
        """Bring every message further; one that comes is for the first that waits for it."""
        with CALLING:
            if self._closed or self._mpi.Is_finalized():
                return
            waiting: list[Message] = []
            left: list[Message] = []
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
        with CALLING:
            self.advance()
            self._closed = True
            left, self._messages = self._messages, []
            for message in left:
                message.give_up(NotReady(f"{self.engine}: the engine was closed before the end"))

    def _serve(self) -> None:
        for _ in asking(None):
            self.advance()
            with CALLING:
                if not self._messages:
                    self._serving = False
                    return
