"""Two jobs of one user at one address and port: both work, or every rank gets a clear error.

Ranks are started by hand, as plain processes: only how they were started tells two jobs apart. Each
job has a sum of its own, which shows a rank that joined the wrong one.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import DEADLINE
from tests.helpers.start_cases import find_mpiexec
from tests.helpers.thorough import essential
from unisono.launch.process import ReservedPort

#: A rank waits for a line with its value, joins, and sums the values of its job many times. All
#: imports come first, so that a rank joins without delay on a busy machine too.
BODY = """
import json, sys
import numpy as np
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.engines.shm import engine
from unisono.errors import UnisonoError

print("ready", flush=True)
value = float(sys.stdin.readline())
try:
    world = groups.init("shm", 25)
    for _ in range(50):
        array = np.full(10, value)
        memory = buffers.view(array)
        dispatch.all_reduce(world, memory, memory, ReduceOp.SUM)
    seen = {"sum": array[0], "rank": int(world.rank)}
except UnisonoError as error:
    seen = {"kind": type(error).__name__, "text": str(error)}
print(json.dumps(seen), flush=True)
"""
#: The same, and each time that the rank chooses a rank 0 it prints that process.
CHOOSING = (
    """
from unisono.engines.shm.client import RendezvousClient
from unisono.engines.shm.handshake import credentials

find_server = RendezvousClient.find_server
def find_and_tell(self):
    server = find_server(self)
    print("chose", credentials(server.socket)[0], flush=True)
    return server
RendezvousClient.find_server = find_and_tell
"""
    + BODY
)
#: What each rank of a job contributes: no sum of ranks of both jobs is that of one.
VALUES = {"A": 1.0, "B": 100.0}
SOON = 0.03  # seconds between two ranks, as if somebody typed very fast


class Started:
    """One process, which waits before it joins."""

    def __init__(self, command: Sequence[str], variables: dict[str, str]) -> None:
        known = {k: v for k, v in os.environ.items() if not k.startswith("UNISONO_")}
        self.process = subprocess.Popen(
            command,
            env={**known, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def read_choice(self) -> int:
        """Return the process that this rank has chosen as its rank 0; see CHOOSING."""
        assert self.process.stdout is not None
        said, _, pid = self.process.stdout.readline().partition(" ")
        assert said == "chose"
        return int(pid)

    def go(self, value: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{value}\n")
        self.process.stdin.flush()

    def seen(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=DEADLINE)
        return json.loads(out.splitlines()[-1])


class Jobs:
    """Ranks of two jobs, named as "A0" and "B1", that share an address and a port."""

    def __init__(self) -> None:
        self.ranks: dict[str, Started] = {}
        self._held = ReservedPort()
        self._port = str(self._held)

    def add(
        self,
        name: str,
        size: int,
        *arguments: str,
        under: Sequence[str] = (),
        body: str = BODY,
        **variables: str,
    ) -> None:
        launch = {
            "RANK": name[1],
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._port,
        }
        command = [*under, sys.executable, "-c", body, *arguments]
        self.ranks[name] = Started(command, {**launch, **variables})

    def go(self, order: Sequence[str], pause: float = SOON) -> None:
        """Let ranks join in this order; all of them have started Python already."""
        for name in order:
            self.ranks[name].wait()
        for name in order:
            self.ranks[name].go(VALUES[name[0]])
            time.sleep(pause)

    def seen(self) -> dict[str, dict[str, Any]]:
        return {name: rank.seen() for name, rank in self.ranks.items()}

    def check_right(self) -> None:
        for name, seen in self.seen().items():
            size = sum(other[0] == name[0] for other in self.ranks)
            assert seen == {"sum": VALUES[name[0]] * size, "rank": int(name[1])}, (name, seen)

    def check_refused(self) -> None:
        for name, seen in self.seen().items():
            assert seen.get("kind") == "LaunchError", (name, seen)
            assert "two jobs" in seen["text"] and self._port in seen["text"], seen
            assert "MASTER_PORT" in seen["text"] and "UNISONO_JOB" in seen["text"]


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    every = Jobs()
    yield every
    for rank in every.ranks.values():
        rank.process.kill()
        rank.process.wait()
        for pipe in (rank.process.stdin, rank.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def orders(*ranks: str) -> list[tuple[str, ...]]:
    """Return every order; swapping the two jobs makes no new one."""
    return [order for order in itertools.permutations(ranks) if order[0][0] == "A"]


# ---- jobs that can be told apart -----------------------------------------------------------------


@pytest.mark.parametrize("order", essential(2, orders("A0", "A1", "B0", "B1")), ids="-".join)
def test_other_arguments(jobs: Jobs, order: Sequence[str]) -> None:
    for name in order:
        jobs.add(name, 2, "--learning-rate", name[0])
    jobs.go(order)
    jobs.check_right()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "order",
    essential(
        1,
        [
            ("A1", "B1", "A2", "B2", "A0", "B0"),
            ("A0", "B2", "B1", "B0", "A2", "A1"),
            ("B0", "A0", "A1", "B2", "A2", "B1"),
        ],
    ),
    ids="-".join,
)
def test_other_variables(jobs: Jobs, order: Sequence[str]) -> None:
    for name in order:
        # Ranks of one job differ too, as with one device or one log for each.
        own = {"CUDA_VISIBLE_DEVICES": name[1], "LOG_OF_THIS": name}
        jobs.add(name, 3, "--rank", name[1], EXPERIMENT=name[0], **own)
    jobs.go(order)
    jobs.check_right()


@pytest.mark.thorough
def test_all_at_the_same_time(jobs: Jobs) -> None:
    names = ["A0", "B0", "A1", "B1", "A2", "B2"]
    for name in names:
        jobs.add(name, 3, name[0])
    jobs.go(names, pause=0)
    jobs.check_right()


@pytest.mark.parametrize(
    "order", [("A0", "B1", "B0", "A1"), ("B1", "A0", "A1", "B0"), ("A1", "B1", "B0", "A0")]
)
def test_two_shells(jobs: Jobs, order: Sequence[str], tmp_path: Path) -> None:
    with shells(tmp_path, "A", "B") as under:
        for name in order:
            jobs.add(name, 2, under=under[name[0]])
        jobs.go(order)
        jobs.check_right()


@pytest.mark.thorough
@pytest.mark.parametrize("order", [("A0", "B2", "B1", "B0", "A1"), ("B1", "B0", "A1", "B2", "A0")])
def test_other_sizes(jobs: Jobs, order: Sequence[str]) -> None:
    for name in order:
        jobs.add(name, 2 if name[0] == "A" else 3)
    jobs.go(order)
    jobs.check_right()


@pytest.mark.thorough
@pytest.mark.parametrize("order", [("A0", "B1", "B0", "A1"), ("A1", "B1", "A0", "B0")])
def test_names_of_their_own(jobs: Jobs, order: Sequence[str]) -> None:
    """Everything else is equal: the error recommends this."""
    for name in order:
        jobs.add(name, 2, UNISONO_JOB=name[0])
    jobs.go(order)
    jobs.check_right()


@pytest.mark.thorough
def test_a_client_that_chose_too_early_is_sent_away(jobs: Jobs) -> None:
    for name in ["A0", "B1", "B0", "A1", "A2", "B2"]:
        jobs.add(name, 3, name[0], body=CHOOSING)
    jobs.go(["A0", "B1"])
    early = jobs.ranks["B1"]
    assert early.read_choice() == jobs.ranks["A0"].process.pid  # there is no other rank 0 yet
    jobs.go(["B0"])
    assert early.read_choice() == jobs.ranks["B0"].process.pid  # A0 has learned of B0
    jobs.go(["A1", "A2", "B2"])
    jobs.check_right()


@pytest.mark.thorough
def test_one_job_after_the_other(jobs: Jobs) -> None:
    order = ["A1", "A0", "B0", "B1"]
    for name in order:
        jobs.add(name, 2)
    jobs.go(order[:2])
    assert jobs.ranks["A0"].seen()["sum"] == 2.0
    jobs.go(order[2:])
    assert jobs.ranks["B1"].seen()["sum"] == 200.0


# ---- one job that looks like two -----------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("order", [("A0", "A1", "A2"), ("A2", "A1", "A0")], ids="-".join)
def test_one_job_from_three_shells(jobs: Jobs, order: Sequence[str], tmp_path: Path) -> None:
    with shells(tmp_path, "0", "1", "2") as under:
        for name in order:
            terminal = f"{name[1]} of three"
            jobs.add(name, 3, "--rank", name[1], under=under[name[1]], TERMINAL=terminal)
        jobs.go(order)
        jobs.check_right()


# ---- jobs that cannot be told apart --------------------------------------------------------------

AMBIGUOUS_ORDERS = [
    ("A0", "B0", "A1", "B1"),
    ("B1", "A1", "A0", "B0"),
    ("A0", "B1", "B0", "A1"),
]


@pytest.mark.parametrize("order", essential(1, AMBIGUOUS_ORDERS), ids="-".join)
def test_nothing_tells_the_jobs_apart(jobs: Jobs, order: Sequence[str]) -> None:
    for name in order:
        jobs.add(name, 2, "--rank", name[1])
    jobs.go(order)
    jobs.check_refused()


@pytest.mark.thorough
@pytest.mark.parametrize("order", essential(1, AMBIGUOUS_ORDERS), ids="-".join)
def test_arguments_and_variables_contradict_each_other(jobs: Jobs, order: Sequence[str]) -> None:
    for name in order:
        crossed = name[0] if name[1] == "0" else {"A": "B", "B": "A"}[name[0]]
        jobs.add(name, 2, name[0], EXPERIMENT=crossed)
    jobs.go(order)
    jobs.check_refused()


@pytest.mark.thorough
def test_two_equal_rank_0s(jobs: Jobs) -> None:
    order = ["A0", "B0", "A1", "B1", "A2", "B2"]
    for name in order:
        jobs.add(name, 3)
    jobs.go(order)
    jobs.check_refused()


@pytest.mark.thorough
def test_a_second_rank_of_one_number(jobs: Jobs) -> None:
    """Equal ranks join without delay; the second rank 1 shows that there are two jobs."""
    order = ["A0", "A1", "B1", "B0"]
    for name in order:
        jobs.add(name, 3)
    jobs.go(order)
    jobs.check_refused()


# ---- launchers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", essential(1, ["unisono run", "torchrun", "mpiexec"]))
def test_launchers_tell_their_jobs_apart(launcher: str, tmp_path: Path, port: str) -> None:
    commands = {
        "unisono run": [sys.executable, "-m", "unisono", "run", "-n", "3"],
        "torchrun": [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=3",
        ],
        "mpiexec": [str(find_mpiexec()), "-n", "3", sys.executable],
    }
    if launcher == "torchrun" and find_spec("torch") is None:
        pytest.skip("torchrun comes with torch")
    if launcher == "mpiexec" and find_mpiexec() is None:
        pytest.skip("there is no mpiexec")
    script = tmp_path / "script.py"
    # Values come from a file for each job, because the command lines are equal.
    script.write_text(BODY.replace("sys.stdin.readline()", 'open("value").read()'))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = []
    for name, value in VALUES.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "value").write_text(str(value))
        command = [*commands[launcher], str(script)]
        running.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **address},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for job, value in zip(running, VALUES.values(), strict=True):
        out, _ = job.communicate(timeout=2 * DEADLINE)
        assert job.returncode == 0, out
        assert out.count(f'"sum": {3 * value}') == 3, out


PARENT = """
import multiprocessing, os, sys
def rank(number, value):
    os.environ.update(RANK=str(number), WORLD_SIZE="3")
    sys.stdin = iter(())
    exec(open(sys.argv[1]).read(), {"value": value})
if __name__ == "__main__":
    start = multiprocessing.get_context(sys.argv[2])
    ranks = [start.Process(target=rank, args=(r, float(sys.argv[3]))) for r in range(3)]
    for each in ranks: each.start()
    for each in ranks: each.join()
"""


@pytest.mark.parametrize("way", essential(1, ["spawn", "fork"]))
def test_programs_that_start_their_own_ranks(way: str, tmp_path: Path, port: str) -> None:
    body = BODY.replace("value = float(sys.stdin.readline())", "")
    (tmp_path / "body.py").write_text(body)
    (tmp_path / "parent.py").write_text(PARENT)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "body.py"), way, str(v)],
            env={**os.environ, **address},
            stdout=subprocess.PIPE,
            text=True,
        )
        for v in VALUES.values()
    ]
    for job, value in zip(running, VALUES.values(), strict=True):
        out, _ = job.communicate(timeout=DEADLINE)
        assert out.count(f'"sum": {3 * value}') == 3, out


@contextmanager
def shells(folder: Path, *names: str) -> Iterator[dict[str, list[str]]]:
    """Return a command prefix for each name that starts a program in a session of its own.

    Each session has a leader that starts programs on request, as the shell of a terminal does, and
    gives them the pipes of the request.
    """
    code = """
import array, os, socket, subprocess, sys
os.setsid()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    message, pipes, _, _ = socket.recv_fds(connection, 100_000, 2)
    command, variables = eval(message)
    subprocess.Popen(command, env=variables, stdin=pipes[0], stdout=pipes[1])
    for pipe in pipes: os.close(pipe)
    connection.close()
"""
    client = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(connection, [repr((sys.argv[2:], dict(os.environ))).encode()], [0, 1])
connection.recv(1)
"""
    running = []
    try:
        for name in names:
            command = [sys.executable, "-c", code, str(folder / name)]
            shell = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            running.append(shell)
            assert shell.stdout is not None and shell.stdout.readline() == "ready\n"
        yield {name: [sys.executable, "-c", client, str(folder / name)] for name in names}
    finally:
        for shell in running:
            shell.kill()
            shell.wait()
            assert shell.stdout is not None
            shell.stdout.close()
