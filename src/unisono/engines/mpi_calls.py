"""Requests of MPI under way: waited for with a deadline, open to Ctrl-C; and messages in order.

MPI moves nothing unless somebody calls it, so whoever waits keeps asking.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from unisono.core.buffers import Buffer
from unisono.core.engine import Work
from unisono.engines.mpi_types import as_bytes, understood
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

    @property
    def nbytes(self) -> int:
        """How long the message was that has come."""
        from mpi4py import MPI

        return int(self.status.Get_elements(MPI.BYTE))


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
    return f"{call} of engine {engine!r} waited {timeout:g} s for {names}"


# ---- messages ------------------------------------------------------------------------------------


class Message(Work):
    """A message under way. One that comes is looked at before its memory is touched."""

    def __init__(
        self, mailbox: Mailbox, sending: bool, buffer: Buffer, peer: int | None, tag: int
    ) -> None:
        super().__init__()
        self.sending = sending
        self.peer = peer
        self.tag = tag
        self.request: Request | None = None
        self.deadline = 0.0
        self._patience = 0.0
        self._mailbox = mailbox
        self._buffer = buffer
        self._refusal: MismatchError | None = None
        self._failure: UnisonoError | None = None
        self._over = False

    def begin(self, timeout: float) -> None:
        """Give it a deadline; send it if it is to be sent."""
        self._patience = timeout
        self.deadline = time.monotonic() + timeout
        if self.sending:
            memory = as_bytes(self._buffer.array)
            sent = self._mailbox.communicator.Isend(memory, self.peer, self.tag)
            self.request = Request(sent, self.peer, self._buffer)

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
            late = f"{self._call} of engine {name!r} waited {self._patience:g} s for {who}"
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
            if self.request is not None:
                self._mailbox.abandoned.append(self.request)

    def competes(self, other: Message) -> bool:
        """Whether a message that comes might be for either."""
        return self.tag == other.tag and (
            self.peer is None or other.peer is None or self.peer == other.peer
        )

    @property
    def _call(self) -> str:
        return "send" if self.sending else "recv"

    def _further(self) -> bool:
        if self.request is None and not self._match():
            return False
        assert self.request is not None
        if not self.request.ended():
            return False
        self._failure = self._refusal
        return True

    def _match(self) -> bool:
        """Look whether the message is there; what does not fit is received to nowhere."""
        from mpi4py import MPI

        status = MPI.Status()
        source = MPI.ANY_SOURCE if self.peer is None else self.peer
        message = self._mailbox.communicator.Improbe(source, self.tag, status)
        if message is None:
            return False
        self.source = status.Get_source()
        nbytes = int(status.Get_elements(MPI.BYTE))
        into = self._buffer.array
        if nbytes != self._buffer.nbytes:
            self._refusal = self._misfit(nbytes)
            into = np.empty(nbytes, np.uint8)
        self.request = Request(message.Irecv(as_bytes(into)), self.source, (self._buffer, into))
        return True

    def _misfit(self, nbytes: int) -> MismatchError:
        item = self._buffer.dtype.itemsize
        sent = f"{nbytes} bytes" if nbytes % item else f"{nbytes // item} elements"
        return MismatchError(
            f"{self._mailbox.engine}: rank {self.source} sent {sent}, but this rank expects "
            f"{self._buffer.count} of {self._buffer.dtype.name}",
            (self.source or 0,),
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
        self, communicator: Any, engine: str, has_left: Callable[[int | None], bool]
    ) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.communicator = communicator
        self.has_left = has_left
        self.engine = engine
        self.abandoned: list[Request] = []
        self._messages: list[Message] = []
        self._serving = False
        self._closed = False

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
                behind = message.request is None and any(map(message.competes, waiting))
                if message.ended(behind):
                    continue
                left.append(message)
                if message.request is None:
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
