"""Who is admitted to a job, and who is not: strangers, impostors, other users."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.processes import DEADLINE, wait_until
from tests.helpers.start_cases import START, WAITING, address_of, check_started, connect
from tests.helpers.thorough import essential
from unisono.core.environment import Launch
from unisono.engines.shm import handshake
from unisono.errors import CommTimeout, LaunchError, OutOfSharedMemory, UnisonoError
from unisono.launch.process import JobEnvironment

NOBODY = 65534


# ---- strangers who connect -----------------------------------------------------------------------

MESSAGES: dict[str, Callable[[], list[bytes]]] = {
    "no bytes": lambda: [b""],
    "8 zero bytes": lambda: [bytes(8)],
    "4096 bytes": lambda: [bytes(4096)],
    "random bytes": lambda: [secrets.token_bytes(74 + extra) for extra in range(64)],
    "later messages of clients": lambda: [
        handshake.JOIN,
        handshake.READY,
        handshake.AMBIGUOUS,
    ],
    "messages of rank 0": lambda: [
        handshake.START,
        handshake.RETRY,
        handshake.MEMORY,
        b"rejected " + bytes(40),
    ],
}


@pytest.mark.parametrize("kind", essential(2, MESSAGES))
def test_strangers_who_connect_early_and_send(kind: str) -> None:
    with Ranks(3, START, only=[0]) as ranks, contextlib.ExitStack() as held:
        for message in MESSAGES[kind]():
            stranger = held.enter_context(connect(address_of(ranks.job)))
            for _ in range(3):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    stranger.send(message)
        for rank in (1, 2):
            ranks.start(rank)
        check_started(ranks, 3)


def test_a_thousand_silent_strangers() -> None:
    with Ranks(2, START, only=[0]) as ranks, contextlib.ExitStack() as held:
        for _ in range(1000):
            held.enter_context(connect(address_of(ranks.job)))
        ranks.start(1)
        check_started(ranks, 2)


def test_strangers_who_never_stop_connecting() -> None:
    with Ranks(3, START, only=[0]) as ranks:
        over = threading.Event()

        def keep_connecting() -> None:
            held: list[socket.socket] = []
            while not over.is_set():
                stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                held.append(stranger)
                with contextlib.suppress(OSError):
                    stranger.connect(address_of(ranks.job))
                    stranger.send(bytes(8))
                if len(held) > 100:
                    held.pop(0).close()
                over.wait(0.001)
            for stranger in held:
                stranger.close()

        connect(address_of(ranks.job)).close()
        thread = threading.Thread(target=keep_connecting)
        thread.start()
        try:
            for rank in (1, 2):
                ranks.start(rank)
            check_started(ranks, 3)
        finally:
            over.set()
            thread.join()


# ---- impostors who listen where rank 0 should ----------------------------------------------------


class Impostor:
    """Listens at the first address of a job before its rank 0; `answer` handles each peer."""

    def __init__(self, job: JobEnvironment, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address_of(job))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve)
        self._over = False
        self.connections = 0

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.ExitStack() as held:
            while not self._over:
                with contextlib.suppress(OSError):
                    connection, _ = self._listener.accept()
                    self.connections += 1
                    held.enter_context(connection)
                    connection.settimeout(DEADLINE)
                    self._answer(connection)


def silence(connection: socket.socket) -> None:
    pass


def hang_up(connection: socket.socket) -> None:
    connection.close()


def noise(connection: socket.socket) -> None:
    connection.send(bytes(4096))


def false_proof(connection: socket.socket) -> None:
    connection.send(secrets.token_bytes(32))
    connection.recv(4096)
    connection.send(secrets.token_bytes(34))


def false_rejection(connection: socket.socket) -> None:
    connection.send(secrets.token_bytes(32))
    connection.recv(4096)
    connection.send(b"rejected " + secrets.token_bytes(32) + b'{"type": "LaunchError"}')


def false_memory(connection: socket.socket) -> None:
    connection.send(secrets.token_bytes(32))
    connection.recv(4096)
    fd = os.memfd_create("false")
    socket.send_fds(connection, [b"memory"], [fd])
    os.close(fd)


@pytest.mark.parametrize(
    "answer",
    essential(2, [false_proof, silence, hang_up, noise, false_rejection, false_memory]),
)
def test_impostors_change_nothing(
    answer: Callable[[socket.socket], None],
) -> None:
    job = JobEnvironment(3)
    with Impostor(job, answer) as impostor, Ranks(3, START, job=job) as ranks:
        check_started(ranks, 3)
        assert impostor.connections


def test_replayed_hello() -> None:
    """The hello of a real rank answers one nonce, and proves nothing for another."""
    job = JobEnvironment(2)
    received: list[bytes] = []

    def record(connection: socket.socket) -> None:
        connection.send(secrets.token_bytes(32))
        received.append(connection.recv(4096))

    with Ranks(2, START, only=[1], job=job) as clients:
        with Impostor(job, record):
            wait_until(lambda: bool(received))
        clients.kill()
    with Ranks(2, START, only=[0], job=job) as ranks:
        with connect(address_of(job)) as stranger:
            assert len(stranger.recv(4096)) == 32
            stranger.send(received[0])
            assert stranger.recv(4096) == b""  # it disconnects
        ranks.start(1)
        check_started(ranks, 2)


def relay_handshake() -> list[tuple[bytes, list[int]]]:
    """Return what an impostor could relay before the client and rank 0 were connected."""
    job = JobEnvironment(2)
    relayed: list[tuple[bytes, list[int]]] = []

    def relay(client: socket.socket) -> None:
        if impostor.connections > 1:  # rank 0 probes this address, and may be gone by now
            client.close()
            return
        with connect(address_of(job, 1)) as server, selectors.DefaultSelector() as both:
            both.register(client, selectors.EVENT_READ, server)
            both.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in both.select(1):
                    message, fds, _, _ = socket.recv_fds(key.fileobj, 4096, 4)
                    if not message:
                        return
                    relayed.append((message, fds))
                    socket.send_fds(key.data, [message], fds)

    with Impostor(job, relay) as impostor, Ranks(2, START, only=[1], job=job) as ranks:
        wait_until(lambda: impostor.connections > 0)  # by the client, not by rank 0
        ranks.start(0)
        check_started(ranks, 2)
    return relayed


@pytest.mark.thorough
def test_nobody_can_relay_the_handshake() -> None:
    """An impostor between a client and rank 0 sees all messages, and gets no file descriptor."""
    for _ in range(5):
        relayed = relay_handshake()
        assert not any(fds or message == handshake.JOIN for message, fds in relayed)
        if any(len(message) > 64 for message, _ in relayed):  # a hello was relayed
            return
    raise AssertionError("the client was always faster than the impostor")


def test_all_addresses_are_in_use() -> None:
    job = JobEnvironment(2)
    with contextlib.ExitStack() as held:
        for index in range(handshake.ADDRESSES):
            squatter = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            squatter.bind(address_of(job, index))
        with Ranks(2, START, only=[0], job=job) as ranks:
            error = ranks[0].read()
            assert error["kind"] == "LaunchError" and "another job of this user" in error["text"]


# ---- rejections ----------------------------------------------------------------------------------


def receive_rejection(make: Callable[[Launch, bytes], bytes]) -> UnisonoError:
    """Shake hands as a client, and return the error that the message of `make` rejects it with."""
    launch = Launch(1, 600, 1, 600, "a job", "test")
    nonce = secrets.token_bytes(handshake.NONCE_BYTES)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        probe = handshake.ServerProbe(launch, frozenset(), 0, ours)
        theirs.send(nonce)
        probe.receive()
        received = theirs.recv(handshake.MAX_MESSAGE)
        hello = handshake.read_hello(launch, received, nonce, os.getpid())
        assert hello is not None
        theirs.send(make(launch, hello.nonce))
        with pytest.raises((LaunchError, CommTimeout)) as caught:
            probe.receive()
    return caught.value


@pytest.mark.parametrize("kind", [LaunchError, OutOfSharedMemory, CommTimeout])
@pytest.mark.parametrize(
    "text", ["all full", "x" * 10_000, "\N{SNOWMAN}" * 10_000], ids=["short", "long", "wide"]
)
def test_a_rejection_fits_into_one_message(kind: type[LaunchError], text: str) -> None:
    def make(launch: Launch, nonce: bytes) -> bytes:
        message = handshake.rejection(launch, kind(text, range(600)), nonce)
        assert len(message) <= handshake.MAX_MESSAGE
        return message

    error = receive_rejection(make)
    assert type(error) is kind and text[:8] in str(error) and "rank 0" in str(error)
    assert error.ranks == tuple(range(len(error.ranks))) and len(error.ranks) > 100


@pytest.mark.parametrize("body", [b"", b"{", b"[1, 2]", b"\xff", b'{"ranks": 7}', b'{"fields": 1}'])
def test_a_rejection_that_cannot_be_read_is_an_error(body: bytes) -> None:
    def make(launch: Launch, nonce: bytes) -> bytes:
        return b"rejected " + handshake.proof(launch, b"rejection", os.getpid(), nonce, body) + body

    error = receive_rejection(make)
    assert type(error) is LaunchError and "cannot be read" in str(error)


# ---- other users ---------------------------------------------------------------------------------

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def run_as(user: int, body: str, *arguments: object) -> str:
    """Run Python that becomes another user first; it prints its answer."""
    change = f"import os, socket, sys\nos.setgroups([])\nos.setgid({user})\nos.setuid({user})\n"
    command = [sys.executable, "-c", change + body, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


OPEN = """
pid = sys.argv[1]
opened = []
for name in ["environ", "mem", *(f"fd/{number}" for number in range(64))]:
    try:
        os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
        opened.append(name)
    except OSError:
        continue
print(" ".join(opened))
"""


def memories(pid: int) -> Iterator[os.stat_result]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if "memfd:unisono" in str(descriptor.readlink()):
            yield descriptor.stat()


@only_root
def test_other_users_open_nothing_of_a_rank() -> None:
    with Ranks(2, WAITING) as ranks:
        for rank in (0, 1):
            assert ranks[rank].read() == {"ready": 1}
            assert run_as(NOBODY, OPEN, ranks[rank].pid) == ""
            # The same user can, so the line above can fail.
            assert {"environ", "mem"} < set(run_as(0, OPEN, ranks[rank].pid).split())


def test_the_memory_is_the_users_own() -> None:
    with Ranks(2, WAITING) as ranks:
        for rank in (0, 1):
            assert ranks[rank].read() == {"ready": 1}
            # A rank may hold no descriptor any more; if it does, nobody else may open it.
            for memory in memories(ranks[rank].pid):
                assert stat.S_IMODE(memory.st_mode) == 0o600 and memory.st_uid == os.getuid()


@only_root
def test_another_user_who_connects_receives_nothing() -> None:
    body = """
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.settimeout(20)
connection.connect(bytes.fromhex(sys.argv[1]))
try:
    print(len(connection.recv(4096)))
except ConnectionResetError:
    print(0)
"""
    with Ranks(2, START, only=[0]) as ranks:
        connect(address_of(ranks.job)).close()
        assert run_as(NOBODY, body, address_of(ranks.job).hex()) == "0"
        assert run_as(0, body, address_of(ranks.job).hex()) == "32"
        ranks.start(1)
        check_started(ranks, 2)


@only_root
def test_another_user_who_listens_changes_nothing() -> None:
    body = f"""
import os, socket, sys
os.setuid({NOBODY})
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.bind(bytes.fromhex(sys.argv[1]))
connection.listen()
print("ready", flush=True)
sys.stdin.readline()
"""
    job = JobEnvironment(2)
    command = [sys.executable, "-c", body, address_of(job).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None and squatter.stdout.readline() == b"ready\n"
        with Ranks(2, START, job=job) as ranks:
            check_started(ranks, 2)
