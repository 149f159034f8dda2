"""`TCPStore`: names and values that the ranks of a job share, kept by one of them.

The protocol is length-prefixed bytes and nothing is unpickled: a process that can connect to the
port can read and write the store, as upstream, but cannot run code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import socketserver
import struct
import threading
import time
import weakref
from datetime import timedelta

from unisono.errors import ArgumentError, CommTimeout, LaunchError, UnisonoError
from unisono.mindspore._arguments import check_type

__all__ = ["TCPStore"]

_log = logging.getLogger("unisono")

_MAX_BYTES = 1 << 30  # of one value: a wrong length must not allocate all memory


class TCPStore:
    """A store at `host_name:port`; the process with `is_master` serves it for all others.

    >>> store = communication.TCPStore("127.0.0.1", 0, is_master=True)
    >>> store.set("step", "12")
    >>> store.get("step")
    b'12'
    """

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
            check_type(value, name, kind)
        size = 1 if world_size is None else world_size
        if not _is_host(host_name):
            raise ArgumentError(f"host_name is {host_name!r}; it must be a name or an address")
        if not 0 <= port <= 65535:
            raise ArgumentError(f"port is {port}; it must be between 0 and 65535")
        if size <= 0:
            raise ArgumentError(f"world_size is {size}; it must be 1 or more")
        self.host = host_name
        self.port = port
        self._seconds = timeout.total_seconds()
        self._server: _Server | None = None
        if os.environ.get("MS_ROLE") == "MS_SCHED":
            return  # msrun's scheduler runs the script too, and must not serve at the master's port
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
        """Set the value of `key`, whether it has one or not."""
        check_type(key, "key", str)
        check_type(value, "value", str, bytes)
        self._ask(b"s", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The value of `key`; waits until it is set, or until the timeout passes."""
        check_type(key, "key", str)
        return self._ask(b"g", key, b"")

    def add(self, key: str, amount: int) -> int:
        """Add to the number at `key`, which starts at 0, and return it."""
        check_type(key, "key", str)
        check_type(amount, "amount", int)
        return int(self._ask(b"a", key, str(amount).encode()))

    def delete_key(self, key: str) -> bool:
        """Delete `key`; returns whether it was set."""
        check_type(key, "key", str)
        return self._ask(b"d", key, b"") == b"1"

    def _wait_for_workers(self, size: int) -> None:
        """Wait for the others, or until the timeout passes: upstream goes on without them too."""
        assert self._server is not None
        table = self._server.table
        with table.changed:
            if not table.changed.wait_for(lambda: table.joined >= size, self._seconds):
                _log.warning(
                    "%d of %d processes connected to the store at %s:%d within %g s; "
                    "the others may still connect",
                    table.joined,
                    size,
                    self.host,
                    self.port,
                    self._seconds,
                )

    def _ask(self, verb: bytes, key: str, value: bytes) -> bytes:
        """Send one request over a connection of its own: rendezvous does not need speed."""
        deadline = time.monotonic() + self._seconds
        while True:
            left = max(0.01, deadline - time.monotonic())
            try:
                with socket.create_connection((self.host, self.port), timeout=left) as connection:
                    wait = struct.pack("!d", left)
                    connection.sendall(verb + wait + _message(key.encode()) + _message(value))
                    connection.settimeout(left + 5)  # the server answers when the timeout passes
                    status = _read_exactly(connection, 1)
                    answer = _read_message(connection)
                    break
            except ConnectionRefusedError as error:
                # The master may start later than this process.
                if time.monotonic() >= deadline:
                    where = f"{self.host}:{self.port}"
                    raise CommTimeout(
                        f"no process serves a store at {where}: {error}; start the one with "
                        "is_master=True"
                    ) from error
                time.sleep(0.05)
            except OSError as error:
                raise LaunchError(
                    f"lost the connection to the store at {self.host}:{self.port}: {error}"
                ) from error
        if status == b"t":
            raise CommTimeout(f"no process set {key!r} in the store within {self._seconds:g} s")
        if status == b"e":
            raise UnisonoError(answer.decode())
        return answer


class _Table:
    """The names and values, and how many clients have joined."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[bytes, bytes] = {}
        self.joined = 0

    def answer(self, verb: bytes, wait: float, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        """Answer one request; the status is b"o" (fine), b"t" (timeout) or b"e" (error)."""
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
                    return b"e", f"the value of {key.decode()!r} is not a number".encode()
                self.values[key] = reply
            elif verb == b"d":
                reply = b"0" if self.values.pop(key, None) is None else b"1"
            self.changed.notify_all()
            return b"o", reply


class _Handler(socketserver.BaseRequestHandler):
    """Reads one request and answers it."""

    def handle(self) -> None:
        # A client that disconnects, or that uses another protocol, is no error of the server.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            verb, wait = struct.unpack("!cd", _read_exactly(self.request, 9))
            key, value = _read_message(self.request), _read_message(self.request)
            status, reply = self.server.table.answer(verb, wait, key, value)  # type: ignore[attr-defined]
            self.request.sendall(status + _message(reply))


class _Server(socketserver.ThreadingTCPServer):
    """Serves one table, with a thread for each request: some wait for a key."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        self.table = _Table()
        super().__init__(address, _Handler)


def _is_host(host: str) -> bool:
    """Whether sockets accept it as a host."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def _stop(server: _Server, process: int) -> None:
    # A forked child has a copy of the store, but the server thread runs in its parent.
    if process == os.getpid():
        server.shutdown()
        server.server_close()


def _message(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def _read_message(connection: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", _read_exactly(connection, 4))
    if length > _MAX_BYTES:
        raise OSError(f"a message of {length} bytes is too long")
    return _read_exactly(connection, length)


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise OSError("the other side closed the connection")
        parts += part
    return bytes(parts)
