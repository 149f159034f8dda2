"""`TCPStore`: names and values that the ranks of a job share, kept by one of them.

The protocol is length-prefixed bytes and nothing is unpickled: whoever reaches the port can read
and write the store, as with upstream's, but can run nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

from unisono.errors import ArgumentError, ArgumentTypeError, CommTimeout, LaunchError, UnisonoError

__all__ = ["TCPStore"]

_LONGEST = 1 << 30  # bytes of one value: a bad length must not ask for the whole memory


class TCPStore:
    """A store at `host_name:port`; the process with `is_master` serves it for all others."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        for value, kind, name in (
            (host_name, str, "host_name"),
            (port, int, "port"),
            (is_master, bool, "is_master"),
            (timeout, timedelta, "timeout"),
            (wait_for_workers, bool, "wait_for_workers"),
            (1 if world_size is None else world_size, int, "world_size"),
        ):
            _check(value, kind, name)
        size = 1 if world_size is None else world_size
        if not _is_name(host_name):
            raise ArgumentError(f"host_name is {host_name!r}, which is no name of a host")
        if not 0 <= port <= 65535:
            raise ArgumentError(f"port is {port}; it must be between 0 and 65535")
        if size <= 0:
            raise ArgumentError(f"world_size is {size}; it must be 1 or more")
        self.host = host_name
        self.port = port
        self._seconds = timeout.total_seconds()
        self._server: _Server | None = None
        if os.environ.get("MS_ROLE") == "MS_SCHED":
            return  # msrun's scheduler runs the script too, and must not take the master's port
        if is_master:
            try:
                self._server = _Server((host_name, port))
            except OSError as error:
                raise LaunchError(f"cannot serve a store at {host_name}:{port}: {error}") from error
            self.port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, daemon=True).start()
            weakref.finalize(self, _stop, self._server, os.getpid())
        self._ask(b"j", "", b"")
        if is_master and wait_for_workers:
            self._wait_for_workers(size)

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value under `key`, in place of what was there."""
        _check(key, str, "key")
        _check(value, (str, bytes), "value")
        self._ask(b"s", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The value under `key`; waits until there is one, or until the timeout passes."""
        _check(key, str, "key")
        return self._ask(b"g", key, b"")

    def add(self, key: str, amount: int) -> int:
        """Add to the number under `key`, which begins at 0, and return it."""
        _check(key, str, "key")
        _check(amount, int, "amount")
        return int(self._ask(b"a", key, str(amount).encode()))

    def delete_key(self, key: str) -> bool:
        """Forget `key`; tells whether it was there."""
        _check(key, str, "key")
        return self._ask(b"d", key, b"") == b"1"

    def _wait_for_workers(self, size: int) -> None:
        assert self._server is not None
        table = self._server.table
        with table.changed:
            if not table.changed.wait_for(lambda: table.joined >= size, self._seconds):
                raise CommTimeout(
                    f"{table.joined} of {size} processes came to the store in {self._seconds:g} s"
                )

    def _ask(self, verb: bytes, key: str, value: bytes) -> bytes:
        """One question, one connection: the store is for meeting, not for speed."""
        until = time.monotonic() + self._seconds
        while True:
            left = max(0.01, until - time.monotonic())
            try:
                with socket.create_connection((self.host, self.port), timeout=left) as line:
                    wait = struct.pack("!d", left)
                    line.sendall(verb + wait + _packed(key.encode()) + _packed(value))
                    line.settimeout(left + 5)  # the server says itself when the time is over
                    status = _exactly(line, 1)
                    answer = _unpacked(line)
                    break
            except ConnectionRefusedError as error:
                # The master may start after us.
                if time.monotonic() >= until:
                    where = f"{self.host}:{self.port}"
                    raise CommTimeout(f"nobody serves a store at {where}: {error}") from error
                time.sleep(0.05)
            except OSError as error:
                raise LaunchError(
                    f"the store at {self.host}:{self.port} is gone: {error}"
                ) from error
        if status == b"t":
            raise CommTimeout(f"nobody has set {key!r} in the store in {self._seconds:g} s")
        if status == b"e":
            raise UnisonoError(answer.decode())
        return answer


class _Table:
    """The names and values, and how many clients have come."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[bytes, bytes] = {}
        self.joined = 0

    def answer(self, verb: bytes, wait: float, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Do what a client asks; the status is b"o" (fine), b"t" (too late) or b"e" (error)."""
        with self.changed:
            reply = b""
            if verb == b"j":
                self.joined += 1
            elif verb == b"s":
                self.values[key] = value
            elif verb == b"g":
                if not self.changed.wait_for(lambda: key in self.values, min(wait, 86400.0)):
                    return b"t", b""
                reply = self.values[key]
            elif verb == b"a":
                try:
                    reply = str(int(self.values.get(key, b"0")) + int(value)).encode()
                except ValueError:
                    return b"e", f"the value under {key.decode()!r} is not a number".encode()
                self.values[key] = reply
            elif verb == b"d":
                reply = b"0" if self.values.pop(key, None) is None else b"1"
            self.changed.notify_all()
            return b"o", reply


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        # A client that went away, or one that does not speak this language, ends here.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            verb, wait = struct.unpack("!cd", _exactly(self.request, 9))
            key, value = _unpacked(self.request), _unpacked(self.request)
            status, reply = self.server.table.answer(verb, wait, key, value)  # type: ignore[attr-defined]
            self.request.sendall(status + _packed(reply))


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self.table = _Table()
        super().__init__(address, _Handler)


def _is_name(host: str) -> bool:
    """Whether sockets take it as a host at all."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def _stop(server: _Server, process: int) -> None:
    # A forked child has a copy of the store, but the server thread is its parent's.
    if process == os.getpid():
        server.shutdown()
        server.server_close()


def _check(value: Any, kind: type | tuple[type, ...], name: str) -> None:
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} cannot be {value!r}; it must be {kind}")


def _packed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def _unpacked(line: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", _exactly(line, 4))
    if length > _LONGEST:
        raise OSError(f"a message of {length} bytes is too long")
    return _exactly(line, length)


def _exactly(line: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = line.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise OSError("the connection ended early")
        parts += part
    return bytes(parts)
