"""`unisono top` looks at real jobs: slow ones, stopped ones, killed ones, several at once."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import secrets
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.processes import DEADLINE, wait_until, with_default_signals
from unisono.launch.process import JobEnvironment

pytestmark = pytest.mark.alone

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]

#: So wide that no line has to be broken.
WIDE = {**os.environ, "COLUMNS": "160", "LINES": "30"}

#: Ranks that wait for each other's word, then reduce, and say what came out.
TURNS = """
world = groups.init("shm", 600)
reduce(world, 5)
say(joined=True)
hear()
say(**fault(lambda: reduce(world, 7)))
hear()
"""


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, "top", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=WIDE,
    )


def look(ranks: Ranks) -> dict[str, Any]:
    done = call(ranks.job.name, "--once", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def joined(ranks: Ranks, n: int) -> None:
    for rank in range(n):
        assert ranks[rank].read() == {"joined": True}


def when_found(ranks: Ranks, text: str) -> dict[str, Any]:
    """What top says once it has found something: waits count only after a while."""
    told: dict[str, Any] = {}

    def found() -> bool:
        told.update(look(ranks))
        return any(text in finding for finding in told["findings"])

    wait_until(found)
    return told


def test_slow_rank() -> None:
    with Ranks(3, TURNS) as ranks:
        joined(ranks, 3)
        for rank in (0, 2):
            ranks[rank].tell()
        told = when_found(ranks, "rank 1 keeps 2 ranks waiting: it is running; ")
        assert (told["job"], told["size"]) == (ranks.job.name, 3)
        for rank, seat in enumerate(told["ranks"]):
            assert seat["pid"] == ranks[rank].pid
            assert seat["state"] == ("running" if rank == 1 else "waiting")
            assert seat["waits_for"] == ([] if rank == 1 else [1])
            call_ = seat["call"]
            assert (call_["verb"], call_["dtype"], call_["op"]) == ("all_reduce", "float64", "sum")
            assert call_["count"] == (5 if rank == 1 else 7)
            assert call_["place"].rpartition(":")[0].endswith("rank_side.py")
            assert call_["state"] == ("done" if rank == 1 else "running")
            assert 0 < seat["seconds"] < DEADLINE
        ranks[1].tell()
        for rank in range(3):
            assert ranks[rank].read()["kind"] is None


def test_stopped_rank_and_the_job_is_not_disturbed() -> None:
    with Ranks(3, TURNS) as ranks:
        joined(ranks, 3)
        ranks[2].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(ranks[2].pid) == "T")
        for rank in range(3):
            ranks[rank].tell()
        told = when_found(ranks, "rank 2 keeps 2 ranks waiting: it is stopped; all_reduce")
        assert [seat["state"] for seat in told["ranks"]] == ["waiting", "waiting", "stopped"]
        text = call(ranks.job.name, "--once").stdout
        assert re.search(rf"\n0 +{ranks[0].pid} +waiting +all_reduce float64 x 7 sum +world", text)
        assert re.search(rf"\n2 +{ranks[2].pid} +stopped .* ago\n", text)
        ranks[2].signal(signal.SIGCONT)
        for rank in range(3):
            assert ranks[rank].read()["kind"] is None


def test_it_follows_a_job_to_its_end() -> None:
    with Ranks(3, TURNS) as ranks:
        joined(ranks, 3)
        with follow(ranks.job.name, "--interval", "0.05") as top:
            assert top.stdout is not None
            assert top.stdout.readline().startswith(f"job {ranks.job.name}, 3 ranks, ")
            ranks[1].signal(signal.SIGKILL)
            for rank in (0, 2):
                ranks[rank].tell()
                assert ranks[rank].read()["kind"] == "PeerLost"
                ranks[rank].tell()
            rest = top.communicate(timeout=DEADLINE)[0]
        assert top.returncode == 0
        assert rest.endswith("\nthe job has ended\n") and "\x1b" not in rest
        last = rest.rpartition("\njob ")[2]
        assert re.search(rf"\n1 +{ranks[1].pid} +killed by SIGKILL ", last)


@contextlib.contextmanager
def follow(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A top that runs beside the test, and not longer."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    command = with_default_signals([*UNISONO, "top", *words])
    with subprocess.Popen(command, env=WIDE, **options) as top:
        try:
            yield top
        finally:
            top.kill()


def test_it_only_reads() -> None:
    with Ranks(2, TURNS) as ranks:
        joined(ranks, 2)
        with follow(ranks.job.name, "--json", "--interval", "0.05") as top:
            assert top.stdout is not None
            for _ in range(3):
                assert json.loads(top.stdout.readline())["job"] == ranks.job.name
            process = Path(f"/proc/{top.pid}")
            held = [
                link.name
                for link in (process / "fd").iterdir()
                if str(link.readlink()).startswith("/memfd:unisono")
            ]
            assert len(held) == 1
            flags = re.search(r"flags:\s+(\d+)", (process / "fdinfo" / held[0]).read_text())
            assert flags is not None and int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY
            assert "memfd:unisono" not in (process / "maps").read_text()
            top.send_signal(signal.SIGINT)
            assert top.communicate(timeout=DEADLINE)[1] == ""
        assert top.returncode == 0


def test_a_terminal() -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with Ranks(2, TURNS) as ranks:
        joined(ranks, 2)
        options = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
        with follow(ranks.job.name, "--interval", "0.05", **options) as top:
            seen = read_until(master, b"\x1b[J", 3)
            # One frame takes the place of the other: up by as many lines as there were.
            frame = seen.split(b"\x1b[4A\x1b[J")[1]
            assert frame.count(b"\r\n") == 4 and frame.startswith(b"job ")
            top.send_signal(signal.SIGINT)
            assert top.wait(DEADLINE) == 0
    assert termios.tcgetattr(slave) == before
    assert set(re.findall(rb"\x1b\[[0-9?]*[A-Za-z]", seen)) == {b"\x1b[4A", b"\x1b[J"}
    os.close(slave)
    os.close(master)


def read_until(master: int, mark: bytes, count: int) -> bytes:
    seen = b""
    deadline = time.monotonic() + DEADLINE
    while seen.count(mark) < count:
        assert select.select([master], [], [], max(deadline - time.monotonic(), 0))[0], seen
        seen += os.read(master, 65536)
    return seen


def test_several_jobs() -> None:
    prefix = f"several-{secrets.token_hex(8)}"
    names = [f"{prefix}-{letter}" for letter in "ab"]
    with (
        Ranks(1, TURNS, job=JobEnvironment(1, name=names[0])) as one,
        Ranks(2, TURNS, job=JobEnvironment(2, name=names[1])) as two,
    ):
        joined(one, 1)
        joined(two, 2)
        done = call(prefix)
        assert done.returncode == 0
        assert done.stdout.startswith("several jobs run")
        assert re.search(rf"\n +{names[1]} +2 +{two[0].pid}, {two[1].pid}\n", done.stdout)
        assert json.loads(call(prefix, "--json").stdout)["jobs"] == [
            {"job": names[0], "size": 1, "pids": [one[0].pid]},
            {"job": names[1], "size": 2, "pids": [two[0].pid, two[1].pid]},
        ]
        assert json.loads(call(names[0], "--once", "--json").stdout)["size"] == 1
        # The pid of a rank names its job too.
        by_pid = call(str(two[1].pid), "--once", "--json").stdout
        assert json.loads(by_pid)["job"] == names[1]


def test_no_such_job() -> None:
    # Memory of that name that is no job, and a job that is not asked for.
    fake = os.memfd_create("unisono")
    os.write(fake, b"x" * 100_000)
    with Ranks(1, TURNS) as ranks:
        joined(ranks, 1)
        done = call("no-such-job", "--once")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no job of this user runs here that 'no-such-job' could mean" in done.stderr
        done = call("no-such-job", "--json")
        assert (done.returncode, json.loads(done.stdout)) == (1, {"jobs": []})
    os.close(fake)
    assert call(ranks.job.name).returncode == 1, "it has ended"


MESSAGES = """
world = groups.init("shm", 600)
say(joined=True)
if rank < 2:
    fault(lambda: recv(world, 1 - rank))
hear()
"""


def test_ranks_that_wait_for_each_other() -> None:
    with Ranks(3, MESSAGES) as ranks:
        joined(ranks, 3)
        told = when_found(ranks, "ranks 0, 1 wait for each other")
        assert [seat["waits_for"] for seat in told["ranks"]] == [[1], [0], []]
        assert told["ranks"][2]["call"] is None and told["ranks"][2]["seconds"] is None


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "soon"])
def test_wrong_interval(interval: str) -> None:
    done = call(f"--interval={interval}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--interval" in done.stderr and "Traceback" not in done.stderr
