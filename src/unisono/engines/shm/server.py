"""The rendezvous on one host, seen from rank 0: it sends the job's memory to all other ranks.

It listens at an abstract Unix socket, so there is no file that could be left behind and no port
that a stranger could reach from outside. Only processes of the same user that know the job's secret
are admitted, see handshake.py; strangers may listen at its addresses or connect to it, and change
nothing. The socket is closed as soon as all ranks have joined. See client.py for the other side.

If only an address and a port name a job, another job may have the same name. Then clients choose
their rank 0, see job_identity.py: immediately if it was started exactly as they were, else after a
delay in which a better one may come. The rank 0s connect to each other, and each one sends away
clients that chose too early and belong to another one. The memory is sent when all clients have
joined.
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
from unisono.engines.shm.handshake import ADDRESSES, MAX_MESSAGE, NONCE_BYTES, Hello, ServerProbe
from unisono.engines.shm.job_identity import Traits, best_match
from unisono.errors import CommTimeout, LaunchError, UnisonoError

__all__ = ["RendezvousServer"]

_MAX_STRANGERS = 64  # connections that have proved nothing yet; with more, the oldest is closed
_REJECT_SECONDS = 2.0  # for late ranks of two ambiguous jobs to connect and be rejected


@dataclass(eq=False)
class _Peer:
    """A process that has connected to us: a stranger until its hello, then a rank."""

    socket: socket.socket
    nonce: bytes
    hello: Hello | None = None
    has_joined: bool = False
    is_ready: bool = False


class RendezvousServer:
    """Admits all other ranks of the job, and sends them the shared memory.

    Made before the memory, so that clients find it while the memory is being prepared.
    """

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._traits = handshake.traits_of(launch)
        self._selector = selectors.DefaultSelector()
        self._peers: list[_Peer] = []  # the oldest first
        self._clients: dict[int, _Peer] = {}  # peers that have joined, by rank
        self._rejected: set[int] = set()  # ranks that know why there is no job
        self._error: UnisonoError | None = None  # why there is no job
        self._is_ambiguous = False  # two jobs have this name, and whose rank is whose is not known
        self._has_sent_memory = False  # from then on the members of the job are fixed
        self._listener, self._index = self._listen()
        self._probes = list(self._probe_others())
        self._is_accepting = False

    def distribute(self, fd: int) -> None:
        """Send the file descriptor to every other rank; return when all have mapped the memory."""
        others = self._launch.size - 1
        os.fchmod(fd, 0o600)  # so that another user cannot open it, even through /proc
        try:
            self._serve(lambda: len(self._clients) == others)
            self._send_memory(fd)
            self._serve(lambda: all(client.is_ready for client in self._clients.values()))
            # A rank that goes on may connect for the next job immediately, and must not find us.
            self._selector.unregister(self._listener)
            self._listener.close()
            for client in self._clients.values():
                # One that has ended is noticed in the first call.
                self._send(client, handshake.START)
        except UnisonoError as error:
            self._reject_peers(error)
            raise
        finally:
            self._close()

    def reject_all(self, error: UnisonoError) -> None:
        """Tell every rank why there is no job; wait at most 5 seconds for late ones."""
        self._error = error
        self._deadline = min(self._deadline, time.monotonic() + 5)
        try:
            self._serve(lambda: len(self._rejected) == self._launch.size - 1)
        except UnisonoError:
            pass  # the caller raises our own error, which matters more than who has not received it
        finally:
            self._close()

    # ---- our address, and the rank 0s at other addresses ----

    def _listen(self) -> tuple[socket.socket, int]:
        """Listen at the first free address."""
        for index in range(ADDRESSES):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.setblocking(False)
            try:
                listener.bind(handshake.address(self._launch, index))
            except OSError:
                listener.close()
                continue
            listener.listen(512)
            return listener, index
        raise self._name_in_use()

    def _name_in_use(self) -> LaunchError:
        return LaunchError(
            f"another job of this user is starting as {self._launch.job!r}; "
            "give each job its own MASTER_PORT or UNISONO_JOB"
        )

    def _probe_others(self) -> Iterator[ServerProbe]:
        """Connect to other rank 0s.

        Those that came before us listen at lower addresses, unless one of these became free later.
        """
        for index in range(self._index if self._launch.is_named else ADDRESSES):
            if index == self._index:
                continue
            probe = handshake.probe(self._launch, self._traits, index)
            if probe is not None:
                self._selector.register(probe.socket, selectors.EVENT_READ, probe)
                yield probe

    def _start_accepting(self) -> None:
        """Accept peers once we know who listens at lower addresses: we may not be rank 0 at all."""
        if any(probe.is_undecided and probe.index < self._index for probe in self._probes):
            return
        if self._launch.is_named and any(probe.traits is not None for probe in self._probes):
            raise self._name_in_use()
        self._is_accepting = True
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _other_servers(self) -> list[Traits]:
        """Return the traits of the other rank 0s that we know."""
        size = self._launch.size
        probed = [probe.traits for probe in self._probes if probe.size == size]
        hellos = [peer.hello for peer in self._peers if peer.hello is not None]
        connected = [hello.traits for hello in hellos if (hello.rank, hello.size) == (0, size)]
        return [*(traits for traits in probed if traits is not None), *connected]

    def _ambiguous_jobs(self) -> LaunchError:
        self._is_ambiguous = True
        return handshake.ambiguous_jobs(self._launch)

    def _check_clients(self) -> None:
        """Send away clients that belong to another rank 0; raise if that is not certain."""
        others = self._other_servers()
        if self._launch.is_named or self._has_sent_memory or not others:
            return
        for rank, client in list(self._clients.items()):
            assert client.hello is not None
            choice = best_match(client.hello.traits, [self._traits, *others])
            if choice is None:
                raise self._ambiguous_jobs()
            if choice != 0:
                del self._clients[rank]
                self._send(client, handshake.RETRY)
                self._disconnect(client)

    # ---- peers ----

    def _serve(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if not self._is_accepting:
                self._start_accepting()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._timeout_error()
            for key, _ in self._selector.select(left if self._is_accepting else min(left, 0.1)):
                if key.data is None:
                    self._accept()
                elif isinstance(key.data, ServerProbe):
                    self._receive_from_server(key.data)
                else:
                    self._receive(key.data)

    def _timeout_error(self) -> CommTimeout:
        size = self._launch.size
        arrived = {
            rank
            for rank, client in self._clients.items()
            if not self._has_sent_memory or client.is_ready
        }
        missing = sorted(set(range(1, size)) - arrived)
        return CommTimeout(
            f"{len(missing)} of {size} ranks did not come in {self._timeout:g} s: "
            f"ranks {missing}; were they all started?",
            missing,
        )

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        if not handshake.is_same_user(connection):
            connection.close()
            return
        strangers = [peer for peer in self._peers if peer.hello is None]
        if len(strangers) >= _MAX_STRANGERS + self._launch.size:
            self._disconnect(strangers[0])  # a rank of the job sends its hello without delay
        peer = _Peer(connection, secrets.token_bytes(NONCE_BYTES))
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        if not self._send(peer, peer.nonce):
            self._disconnect(peer)

    def _receive_from_server(self, probe: ServerProbe) -> None:
        try:
            probe.receive()
        except UnisonoError:
            if self._error is None:
                self._is_ambiguous = True  # it rejects everybody for that reason
                raise
        if probe.is_closed:
            self._probes.remove(probe)
            self._selector.unregister(probe.socket)
            probe.socket.close()
        self._check_clients()

    def _receive(self, peer: _Peer) -> None:
        if peer.socket.fileno() < 0:
            return  # it was disconnected in this round of the loop
        try:
            message = peer.socket.recv(MAX_MESSAGE)
        except OSError:
            message = b""
        if peer.hello is None:
            self._answer_hello(peer, message)
        elif self._error is not None:
            self._disconnect(peer)  # it has received the error
        elif peer.has_joined:
            if message != handshake.READY:
                rank = peer.hello.rank
                del self._clients[rank]
                self._disconnect(peer)
                raise LaunchError(f"rank {rank} ended while the job was starting", [rank])
            peer.is_ready = True
        elif message == handshake.AMBIGUOUS:
            raise self._ambiguous_jobs()
        elif message != handshake.JOIN or not self._admit(peer, peer.hello.rank):
            self._disconnect(peer)

    def _answer_hello(self, peer: _Peer, message: bytes) -> None:
        launch = self._launch
        pid, _ = handshake.credentials(peer.socket)
        hello = handshake.read_hello(launch, message, peer.nonce, pid)
        if hello is None:
            self._disconnect(peer)  # a stranger learns nothing
            return
        peer.hello = hello
        if self._error is not None:
            self._reject(peer, self._error)
            self._rejected |= {hello.rank} - {0}
        elif not hello.has_same_version:
            self._reject(peer, LaunchError("the ranks run different versions of unisono"))
        elif (launch.is_named and hello.size != launch.size) or hello.rank >= hello.size:
            text = f"rank {hello.rank} of {hello.size} does not belong to a job of {launch.size}"
            self._reject(peer, LaunchError(f"{text} ranks", [hello.rank]))
        elif not self._send(peer, handshake.server_hello(launch, self._traits, hello.nonce)):
            self._disconnect(peer)
        elif hello.rank == 0:
            self._check_clients()

    def _admit(self, peer: _Peer, rank: int) -> bool:
        """Let a peer join that has chosen us; False if it cannot."""
        if rank == 0 or self._has_sent_memory:
            return False
        if rank in self._clients:
            if not self._launch.is_named:
                raise self._ambiguous_jobs()
            text = f"there is a rank {rank} in job {self._launch.job!r} already"
            self._reject(peer, LaunchError(text, [rank]))
            return False
        peer.has_joined = True
        self._clients[rank] = peer
        self._check_clients()
        return True

    def _send_memory(self, fd: int) -> None:
        self._has_sent_memory = True
        for rank, client in self._clients.items():
            try:
                socket.send_fds(client.socket, [handshake.MEMORY], [fd])
            except OSError:
                raise LaunchError(f"rank {rank} ended while the job was starting", [rank]) from None

    def _reject(self, peer: _Peer, error: UnisonoError) -> None:
        assert peer.hello is not None
        self._send(peer, handshake.rejection(self._launch, error, peer.hello.nonce))

    def _reject_peers(self, error: UnisonoError) -> None:
        """Reject all ranks that are connected; if two jobs are ambiguous, late ranks as well."""
        self._error = error
        for peer in self._peers:
            if peer.hello is not None:
                self._reject(peer, error)
        if not self._is_ambiguous:
            return
        self._deadline = time.monotonic() + _REJECT_SECONDS
        with contextlib.suppress(UnisonoError):
            self._serve(lambda: False)

    def _send(self, peer: _Peer, message: bytes) -> bool:
        try:
            peer.socket.send(message)
        except OSError:
            return False
        return True

    def _disconnect(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def _close(self) -> None:
        for peer in self._peers:
            peer.socket.close()
        for probe in self._probes:
            probe.socket.close()
        self._selector.close()
        self._listener.close()
