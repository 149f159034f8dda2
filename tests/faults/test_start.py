"""Jobs that cannot start, start beside others, or among foreign clients; too little memory."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.processes import DEADLINE, wait_until
from tests.helpers.start_cases import START, address_of, check_started, connect
from tests.helpers.thorough import essential
from unisono.launch.process import JobEnvironment

AGAIN_AND_AGAIN = """
for _ in range(50):
    groups.init("shm", 30)
    groups.close()
group = groups.init("shm", 30)
say(sum=reduce(group))
"""


def test_one_world_after_the_other() -> None:
    """Nobody finds the rank 0 of the world before."""
    with Ranks(2, AGAIN_AND_AGAIN) as ranks:
        sums = [ranks[rank].read() for rank in range(2)]
        assert sums[0] == sums[1] and sums[0]["sum"] > 0


# ---- ranks that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize("missing", essential(1, [0, 1, 2]))
def test_rank_that_never_starts(missing: int) -> None:
    present = [rank for rank in range(3) if rank != missing]
    with Ranks(3, START, only=present, UNISONO_TIMEOUT="4") as ranks:
        for rank in present:
            error = ranks[rank].read()
            assert error["kind"] == "CommTimeout", error
            assert error["ranks"] == [missing], error
            assert str(missing) in error["text"] and "4 s" in error["text"], error
            assert error["seconds"] < DEADLINE
            assert ranks[rank].end() == 0


def test_two_ranks_of_one_number() -> None:
    with Ranks(3, START, only=[0, 1], UNISONO_TIMEOUT="60") as ranks:
        ranks.start(1)
        # Either of the two may come first; only the other is refused.
        twins = ranks.of_number(1)
        refused = []

        def somebody_is_refused() -> bool:
            refused.extend(twin for twin in twins if twin.has_said())
            return bool(refused)

        wait_until(somebody_is_refused)
        error = refused[0].read()
        assert error["kind"] == "LaunchError", error
        assert "a rank 1" in error["text"] and "already" in error["text"]
        twins.remove(refused[0])
        ranks.start(2)
        for rank in (ranks[0], twins[0], ranks[2]):
            assert rank.read()["kind"] is None
            assert rank.read() == {"sum": 6.0}


def test_two_ranks_zero() -> None:
    with Ranks(2, START, only=[0], UNISONO_TIMEOUT="60") as ranks:
        connect(address_of(ranks.job)).close()  # the first one is there
        error = ranks.start(0).read()
        assert error["kind"] == "LaunchError", error
        assert repr(ranks.job.name) in error["text"] and "UNISONO_JOB" in error["text"]
        ranks.start(1)
        check_started(ranks, 2)


def test_wrong_size() -> None:
    with Ranks(2, START, only=[0], UNISONO_TIMEOUT="60") as ranks:
        wrong = ranks.start(2, UNISONO_SIZE="3", UNISONO_LOCAL_SIZE="3")
        error = wrong.read()
        assert error["kind"] == "LaunchError", error
        assert "rank 2 of 3" in error["text"] and "2 ranks" in error["text"]
        ranks.start(1)
        check_started(ranks, 2)


@pytest.mark.thorough
def test_wrong_secret() -> None:
    with Ranks(2, START, only=[0], UNISONO_TIMEOUT="60") as ranks:
        wrong = secrets.token_hex(32)
        refused = Ranks(2, START, only=[1], job=ranks.job, UNISONO_SECRET=wrong)
        with refused:
            error = refused[1].read()
            assert error["kind"] == "LaunchError", error
            assert "secret" in error["text"]
            assert wrong not in error["text"] and ranks.job.secret not in error["text"]
        ranks.start(1)
        check_started(ranks, 2)


def test_rank_that_dies_while_the_job_starts() -> None:
    with Ranks(4, START, only=[0, 1, 2], UNISONO_TIMEOUT="600") as ranks:
        # One line for the listener, and one for each connection that it has accepted.
        name = address_of(ranks.job).decode().replace("\0", "@")
        wait_until(lambda: Path("/proc/net/unix").read_text().count(name) == 3)
        for rank in (1, 2):
            ranks[rank].wait_for_sleep()  # until rank 3 comes, which it never does
        ranks[1].signal(signal.SIGKILL)
        for rank in (0, 2):
            error = ranks[rank].read()
            assert error["kind"] == "LaunchError", error
            assert error["ranks"] == [1] and "rank 1" in error["text"], error
            assert error["seconds"] < DEADLINE


def test_two_jobs_side_by_side() -> None:
    body = START + "for _ in range(200): assert reduce(groups.world(), 500) == size\n"
    first, second = JobEnvironment(2), JobEnvironment(3)
    with (
        Ranks(2, f"size = 3.0\n{body}", job=first) as ones,
        Ranks(3, f"size = 6.0\n{body}", job=second) as others,
    ):
        check_started(ones, 2)
        check_started(others, 3)


# ---- foreign clients ----------------------------------------------------------------------------


def hello_of_another_job() -> bytes:
    """What a rank of another job sends to its rank 0, which is really this test."""
    job = JobEnvironment(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.settimeout(DEADLINE)
        listener.bind(address_of(job))
        listener.listen()
        with Ranks(2, START, only=[1], job=job):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(DEADLINE)
                connection.send(secrets.token_bytes(32))
                return connection.recv(4096)


FOREIGN_CLIENTS: dict[str, Callable[[], list[bytes]]] = {
    "silence": list,
    "nothing": lambda: [b""],
    "garbage": lambda: [secrets.token_bytes(106)],
    "a short message": lambda: [b"here"],
    "many short messages": lambda: [b"UNIS"] * 100,
    "a megabyte": lambda: [bytes(150_000)] * 7,
    "the hello of another job": lambda: [hello_of_another_job()],
}


@pytest.mark.parametrize("kind", essential(2, FOREIGN_CLIENTS))
def test_foreign_client(kind: str) -> None:
    messages = FOREIGN_CLIENTS[kind]()
    with Ranks(2, START, only=[0]) as ranks, connect(address_of(ranks.job)) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for message in messages:
                client.send(message)
        ranks.start(1)
        check_started(ranks, 2)
        heard = list(everything(client))
        # A nonce that tells nothing (a reset may swallow it), and no descriptor.
        assert [(len(message), fds) for message, fds in heard] in ([], [(32, [])])


def everything(connection: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    with contextlib.suppress(ConnectionResetError):
        while True:
            message, fds, _, _ = socket.recv_fds(connection, 4096, 4)
            if not message:
                return
            yield message, fds


def test_many_foreign_clients() -> None:
    with Ranks(2, START, only=[0]) as ranks, contextlib.ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(connect(address_of(ranks.job)))
        ranks.start(1)
        check_started(ranks, 2)


# ---- too little shared memory --------------------------------------------------------------------


def check_memory_error(ranks: Ranks, n: int) -> None:
    for rank in range(n):
        error = ranks[rank].read()
        assert error["kind"] == "OutOfSharedMemory", error
        assert "MiB" in error["text"], error
        assert error["seconds"] < DEADLINE


def check_memory_error_and_recovery(body: str) -> None:
    """Each of three ranks is told, and then reduces in the world."""
    with Ranks(3, body) as ranks:
        check_memory_error(ranks, 3)
        assert ranks.read_all() == [{"sum": 6.0}] * 3
        assert [ranks[rank].end() for rank in range(3)] == [0, 0, 0]


def test_no_memory_for_the_job() -> None:
    with Ranks(3, "limit_memory(1)" + START) as ranks:
        check_memory_error(ranks, 3)
        assert [ranks[rank].end() for rank in range(3)] == [0, 0, 0]


def test_no_memory_for_a_group() -> None:
    body = """
world = groups.init("shm", 600)
limit_memory(1)
say(**fault(lambda: world.split([0, 1, 2])))
say(sum=reduce(world, 100_000))
"""
    check_memory_error_and_recovery(body)


@pytest.mark.parametrize("before", [0, 1], ids=["first call", "first large call"])
@pytest.mark.parametrize("limited", ["True", "rank == 2"], ids=["all ranks", "one rank"])
def test_no_memory_for_a_call(before: int, limited: str) -> None:
    body = f"""
world = groups.init("shm", 600)
group = world.split([0, 1, 2])
for _ in range({before}):
    assert reduce(group) == 6
if {limited}:
    limit_memory(1)
array = np.ones(100_000)
say(**fault(lambda: start_reduce(group, array, True)))
assert (array == 1).all()
say(sum=reduce(world, 100_000))
"""
    check_memory_error_and_recovery(body)


# ---- too few descriptors -------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("more", essential(1, [3, 2, 1]))
def test_no_descriptors_left(odd: int, more: int) -> None:
    body = f"""
import unisono.engines.shm.engine
most = len(os.listdir("/proc/self/fd")) - 1 + {more}
if rank == {odd}:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
say(**fault(lambda: groups.init("shm", 3)))
"""
    with Ranks(2, body) as ranks:
        error, other = ranks[odd].read(), ranks[1 - odd].read()
        assert [ranks[rank].end() for rank in range(2)] == [0, 0]
    if odd == 1 and more == 3:
        assert error["kind"] is other["kind"] is None  # three are enough for a client
        return
    assert error["kind"] == "LaunchError", error
    assert "Too many open files" in error["text"], error
    if (odd, more) == (0, 3):  # rank 0 could tell
        assert "Too many open files" in other["text"], other
    else:
        assert (other["kind"], other["ranks"]) == ("CommTimeout", [odd]), other
