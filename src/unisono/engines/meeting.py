"""How ranks of one host meet: rank 0 hands the job's memory to the others over a Unix socket.

The socket is an abstract one, so there is no file that could be left behind and no port that a
stranger could reach from outside. Only processes of the same user that know the job's secret get
in: the host sends a nonce, the guest answers with an HMAC over it, and the host proves in turn
that it knows the secret too. The socket is gone as soon as everyone is in.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import struct
import time
from dataclasses import dataclass

from unisono.core.rendezvous import Launch
from unisono.errors import CommTimeout, LaunchError, OutOfSharedMemory, UnisonoError

__all__ = ["Guest", "Host"]

_HELLO = struct.Struct("!4sHHH32s32s")  # magic, version, rank, size, nonce, proof
_MAGIC = b"UNIS"
_VERSION = 1
_NONCE = 32
_REFUSED = b"refused "  # followed by the error; any other answer is a proof
_HERE = b"here"
_GO = b"go"
_STRANGERS = 64  # connections that have not proved anything yet; with more, the oldest has to go


def _name(launch: Launch) -> bytes:
    digest = hashlib.sha256(f"{os.getuid()}:{launch.job}".encode()).hexdigest()[:32]
    return b"\0unisono-" + digest.encode()


def _proof(launch: Launch, role: bytes, *parts: bytes) -> bytes:
    key = hashlib.sha256(launch.secret + b":" + launch.job.encode()).digest()
    return hmac.new(key, role + b"".join(parts), hashlib.sha256).digest()


def _owner(connection: socket.socket) -> int:
    """The user at the other end, by the kernel's word."""
    layout = struct.Struct("3i")  # pid, uid, gid
    uid: int = layout.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    )[1]
    return uid


def _refusal(error: UnisonoError) -> bytes:
    words = [type(error).__name__, error.ranks, str(error)[:2048]]
    return _REFUSED + json.dumps(words).encode()


def _refused(message: bytes) -> UnisonoError:
    """The error in a refusal, for the guest to raise."""
    try:
        kind, ranks, text = json.loads(message[len(_REFUSED) :])
    except ValueError:
        return LaunchError("who answered as rank 0 speaks another language")
    for known in (CommTimeout, OutOfSharedMemory):
        if kind == known.__name__:
            return known(f"{text} (told by rank 0)", ranks)
    return LaunchError(f"rank 0 refused this rank: {text}", ranks)


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    nonce: bytes
    rank: int = -1
    here: bool = False


class Host:
    """Rank 0's side. Opened at once, so that guests find it while the memory is being made."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(_name(launch))
        except OSError as error:
            self._listener.close()
            raise LaunchError(
                f"another job of this user is starting as {launch.job!r}; "
                "give each job its own MASTER_PORT or UNISONO_JOB"
            ) from error
        self._listener.listen(512)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._guests: dict[int, _Connection] = {}
        self._strangers: list[_Connection] = []  # the oldest first

    def admit(self, fd: int) -> None:
        """Give every guest the descriptor; return when all have taken their place."""
        try:
            self._serve(fd, None)
            self._tell_all(_GO)
        except UnisonoError as error:
            self._tell_all(_refusal(error))
            raise
        finally:
            self._close()

    def refuse(self, error: UnisonoError) -> None:
        """Tell every guest why there is no job; do not wait long for late ones."""
        self._deadline = min(self._deadline, time.monotonic() + 5)
        try:
            self._serve(-1, error)
        except (CommTimeout, LaunchError):
            pass  # our own reason matters more than who did not hear it
        finally:
            self._close()

    def _tell_all(self, message: bytes) -> None:
        for guest in self._guests.values():
            # Who has ended meanwhile is noticed by everyone in the first call.
            with contextlib.suppress(OSError):
                guest.socket.send(message)

    def _serve(self, fd: int, refusal: UnisonoError | None) -> None:
        size = self._launch.size
        while sum(guest.here for guest in self._guests.values()) < size - 1:
            left = self._deadline - time.monotonic()
            if left <= 0:
                came = {rank for rank, guest in self._guests.items() if guest.here}
                missing = sorted(set(range(1, size)) - came)
                raise CommTimeout(
                    f"{len(missing)} of {size} ranks did not come in {self._timeout:g} s: "
                    f"ranks {missing}; were they all started?",
                    missing,
                )
            for key, _ in self._selector.select(left):
                if key.data is None:
                    self._welcome()
                else:
                    self._hear(key.data, fd, refusal)

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        if _owner(connection) != os.getuid():
            connection.close()
            return
        if len(self._strangers) >= _STRANGERS + self._launch.size:
            self._drop(self._strangers[0])  # a true guest proves itself at once
        guest = _Connection(connection, secrets.token_bytes(_NONCE))
        self._strangers.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        try:
            connection.send(guest.nonce)
        except OSError:
            self._drop(guest)

    def _hear(self, guest: _Connection, fd: int, refusal: UnisonoError | None) -> None:
        if guest.socket.fileno() < 0:
            return  # it was dropped in this very round
        try:
            message = guest.socket.recv(4096)
        except OSError:
            message = b""
        if guest.rank >= 0:
            if message != _HERE:
                self._selector.unregister(guest.socket)
                rank = guest.rank
                raise LaunchError(f"rank {rank} ended while the job was starting", [rank])
            guest.here = True
            return
        answer = self._judge(guest, message, refusal)
        if answer is None:
            self._drop(guest)  # a stranger learns nothing
            return
        try:
            if answer.startswith(_REFUSED):
                guest.socket.send(answer)
            else:
                socket.send_fds(guest.socket, [answer], [fd])
        except OSError:
            self._drop(guest)
            return
        if answer.startswith(_REFUSED):
            if guest.rank >= 0:  # it belongs to the job that cannot be, and has been told
                guest.here = True
                self._hang_up(guest)
            else:
                self._drop(guest)

    def _judge(
        self, guest: _Connection, message: bytes, refusal: UnisonoError | None
    ) -> bytes | None:
        """The answer to a hello, or None if it proves nothing."""
        if len(message) != _HELLO.size:
            return None
        magic, version, rank, size, nonce, proof = _HELLO.unpack(message)
        expected = _proof(self._launch, b"guest", guest.nonce, message[: -len(proof)])
        if magic != _MAGIC or not hmac.compare_digest(proof, expected):
            return None
        if version != _VERSION:
            return _refusal(LaunchError("the ranks run different versions of unisono"))
        if size != self._launch.size or not 1 <= rank < size:
            text = f"rank {rank} of {size} does not belong to a job of {self._launch.size} ranks"
            return _refusal(LaunchError(text, [rank]))
        if rank in self._guests:
            text = f"there is a rank {rank} in job {self._launch.job!r} already"
            return _refusal(LaunchError(text, [rank]))
        guest.rank = rank
        self._guests[rank] = guest
        self._strangers.remove(guest)
        if refusal is not None:
            return _refusal(refusal)
        return _proof(self._launch, b"host", nonce)

    def _drop(self, guest: _Connection) -> None:
        if guest.rank < 0:
            self._strangers.remove(guest)
        self._guests.pop(guest.rank, None)
        self._hang_up(guest)

    def _hang_up(self, guest: _Connection) -> None:
        self._selector.unregister(guest.socket)
        guest.socket.close()

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.socket.close()
        for guest in self._guests.values():
            guest.socket.close()
        self._selector.close()
        self._listener.close()


class Guest:
    """The side of every other rank."""

    def __init__(self, launch: Launch, timeout: float) -> None:
        self._launch = launch
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._socket = self._connect()

    def join(self) -> int:
        """Prove who we are and take the descriptor."""
        nonce = self._receive()[0]
        own_nonce = secrets.token_bytes(_NONCE)
        body = _HELLO.pack(
            _MAGIC, _VERSION, self._launch.rank, self._launch.size, own_nonce, bytes(32)
        )[:-32]
        self._socket.send(body + _proof(self._launch, b"guest", nonce, body))
        answer, fds = self._receive()
        if answer.startswith(_REFUSED):
            raise _refused(answer)
        expected = _proof(self._launch, b"host", own_nonce)
        if len(fds) != 1 or not hmac.compare_digest(answer, expected):
            raise LaunchError("who answered as rank 0 does not know the secret of this job")
        # From here on rank 0 keeps the deadline and tells us who is missing; it began before us.
        self._deadline = time.monotonic() + self._timeout + 1
        return fds[0]

    def settle(self) -> None:
        """Say that we are in place, and wait until everyone is."""
        self._socket.send(_HERE)
        answer = self._receive()[0]
        if answer.startswith(_REFUSED):
            raise _refused(answer)
        if answer != _GO:
            raise LaunchError("rank 0 gave up while the job was starting")
        self._socket.close()

    def close(self) -> None:
        """Hang up; allowed at any time."""
        self._socket.close()

    def _connect(self) -> socket.socket:
        pause = 0.001
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(_name(self._launch))
                break
            except OSError:  # rank 0 is not there yet, or its queue is full
                connection.close()
            if time.monotonic() > self._deadline:
                raise CommTimeout(
                    f"rank 0 of job {self._launch.job!r} did not come in {self._timeout:g} s; "
                    "was it started on this host, by this user?",
                    [0],
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        if _owner(connection) != os.getuid():
            connection.close()
            job = self._launch.job
            raise LaunchError(f"another user answers for job {job!r}; choose another name")
        return connection

    def _receive(self) -> tuple[bytes, list[int]]:
        self._socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise CommTimeout(
                f"the other ranks did not come in {self._timeout:g} s; were they all started?"
            ) from None
        except OSError:
            message, fds = b"", []
        if not message:
            raise LaunchError(
                "rank 0 hung up while the job was starting: it ended, gave up waiting for others, "
                "or does not know the secret of this job",
                [0],
            )
        return message, fds
