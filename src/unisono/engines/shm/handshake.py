"""The words that ranks of one host say when they meet: names of seats, hellos, proofs, refusals.

A rank 0 sits at one of a few abstract Unix sockets, its seat; whoever calls there is sent a nonce
and answers with a hello. Both sides prove that they know the job's secret, with an HMAC over the
other's nonce and over the process that the kernel says is at each end, so that nobody between them
can pass the words on. At most 4 KB are read from anybody.
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

from unisono.core.environment import Launch
from unisono.engines.shm.job_identity import Points, own_points, packed, unpacked
from unisono.errors import CommTimeout, LaunchError, OutOfSharedMemory, UnisonoError

__all__ = [
    "AWAY",
    "GO",
    "HERE",
    "JOIN",
    "MEMORY",
    "TORN",
    "MOST",
    "NONCE",
    "PATIENCE",
    "SEATS",
    "Hello",
    "Line",
    "answer",
    "call",
    "hello",
    "is_ours",
    "name",
    "peer",
    "points_of",
    "proof",
    "refusal",
    "two_jobs",
]

SEATS = 8  # where a rank 0 may be: one, unless a stranger or another job has taken it
NONCE = 32  # bytes, as long as a proof
MOST = 4096  # bytes of any message
PATIENCE = 3.0  # seconds after which whoever has proved nothing does not count
_HEAD = struct.Struct("!4sHHH32s")  # magic, version, rank, size, nonce
_SIZE = struct.Struct("!H")  # of rank 0's job, behind its proof and before its points
_MAGIC = b"UNIS"
_VERSION = 2
# Later words, once both have proved who they are.
JOIN = b"join"  # a guest has chosen this rank 0
TORN = b"torn"  # a guest cannot tell this rank 0 from another one
AWAY = b"away"  # another rank 0 has come whom the guest is more like: choose again
MEMORY = b"memory"  # comes with the descriptor
HERE = b"here"
GO = b"go"
_REFUSED = b"refused "  # followed by a proof and the error


def name(launch: Launch, seat: int = 0) -> bytes:
    """The address of one seat."""
    digest = hashlib.sha256(f"{os.getuid()}:{launch.job}".encode()).hexdigest()[:32]
    return f"\0unisono-{digest}-{seat}".encode()


def points_of(launch: Launch) -> Points:
    """How this process was started, where that matters: a job with a name of its own needs none."""
    return frozenset() if launch.is_named else own_points()


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, by the kernel's word."""
    layout = struct.Struct("3i")  # pid, uid, gid
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    pid, uid, _ = layout.unpack(raw)
    return pid, uid


def is_ours(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end."""
    return peer(connection)[1] == os.getuid()


def proof(launch: Launch, role: bytes, pid: int, *parts: bytes) -> bytes:
    """What only a rank of the job can say, and only in the name of process `pid`."""
    key = hashlib.sha256(launch.secret + b":" + launch.job.encode()).digest()
    words = b"".join([role, struct.pack("!i", pid), *parts])
    return hmac.new(key, words, hashlib.sha256).digest()


class Hello:
    """What a caller has said, once it is proved."""

    def __init__(self, message: bytes) -> None:
        magic, version, self.rank, self.size, self.nonce = _HEAD.unpack_from(message)
        self.points = unpacked(message[_HEAD.size : -NONCE])
        #: whether the caller uses the same version of these words
        self.is_of_our_version = (magic, version) == (_MAGIC, _VERSION)


def hello(launch: Launch, message: bytes, nonce: bytes, pid: int) -> Hello | None:
    """A caller's hello, or None if it proves nothing."""
    if len(message) < _HEAD.size + NONCE:
        return None
    expected = proof(launch, b"caller", pid, nonce, message[:-NONCE])
    if not hmac.compare_digest(message[-NONCE:], expected):
        return None
    return Hello(message)


def answer(launch: Launch, points: Points, nonce: bytes) -> bytes:
    """What rank 0 says to the caller who sent this nonce."""
    words = _SIZE.pack(launch.size) + packed(points)
    return proof(launch, b"host", os.getpid(), nonce, words) + words


def refusal(launch: Launch, error: UnisonoError, nonce: bytes) -> bytes:
    """The error as a message, for the one caller who sent this nonce."""
    words = json.dumps([type(error).__name__, error.ranks, str(error)[:2048]]).encode()
    return _REFUSED + proof(launch, b"refusal", os.getpid(), nonce, words) + words


def two_jobs(launch: Launch) -> LaunchError:
    """The error of every rank of two jobs that nobody can tell apart."""
    return LaunchError(
        f"two jobs are starting as {launch.job!r}, and which rank belongs to which cannot be told; "
        "start again, and give each job its own MASTER_PORT or UNISONO_JOB"
    )


class Line:
    """A call to one seat: says who we are, and finds out who sits there."""

    def __init__(self, launch: Launch, points: Points, seat: int, line: socket.socket) -> None:
        self.socket = line
        self.seat = seat
        self.since = time.monotonic()
        self.points: Points | None = None  # of a rank 0 that has proved itself
        self.size = 0  # of its job
        self.is_false = False  # it has proved that it is none
        self.has_ended = False
        self._launch = launch
        self._own = points
        self._nonce = b""

    @property
    def is_open(self) -> bool:
        """Whether we do not know yet who that is, and may still learn it."""
        known = self.points is not None or self.is_false or self.has_ended
        return not known and time.monotonic() - self.since < PATIENCE

    @property
    def has_refused_us(self) -> bool:
        """Whether we said who we are, and got no proof in return."""
        ended = self.has_ended and self.points is None
        return bool(self._nonce) and (ended or self.is_false)

    def hear(self) -> None:
        """Take one message that has come; raises what a rank 0 of our job refuses us for."""
        try:
            message = self.socket.recv(MOST)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.has_ended = True
        elif not self._nonce:
            self._introduce(message)
        else:
            error = self.refused(message)
            if error is not None:
                raise error
            if self.points is None:
                self._check(message)

    def _introduce(self, nonce: bytes) -> None:
        if len(nonce) != NONCE:
            self.is_false = True
            return
        launch = self._launch
        self._nonce = secrets.token_bytes(NONCE)
        body = _HEAD.pack(_MAGIC, _VERSION, launch.rank, launch.size, self._nonce)
        body += packed(self._own)
        try:
            self.socket.send(body + proof(launch, b"caller", os.getpid(), nonce, body))
        except OSError:
            self.has_ended = True

    def _check(self, message: bytes) -> None:
        said, words = message[:NONCE], message[NONCE:]
        expected = proof(self._launch, b"host", peer(self.socket)[0], self._nonce, words)
        if hmac.compare_digest(said, expected):
            self.size = _SIZE.unpack_from(words)[0]
            self.points = unpacked(words[_SIZE.size :])
        else:
            self.is_false = True

    def refused(self, message: bytes) -> UnisonoError | None:
        """The error in a refusal that rank 0 of our job has sent; None if this is none."""
        start = len(_REFUSED)
        words = message[start + NONCE :]
        expected = proof(self._launch, b"refusal", peer(self.socket)[0], self._nonce, words)
        said = message[start : start + NONCE]
        if not message.startswith(_REFUSED) or not hmac.compare_digest(said, expected):
            return None
        kind, ranks, text = json.loads(words)
        for known in (CommTimeout, OutOfSharedMemory):
            if kind == known.__name__:
                return known(f"{text} (told by rank 0)", ranks)
        return LaunchError(f"rank 0 refused this rank: {text}", ranks)


def call(launch: Launch, points: Points, seat: int) -> Line | None:
    """Call a seat; None if nobody of this user sits there, or too many are calling."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        connection.connect(name(launch, seat))
        if is_ours(connection):
            return Line(launch, points, seat, connection)
    except OSError:
        pass
    connection.close()
    return None
