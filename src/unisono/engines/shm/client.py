"""The rendezvous on one host, seen from every rank but 0: find our rank 0, and join it.

A peer that proves nothing is ignored, so a stranger may listen where rank 0 should. See server.py
for the other side.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from unisono.core.environment import Launch
from unisono.engines.shm import handshake
from unisono.engines.shm.handshake import ADDRESSES, MAX_MESSAGE, PROOF_TIMEOUT, ServerProbe
from unisono.engines.shm.job_identity import best_match
from unisono.errors import CommTimeout, LaunchError

__all__ = ["RendezvousClient"]

_CHOICE_DELAY = 0.5  # seconds for a better rank 0 to come, unless one matches exactly
_STRANGER_TIMEOUT = 10.0  # seconds for our rank 0 to come while strangers answer at its addresses


class RendezvousClient:
    """Joins a job: finds its rank 0, and receives the shared memory from it."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._traits = handshake.traits_of(launch)
        self._selector = selectors.DefaultSelector()
        self._probes: dict[int, ServerProbe] = {}  # by index of the address
        self._server: ServerProbe | None = None
        self._strangers_since = 0.0  # when the first peer answered without a proof; 0: none has

    def join(self) -> int:
        """Find our rank 0, prove who we are, and return the file descriptor that it sends."""
        while True:
            self._server = self.find_server()
            for index in set(self._probes) - {self._server.index}:
                self._disconnect(index)
            self._server.socket.send(handshake.JOIN)
            # From here on rank 0 keeps the deadline and reports who is missing; it started before.
            self._deadline = time.monotonic() + self._timeout + 1
            answer, fds = self._receive(self._server)
            if answer == handshake.MEMORY and len(fds) == 1:
                return fds[0]
            if answer != handshake.RETRY:
                raise LaunchError("rank 0 gave up while the job was starting", [0])
            self._disconnect(self._server.index)

    def confirm(self) -> None:
        """Report that we have mapped the memory, and wait until every rank has."""
        assert self._server is not None
        self._server.socket.send(handshake.READY)
        answer, _ = self._receive(self._server)
        if answer != handshake.START:
            raise LaunchError("rank 0 gave up while the job was starting", [0])

    def close(self) -> None:
        """Close all connections; allowed at any time."""
        for index in list(self._probes):
            self._disconnect(index)
        self._selector.close()

    def find_server(self) -> ServerProbe:
        """Probe every address until one rank 0 is certain to be ours."""
        pause = 0.001
        while True:
            for index in set(range(ADDRESSES)) - set(self._probes):
                probe = handshake.probe(self._launch, self._traits, index)
                if probe is not None:
                    self._probes[index] = probe
                    self._selector.register(probe.socket, selectors.EVENT_READ, probe)
            for key, _ in self._selector.select(pause):
                self._receive_from(key.data)
            ours = self._choose()
            if ours is not None:
                return ours
            self._check_time()
            pause = min(pause * 2, 0.02)

    def _receive_from(self, probe: ServerProbe) -> None:
        probe.receive()
        if probe.has_no_proof:
            self._strangers_since = self._strangers_since or time.monotonic()
        elif probe.traits is not None:
            self._strangers_since = 0.0
        if probe.is_closed:
            self._disconnect(probe.index)

    def _choose(self) -> ServerProbe | None:
        """Return our rank 0, if it is time to choose."""
        known = [probe for probe in self._probes.values() if probe.traits is not None]
        if self._launch.is_named:
            return min(known, key=lambda probe: probe.index, default=None)
        now = time.monotonic()
        is_early = any(now - probe.since < _CHOICE_DELAY for probe in known)
        if any(probe.is_undecided for probe in self._probes.values()):
            return None
        candidates = [probe for probe in known if probe.size == self._launch.size]
        traits = [probe.traits or frozenset() for probe in candidates]
        if not candidates or (is_early and self._traits not in traits):
            return None
        choice = best_match(self._traits, traits)
        if choice is not None:
            return candidates[choice]
        for probe in candidates:
            with contextlib.suppress(OSError):
                probe.socket.send(handshake.AMBIGUOUS)
        raise handshake.ambiguous_jobs(self._launch)

    def _check_time(self) -> None:
        now = time.monotonic()
        rank, size = self._launch.rank, self._launch.size
        for probe in self._probes.values():
            if probe.size not in (0, size) and now - probe.since > PROOF_TIMEOUT:
                text = f"rank {rank} of {size} does not belong to a job of {probe.size} ranks"
                raise LaunchError(f"{text}; start all ranks with the same world size", [rank])
        if self._strangers_since and now - self._strangers_since > _STRANGER_TIMEOUT:
            raise LaunchError(
                f"the process that answers as rank 0 of job {self._launch.job!r} does not know the "
                "same secret as this rank; start all ranks with the same UNISONO_SECRET",
                [0],
            )
        if now > self._deadline:
            raise CommTimeout(
                f"rank 0 of job {self._launch.job!r} did not come in {self._timeout:g} s; "
                "was it started on this host, by this user?",
                [0],
            )

    def _receive(self, server: ServerProbe) -> tuple[bytes, list[int]]:
        """Wait for rank 0's next message and descriptors; raises the error if it rejects us."""
        server.socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
        try:
            message, fds, _, _ = socket.recv_fds(
                server.socket, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise CommTimeout(
                f"the other ranks did not come in {self._timeout:g} s; were they all started?"
            ) from None
        except OSError:
            message, fds = b"", []
        if not message:
            raise LaunchError(
                "rank 0 closed the connection while the job was starting: it ended, or stopped "
                "waiting; look at its output",
                [0],
            )
        error = server.read_rejection(message)
        if error is not None:
            raise error
        return message, fds

    def _disconnect(self, index: int) -> None:
        probe = self._probes.pop(index)
        self._selector.unregister(probe.socket)
        probe.socket.close()
