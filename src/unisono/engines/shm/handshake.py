"""The messages of the rendezvous on one host: hello, proof, join, rejection.

Rank 0 listens at one of a few abstract Unix sockets. A peer that connects there is sent a nonce and
answers with a hello. Both sides prove that they know the job's secret, with an HMAC over the
other's nonce and over the process that the kernel reports at the other end, so nobody between
them can relay the messages. At most 4 KB are read from any peer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time

from unisono import errors
from unisono.core.environment import Launch
from unisono.engines.shm.job_identity import Traits, own_traits, pack, unpack
from unisono.errors import CommTimeout, LaunchError, OutOfSharedMemory, UnisonoError

__all__ = [
    "ADDRESSES",
    "AMBIGUOUS",
    "JOIN",
    "MAX_MESSAGE",
    "MEMORY",
    "NONCE_BYTES",
    "PROOF_TIMEOUT",
    "READY",
    "RETRY",
    "START",
    "Hello",
    "ServerProbe",
    "address",
    "ambiguous_jobs",
    "credentials",
    "is_same_user",
    "probe",
    "proof",
    "read_hello",
    "rejection",
    "server_hello",
    "traits_of",
]

ADDRESSES = 8  # where a rank 0 may listen: the first, unless a stranger or another job has taken it
NONCE_BYTES = 32  # as long as a proof
MAX_MESSAGE = 4096  # bytes
PROOF_TIMEOUT = 3.0  # seconds after which a peer that has proved nothing is ignored
_HEAD = struct.Struct("!4sHHH32s")  # magic, version, rank, size, nonce
_SIZE = struct.Struct("!H")  # of rank 0's job, after its proof and before its traits
_MAGIC = b"UNIS"
_VERSION = 3
# Messages after both sides have proved who they are.
JOIN = b"join"  # a client has chosen this rank 0
AMBIGUOUS = b"ambiguous"  # a client cannot tell this rank 0 from another one
RETRY = b"retry"  # another rank 0 has come that matches the client better: choose again
MEMORY = b"memory"  # comes with the file descriptor
READY = b"ready"  # a client has mapped the memory
START = b"start"  # all clients have
_REJECTED = b"rejected "  # followed by a proof and the error


def address(launch: Launch, index: int = 0) -> bytes:
    """Return one of the addresses at which rank 0 of this job may listen."""
    digest = hashlib.sha256(f"{os.getuid()}:{launch.job}".encode()).hexdigest()[:32]
    return f"\0unisono-{digest}-{index}".encode()


def traits_of(launch: Launch) -> Traits:
    """Describe how this process was started; a job with a name of its own does not need that."""
    return frozenset() if launch.is_named else own_traits()


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel reports them."""
    layout = struct.Struct("3i")  # pid, uid, gid
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    pid, uid, _ = layout.unpack(raw)
    return pid, uid


def is_same_user(connection: socket.socket) -> bool:
    """Tell whether a process of this user is at the other end."""
    return credentials(connection)[1] == os.getuid()


def proof(launch: Launch, role: bytes, pid: int, *parts: bytes) -> bytes:
    """Prove that process `pid` is a rank of the job: only those can make this HMAC."""
    key = hashlib.sha256(launch.secret + b":" + launch.job.encode()).digest()
    body = b"".join([role, struct.pack("!i", pid), *parts])
    return hmac.new(key, body, hashlib.sha256).digest()


class Hello:
    """What a peer says about itself, after its proof was checked."""

    def __init__(self, message: bytes) -> None:
        magic, version, self.rank, self.size, self.nonce = _HEAD.unpack_from(message)
        self.traits = unpack(message[_HEAD.size : -NONCE_BYTES])
        #: whether the peer uses the same version of this protocol
        self.has_same_version = (magic, version) == (_MAGIC, _VERSION)


def read_hello(launch: Launch, message: bytes, nonce: bytes, pid: int) -> Hello | None:
    """Read a peer's hello; None if it proves nothing."""
    if len(message) < _HEAD.size + NONCE_BYTES:
        return None
    expected = proof(launch, b"client", pid, nonce, message[:-NONCE_BYTES])
    if not hmac.compare_digest(message[-NONCE_BYTES:], expected):
        return None
    return Hello(message)


def server_hello(launch: Launch, traits: Traits, nonce: bytes) -> bytes:
    """Write rank 0's answer to the peer that sent this nonce."""
    body = _SIZE.pack(launch.size) + pack(traits)
    return proof(launch, b"server", os.getpid(), nonce, body) + body


def rejection(launch: Launch, error: UnisonoError, nonce: bytes) -> bytes:
    """Write the error as a message for the one peer that sent this nonce."""
    body = _encode_error(error, MAX_MESSAGE - len(_REJECTED) - NONCE_BYTES)
    return _REJECTED + proof(launch, b"rejection", os.getpid(), nonce, body) + body


def _encode_error(error: UnisonoError, max_bytes: int) -> bytes:
    """Encode an error as JSON; one that is too long loses what matters least."""
    data = error.to_data()
    encoded = json.dumps(data).encode()
    if len(encoded) <= max_bytes:
        return encoded
    message = data["message"]
    while len(encoded) > max_bytes:
        short = {"type": data["type"], "message": message + " ...", "ranks": data["ranks"][:128]}
        encoded = json.dumps(short).encode()
        message = message[: len(message) * 3 // 4]
    return encoded


def ambiguous_jobs(launch: Launch) -> LaunchError:
    """Return the error of every rank of two jobs that nobody can tell apart."""
    return LaunchError(
        f"two jobs are starting as {launch.job!r}, and it is not certain which rank belongs to "
        "which; start them again, and give each job its own MASTER_PORT or UNISONO_JOB"
    )


class ServerProbe:
    """A connection to one address: says who we are, and finds out who listens there."""

    def __init__(
        self, launch: Launch, traits: Traits, index: int, connection: socket.socket
    ) -> None:
        self.socket = connection
        self.index = index  # of the address
        self.since = time.monotonic()
        self.traits: Traits | None = None  # of a rank 0 that has proved itself
        self.size = 0  # of its job
        self.is_stranger = False  # it has sent something that no rank 0 of our job sends
        self.is_closed = False
        self._launch = launch
        self._own = traits
        self._nonce = b""

    @property
    def is_undecided(self) -> bool:
        """Whether we do not know yet who listens there, and may still learn it."""
        known = self.traits is not None or self.is_stranger or self.is_closed
        return not known and time.monotonic() - self.since < PROOF_TIMEOUT

    @property
    def has_no_proof(self) -> bool:
        """Whether we said who we are, and got no proof in return."""
        closed = self.is_closed and self.traits is None
        return bool(self._nonce) and (closed or self.is_stranger)

    def receive(self) -> None:
        """Handle one message that has arrived; raises the error if rank 0 of our job rejects us."""
        try:
            message = self.socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.is_closed = True
        elif not self._nonce:
            self._send_hello(message)
        else:
            error = self.read_rejection(message)
            if error is not None:
                raise error
            if self.traits is None:
                self._check_server_hello(message)

    def _send_hello(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            self.is_stranger = True
            return
        launch = self._launch
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        body = _HEAD.pack(_MAGIC, _VERSION, launch.rank, launch.size, self._nonce)
        body += pack(self._own)
        try:
            self.socket.send(body + proof(launch, b"client", os.getpid(), nonce, body))
        except OSError:
            self.is_closed = True

    def _check_server_hello(self, message: bytes) -> None:
        received, body = message[:NONCE_BYTES], message[NONCE_BYTES:]
        pid, _ = credentials(self.socket)
        expected = proof(self._launch, b"server", pid, self._nonce, body)
        if hmac.compare_digest(received, expected):
            self.size = _SIZE.unpack_from(body)[0]
            self.traits = unpack(body[_SIZE.size :])
        else:
            self.is_stranger = True

    def read_rejection(self, message: bytes) -> UnisonoError | None:
        """Read the error that rank 0 of our job rejects us with; None if this is no rejection."""
        start = len(_REJECTED)
        body = message[start + NONCE_BYTES :]
        pid, _ = credentials(self.socket)
        expected = proof(self._launch, b"rejection", pid, self._nonce, body)
        received = message[start : start + NONCE_BYTES]
        if not message.startswith(_REJECTED) or not hmac.compare_digest(received, expected):
            return None
        try:
            error = errors.from_data(json.loads(body))
        except (ValueError, TypeError, AttributeError):
            return LaunchError("rank 0 rejected this rank, in a message that cannot be read", [0])
        if isinstance(error, CommTimeout | OutOfSharedMemory):
            return type(error)(f"{error} (reported by rank 0)", error.ranks)
        return LaunchError(f"rank 0 rejected this rank: {error}", error.ranks)


def probe(launch: Launch, traits: Traits, index: int) -> ServerProbe | None:
    """Connect to an address; None if no process of this user listens there, or too many connect."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        connection.connect(address(launch, index))
        if is_same_user(connection):
            return ServerProbe(launch, traits, index, connection)
    except OSError:
        pass
    connection.close()
    return None
