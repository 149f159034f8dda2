"""The side of every rank but 0 when ranks of one host meet: find the rank 0 that is ours, and join.

Whoever proves nothing is passed over, so that a stranger may sit where rank 0 should be. See
meeting.py for the other side.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from unisono.core.environment import Launch
from unisono.engines.shm import handshake
from unisono.engines.shm.handshake import MOST, PATIENCE, SEATS, Line
from unisono.engines.shm.job_identity import chosen
from unisono.errors import CommTimeout, LaunchError

__all__ = ["Guest"]

_MOMENT = 0.5  # seconds for another rank 0 to come, unless a guest is exactly like its own
_DOUBT = 10.0  # seconds for a true rank 0 to come, where others have answered in its place


class Guest:
    """The side of every other rank."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._own = handshake.points_of(launch)
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, Line] = {}  # by seat
        self._host: Line | None = None
        self._turned_away = 0.0  # since when somebody has done that

    def join(self) -> int:
        """Find our rank 0, prove who we are, and take the descriptor."""
        while True:
            self._host = self._find()
            for seat in set(self._lines) - {self._host.seat}:
                self._hang_up(seat)
            self._host.socket.send(handshake.JOIN)
            # From here on rank 0 keeps the deadline and tells us who is missing; it began before.
            self._deadline = time.monotonic() + self._timeout + 1
            answer, fds = self._receive(self._host)
            if answer == handshake.MEMORY and len(fds) == 1:
                return fds[0]
            if answer != handshake.AWAY:
                raise LaunchError("rank 0 gave up while the job was starting")
            self._hang_up(self._host.seat)

    def settle(self) -> None:
        """Say that we are in place, and wait until everyone is."""
        assert self._host is not None
        self._host.socket.send(handshake.HERE)
        answer, _ = self._receive(self._host)
        if answer != handshake.GO:
            raise LaunchError("rank 0 gave up while the job was starting")

    def close(self) -> None:
        """Hang up; allowed at any time."""
        for seat in list(self._lines):
            self._hang_up(seat)
        self._selector.close()

    def _find(self) -> Line:
        """Call every seat until there is one rank 0 that is ours."""
        pause = 0.001
        while True:
            for seat in set(range(SEATS)) - set(self._lines):
                line = handshake.call(self._launch, self._own, seat)
                if line is not None:
                    self._lines[seat] = line
                    self._selector.register(line.socket, selectors.EVENT_READ, line)
            for key, _ in self._selector.select(pause):
                self._hear(key.data)
            ours = self._choose()
            if ours is not None:
                return ours
            self._check_time()
            pause = min(pause * 2, 0.02)

    def _hear(self, line: Line) -> None:
        line.hear()
        if line.has_refused_us:
            self._turned_away = self._turned_away or time.monotonic()
        elif line.points is not None:
            self._turned_away = 0.0
        if line.has_ended:
            self._hang_up(line.seat)

    def _choose(self) -> Line | None:
        """Our rank 0, if it is time to choose."""
        known = [line for line in self._lines.values() if line.points is not None]
        if self._launch.is_named:
            return min(known, key=lambda line: line.seat, default=None)
        now = time.monotonic()
        is_early = any(now - line.since < _MOMENT for line in known)
        if any(line.is_open for line in self._lines.values()):
            return None
        ours = [line for line in known if line.size == self._launch.size]
        points = [line.points or frozenset() for line in ours]
        if not ours or (is_early and self._own not in points):
            return None
        choice = chosen(self._own, points)
        if choice is not None:
            return ours[choice]
        for line in ours:
            with contextlib.suppress(OSError):
                line.socket.send(handshake.TORN)
        raise handshake.two_jobs(self._launch)

    def _check_time(self) -> None:
        now = time.monotonic()
        rank, size = self._launch.rank, self._launch.size
        for line in self._lines.values():
            if line.size not in (0, size) and now - line.since > PATIENCE:
                text = f"rank {rank} of {size} does not belong to a job of {line.size} ranks"
                raise LaunchError(text, [rank])
        if self._turned_away and now - self._turned_away > _DOUBT:
            raise LaunchError(
                f"who answers as rank 0 of job {self._launch.job!r} and this rank do not know the "
                "same secret; start all ranks with the same UNISONO_SECRET",
                [0],
            )
        if now > self._deadline:
            raise CommTimeout(
                f"rank 0 of job {self._launch.job!r} did not come in {self._timeout:g} s; "
                "was it started on this host, by this user?",
                [0],
            )

    def _receive(self, line: Line) -> tuple[bytes, list[int]]:
        """What rank 0 says when it has heard from everyone; raises what it refuses us for."""
        line.socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
        try:
            message, fds, _, _ = socket.recv_fds(line.socket, MOST, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise CommTimeout(
                f"the other ranks did not come in {self._timeout:g} s; were they all started?"
            ) from None
        except OSError:
            message, fds = b"", []
        if not message:
            raise LaunchError(
                "rank 0 hung up while the job was starting: it ended, or gave up waiting", [0]
            )
        error = line.refused(message)
        if error is not None:
            raise error
        return message, fds

    def _hang_up(self, seat: int) -> None:
        line = self._lines.pop(seat)
        self._selector.unregister(line.socket)
        line.socket.close()
