"""How ranks of one host meet: rank 0 hands the job's memory to the others over a Unix socket.

The socket is an abstract one, so there is no file that could be left behind and no port that a
stranger could reach from outside. Only processes of the same user that know the job's secret get
in, see handshake.py; strangers may sit at rank 0's seat or call there, and change nothing. The
socket is gone as soon as everyone is in.

A job that only an address and a port name may not be the only one of that name. Then guests choose
their rank 0, see likeness.py: at once if it was started exactly as they were, else after a moment
in which another could come. Rank 0s call each other, and send away a guest that chose too early;
the memory is handed out when all guests are there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unisono.core.environment import Launch
from unisono.engines.shm import handshake
from unisono.engines.shm.client import Guest
from unisono.engines.shm.handshake import MOST, NONCE, SEATS, Hello, Line
from unisono.engines.shm.job_identity import Points, chosen
from unisono.errors import CommTimeout, LaunchError, UnisonoError

__all__ = ["Guest", "Host"]

_STRANGERS = 64  # connections that have not proved anything yet; with more, the oldest has to go
_LINGER = 2.0  # seconds for ranks of two jobs to come and hear that there is neither


@dataclass(eq=False)
class _Caller:
    """Who has called us: a stranger until it says a hello, then a rank."""

    socket: socket.socket
    nonce: bytes
    hello: Hello | None = None
    has_joined: bool = False
    is_here: bool = False


class Host:
    """Rank 0's side. Opened at once, so that guests find it while the memory is being made."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._own = handshake.points_of(launch)
        self._selector = selectors.DefaultSelector()
        self._callers: list[_Caller] = []  # the oldest first
        self._guests: dict[int, _Caller] = {}  # those that have joined
        self._told: set[int] = set()  # those that have heard why there is no job
        self._refusal: UnisonoError | None = None
        self._are_two = False  # jobs of one name, and nobody knows whose ranks are whose
        self._has_begun = False  # the memory is handed out, and nobody can change that any more
        self._listener, self._seat = self._sit_down()
        self._lines = list(self._call_others())
        self._is_open = False

    def admit(self, fd: int) -> None:
        """Give every guest the descriptor; return when all have taken their place."""
        others = self._launch.size - 1
        os.fchmod(fd, 0o600)  # not even through /proc may another user open it
        try:
            self._serve(lambda: len(self._guests) == others)
            self._hand_out(fd)
            self._serve(lambda: all(guest.is_here for guest in self._guests.values()))
            # Whoever goes on may call for the next job at once, and must not find us here.
            self._selector.unregister(self._listener)
            self._listener.close()
            for guest in self._guests.values():
                self._send(guest, handshake.GO)  # who has ended is noticed in the first call
        except UnisonoError as error:
            self._refuse_all(error)
            raise
        finally:
            self._close()

    def refuse(self, error: UnisonoError) -> None:
        """Tell every guest why there is no job; do not wait long for late ones."""
        self._refusal = error
        self._deadline = min(self._deadline, time.monotonic() + 5)
        try:
            self._serve(lambda: len(self._told) == self._launch.size - 1)
        except UnisonoError:
            pass  # our own reason matters more than who did not hear it
        finally:
            self._close()

    # ---- our seat, and who has another one ----

    def _sit_down(self) -> tuple[socket.socket, int]:
        for seat in range(SEATS):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.setblocking(False)
            try:
                listener.bind(handshake.name(self._launch, seat))
            except OSError:
                listener.close()
                continue
            listener.listen(512)
            return listener, seat
        raise self._taken()

    def _taken(self) -> LaunchError:
        return LaunchError(
            f"another job of this user is starting as {self._launch.job!r}; "
            "give each job its own MASTER_PORT or UNISONO_JOB"
        )

    def _call_others(self) -> Iterator[Line]:
        """Who sat down before us is on a lower seat, unless that became free only now."""
        for seat in range(self._seat if self._launch.is_named else SEATS):
            line = handshake.call(self._launch, self._own, seat) if seat != self._seat else None
            if line is not None:
                self._selector.register(line.socket, selectors.EVENT_READ, line)
                yield line

    def _open_the_door(self) -> None:
        """Let callers in once we know who sits on the lower seats: we may not be rank 0 at all."""
        if any(line.is_open and line.seat < self._seat for line in self._lines):
            return
        if self._launch.is_named and any(line.points is not None for line in self._lines):
            raise self._taken()
        self._is_open = True
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _rivals(self) -> list[Points]:
        """What other rank 0s are like."""
        size = self._launch.size
        lines = [line for line in self._lines if line.points is not None and line.size == size]
        hellos = [caller.hello for caller in self._callers if caller.hello is not None]
        callers = [hello for hello in hellos if (hello.rank, hello.size) == (0, size)]
        return [*(line.points or frozenset() for line in lines), *(each.points for each in callers)]

    def _two_jobs(self) -> LaunchError:
        self._are_two = True
        return handshake.two_jobs(self._launch)

    def _check_guests(self) -> None:
        """Send away who belongs to another rank 0; stop if that cannot be told."""
        rivals = self._rivals()
        if self._launch.is_named or self._has_begun or not rivals:
            return
        for rank, guest in list(self._guests.items()):
            assert guest.hello is not None
            choice = chosen(guest.hello.points, [self._own, *rivals])
            if choice is None:
                raise self._two_jobs()
            if choice != 0:
                del self._guests[rank]
                self._send(guest, handshake.AWAY)
                self._drop(guest)

    # ---- callers ----

    def _serve(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if not self._is_open:
                self._open_the_door()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._late()
            for key, _ in self._selector.select(left if self._is_open else min(left, 0.1)):
                if key.data is None:
                    self._welcome()
                elif isinstance(key.data, Line):
                    self._hear_rival(key.data)
                else:
                    self._hear(key.data)

    def _late(self) -> CommTimeout:
        size = self._launch.size
        came = {
            rank for rank, guest in self._guests.items() if not self._has_begun or guest.is_here
        }
        missing = sorted(set(range(1, size)) - came)
        return CommTimeout(
            f"{len(missing)} of {size} ranks did not come in {self._timeout:g} s: "
            f"ranks {missing}; were they all started?",
            missing,
        )

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        if not handshake.is_ours(connection):
            connection.close()
            return
        strangers = [caller for caller in self._callers if caller.hello is None]
        if len(strangers) >= _STRANGERS + self._launch.size:
            self._drop(strangers[0])  # a true guest proves itself at once
        caller = _Caller(connection, secrets.token_bytes(NONCE))
        self._callers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        if not self._send(caller, caller.nonce):
            self._drop(caller)

    def _hear_rival(self, line: Line) -> None:
        try:
            line.hear()
        except UnisonoError:
            if self._refusal is None:
                self._are_two = True  # it tells us what it tells everybody
                raise
        if line.has_ended:
            self._lines.remove(line)
            self._selector.unregister(line.socket)
            line.socket.close()
        self._check_guests()

    def _hear(self, caller: _Caller) -> None:
        if caller.socket.fileno() < 0:
            return  # it was dropped in this very round
        try:
            message = caller.socket.recv(MOST)
        except OSError:
            message = b""
        if caller.hello is None:
            self._judge(caller, message)
        elif self._refusal is not None:
            self._drop(caller)  # it knows by now
        elif caller.has_joined:
            if message != handshake.HERE:
                rank = caller.hello.rank
                del self._guests[rank]
                self._drop(caller)
                raise LaunchError(f"rank {rank} ended while the job was starting", [rank])
            caller.is_here = True
        elif message == handshake.TORN:
            raise self._two_jobs()
        elif message != handshake.JOIN or not self._take_in(caller, caller.hello.rank):
            self._drop(caller)

    def _judge(self, caller: _Caller, message: bytes) -> None:
        """Answer a hello."""
        launch = self._launch
        pid, _ = handshake.peer(caller.socket)
        hello = handshake.hello(launch, message, caller.nonce, pid)
        if hello is None:
            self._drop(caller)  # a stranger learns nothing
            return
        caller.hello = hello
        if self._refusal is not None:
            self._refuse(caller, self._refusal)
            self._told |= {hello.rank} - {0}
        elif not hello.is_of_our_version:
            self._refuse(caller, LaunchError("the ranks run different versions of unisono"))
        elif (launch.is_named and hello.size != launch.size) or hello.rank >= hello.size:
            text = f"rank {hello.rank} of {hello.size} does not belong to a job of {launch.size}"
            self._refuse(caller, LaunchError(f"{text} ranks", [hello.rank]))
        else:
            if not self._send(caller, handshake.answer(launch, self._own, hello.nonce)):
                self._drop(caller)
            elif hello.rank == 0:
                self._check_guests()

    def _take_in(self, caller: _Caller, rank: int) -> bool:
        """Let a guest join that has chosen us; False if it cannot."""
        if rank == 0 or self._has_begun:
            return False
        if rank in self._guests:
            if not self._launch.is_named:
                raise self._two_jobs()
            text = f"there is a rank {rank} in job {self._launch.job!r} already"
            self._refuse(caller, LaunchError(text, [rank]))
            return False
        caller.has_joined = True
        self._guests[rank] = caller
        self._check_guests()
        return True

    def _hand_out(self, fd: int) -> None:
        self._has_begun = True
        for rank, guest in self._guests.items():
            try:
                socket.send_fds(guest.socket, [handshake.MEMORY], [fd])
            except OSError:
                raise LaunchError(f"rank {rank} ended while the job was starting", [rank]) from None

    def _refuse(self, caller: _Caller, error: UnisonoError) -> None:
        assert caller.hello is not None
        self._send(caller, handshake.refusal(self._launch, error, caller.hello.nonce))

    def _refuse_all(self, error: UnisonoError) -> None:
        """Tell everybody who is there; and, if two jobs have come, who comes in a moment."""
        self._refusal = error
        for caller in self._callers:
            if caller.hello is not None:
                self._refuse(caller, error)
        if not self._are_two:
            return
        self._deadline = time.monotonic() + _LINGER
        with contextlib.suppress(UnisonoError):
            self._serve(lambda: False)

    def _send(self, caller: _Caller, message: bytes) -> bool:
        try:
            caller.socket.send(message)
        except OSError:
            return False
        return True

    def _drop(self, caller: _Caller) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
            self._selector.unregister(caller.socket)
            caller.socket.close()

    def _close(self) -> None:
        for caller in self._callers:
            caller.socket.close()
        for line in self._lines:
            line.socket.close()
        self._selector.close()
        self._listener.close()
