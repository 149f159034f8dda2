"""`unisono top` shows real jobs: slow, stopped and killed ranks, and several jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.launcher import UNISONO, Terminal
from tests.helpers.processes import DEADLINE, wait_until
from unisono.launch.process import JobEnvironment
from unisono.tools.formatting import rank_list

#: Wide enough that no line is wrapped.
WIDE = {**os.environ, "COLUMNS": "160", "LINES": "30"}

#: Ranks that join, wait for a signal from the test, reduce, and report the outcome.
TURNS = """
world = groups.init("shm", 600)
reduce(world, 5)
say(joined=True)
hear()
say(**fault(lambda: reduce(world, 7)))
hear()
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, "top", *arguments],
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
    """Ask top until it reports `text`: waits are reported only after a while."""
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
        for rank, status in enumerate(told["ranks"]):
            assert status["pid"] == ranks[rank].pid
            assert status["state"] == ("running" if rank == 1 else "waiting")
            assert status["waits_for"] == ([] if rank == 1 else [1])
            call_ = status["call"]
            assert (call_["verb"], call_["dtype"], call_["op"]) == ("all_reduce", "float64", "sum")
            assert call_["count"] == (5 if rank == 1 else 7)
            assert call_["call_site"].rpartition(":")[0].endswith("rank_side.py")
            assert call_["state"] == ("done" if rank == 1 else "running")
            assert 0 < status["seconds"] < DEADLINE
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
        assert [status["state"] for status in told["ranks"]] == ["waiting", "waiting", "stopped"]
        text = call(ranks.job.name, "--once").stdout
        pid = ranks[0].pid
        assert re.search(rf"\n0 +{pid} +waiting .* all_reduce float64 x 7 sum +world", text)
        assert re.search(rf"\n2 +{ranks[2].pid} +stopped .* ago\n", text)
        ranks[2].signal(signal.SIGCONT)
        for rank in range(3):
            assert ranks[rank].read()["kind"] is None


def test_it_follows_a_job_to_its_end() -> None:
    with Ranks(3, TURNS) as ranks:
        joined(ranks, 3)
        with follow(ranks.job.name, "--interval", "0.05") as top:
            assert top.stdout is not None
            assert top.stdout.readline().startswith(f"job {ranks.job.name}, -c, 3 ranks, for ")
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
def follow(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run `unisono top` beside the test, and end it with the test."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen([*UNISONO, "top", *arguments], env=WIDE, **options) as top:
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


# ---- what each rank did lately -------------------------------------------------------------------

#: Rank 2 comes 20 ms late to every fifth call, for as long as the test runs.
UNEVEN = """
world = groups.init("shm", 600)
step = 0
while True:
    time.sleep(0.02 if rank == 2 and step % 5 == 0 else 0.001)
    reduce(world)
    step += 1
    if step == 25:
        say(joined=True)
"""


def test_a_rank_that_is_late_again_and_again() -> None:
    with Ranks(3, UNEVEN) as ranks:
        joined(ranks, 3)
        told = when_found(ranks, "rank 2 comes late: last in ")
        lately = [status["activity"] for status in told["ranks"]]
        for one in lately:
            assert one["compared"] >= 20 and one["calls_per_second"] > 1
        assert sum(one["came_last"] for one in lately) == lately[0]["compared"]
        assert lately[2]["came_last"] >= lately[2]["compared"] / 5 - 1
        assert lately[2]["worst"] >= 15e6 and 0.05 < lately[2]["late_share"] <= 1
        assert lately[2]["late"] >= 15e6 * (lately[2]["compared"] // 5 - 1)
        assert all(one["waiting"] > lately[2]["waiting"] for one in lately[:2])


def test_one_line_for_each_rank_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with Ranks(3, UNEVEN) as ranks:
        joined(ranks, 3)
        command = [*UNISONO, "top", ranks.job.name, "--interval", "0.05"]
        with Terminal(*command) as terminal:
            before = terminal.settings()
            for _ in range(3):
                terminal.wait_for("\x1b[J")  # each frame replaces the one before
            terminal.wait_for("\x1b[J")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 0
            assert terminal.settings() == before
        frame = re.split(r"\x1b\[\d+A\x1b\[J", terminal.all)[3]
        lines = re.sub(r"\x1b\[\d+m", "", frame).splitlines()
        assert re.fullmatch(rf"job {ranks.job.name}, -c, 3 ranks, for .*", lines[0])
        assert len([line for line in lines if re.match(r"[012] ", line)]) == 3
        assert max(map(len, lines)) <= 79
        title = next(line for line in lines if re.match(r"rank +state", line))
        assert title.split()[:6] == ["rank", "state", "calls/s", "waiting", "last", "late"]
        assert re.search("\x1b\\[1mrank", frame) and re.search("\x1b\\[3[23]m(run|wait)", frame)
        # The cursor goes up by as many lines as the frame before had.
        height = re.search(r"\x1b\[(\d+)A", terminal.all.split(frame)[1])
        assert height is not None and int(height[1]) == len(lines)

        monkeypatch.setenv("NO_COLOR", "1")
        with Terminal(*command) as terminal:
            terminal.wait_for("\x1b[J")
            terminal.wait_for("\x1b[J")
        assert not re.search(r"\x1b\[\d*m", terminal.all)


@pytest.mark.thorough
def test_a_narrow_terminal_loses_columns_but_no_ranks() -> None:
    with Ranks(2, TURNS) as ranks:
        joined(ranks, 2)
        for columns in (160, 130, 80, 50):
            environment = {**os.environ, "COLUMNS": str(columns)}
            done = subprocess.run(
                [*UNISONO, "top", ranks.job.name, "--once"],
                capture_output=True, text=True, timeout=60, env=environment,
            )  # fmt: skip
            lines = done.stdout.splitlines()
            assert max(map(len, lines)) < columns
            title, *rows = lines[-3:]
            assert title.startswith("rank ") and [row[0] for row in rows] == ["0", "1"]
            assert ("  pid  " in title) == (columns >= 130)
            assert ("  group  " in title) == (columns == 160)


# ---- which job -----------------------------------------------------------------------------------


@pytest.mark.thorough
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
        pids = rank_list([two[0].pid, two[1].pid])
        assert re.search(rf"\n +{names[1]} +-c +2 +\S+ m?s +{pids}\n", done.stdout)
        listed = json.loads(call(prefix, "--json").stdout)["jobs"]
        for found, name, job in zip(listed, names, (one, two), strict=True):
            age = datetime.now(UTC) - datetime.fromisoformat(found.pop("started"))
            assert 0 <= age.total_seconds() + 1 < 2 * DEADLINE
            size = job.job.size
            pids = [job[rank].pid for rank in range(size)]
            assert found == {"job": name, "script": "-c", "size": size, "pids": pids}
        assert json.loads(call(names[0], "--once", "--json").stdout)["size"] == 1
        # The pid of a rank names its job too.
        by_pid = call(str(two[1].pid), "--once", "--json").stdout
        assert json.loads(by_pid)["job"] == names[1]


def test_no_such_job() -> None:
    # Memory with the right name that is not a job, and a job that was not asked for.
    fake = os.memfd_create("unisono")
    os.write(fake, b"x" * 100_000)
    with Ranks(1, TURNS) as ranks:
        joined(ranks, 1)
        done = call("no-such-job", "--once")
        assert (done.returncode, done.stdout) == (1, "")
        assert "no job of this user runs here with the name or pid 'no-such-job'" in done.stderr
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
        assert [status["waits_for"] for status in told["ranks"]] == [[1], [0], []]
        assert told["ranks"][2]["call"] is None and told["ranks"][2]["seconds"] is None


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "soon"])
def test_wrong_interval(interval: str) -> None:
    done = call(f"--interval={interval}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--interval: '{interval}' is not a time; give seconds above 0" in done.stderr
