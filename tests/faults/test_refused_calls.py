"""System calls that a container or an old kernel refuses: jobs run, and notice a lost rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import hosts
from tests.helpers.jobs import Ranks
from tests.helpers.launcher import UNISONO
from tests.helpers.leftovers import Leftovers
from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE
from tests.helpers.refusals import CALLS, CAN_REFUSE, refusing
from tests.helpers.thorough import essential_rows
from unisono.launch.process import JobEnvironment

pytestmark = pytest.mark.skipif(not CAN_REFUSE, reason="knows no numbers of system calls here")

EVERYTHING = ",".join(CALLS["x86_64"])

#: Long and short calls, shared arrays, a subgroup; then rank 1 is killed.
JOB = """
import os, signal, sys, time
import numpy as np
import unisono
import unisono.torch.distributed as dist
from unisono.errors import PeerLost

dist.init_process_group()
rank = dist.get_rank()
for count in (1, 300_000):
    array = np.full(count, rank + 1.0)
    dist.all_reduce(array)
    assert (array == 3.0).all(), array
shared = unisono.empty(1 << 20, np.float32)
shared[:] = rank + 1
dist.all_reduce(shared)
assert (shared == 3.0).all(), shared
dist.barrier(dist.new_group([0, 1]))
print("reduced", flush=True)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    dist.barrier()
except PeerLost as error:
    print("PeerLost", error.ranks, "SIGKILL" in str(error), time.monotonic() - began < 10)
"""


REFUSED = """
from tests.helpers.refusals import refuse
refuse(["memfd_create", "fallocate"], 1)  # EPERM
"""


def refused(
    calls: str, error: str, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with these calls refused."""
    return subprocess.run(
        refusing(calls, error, *command),
        env={**os.environ, "PYTHONPATH": with_tests(), **variables},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
    )


@pytest.mark.parametrize(
    ("calls", "error"),
    essential_rows(
        1,
        [
            (EVERYTHING, "EPERM"),
            (EVERYTHING, "ENOSYS"),
            *((call, error) for call in CALLS["x86_64"] for error in ("EPERM", "ENOSYS")),
        ],
    ),
)
def test_a_job_runs_and_notices_a_killed_rank(calls: str, error: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    (tmp_path / "temporary").mkdir()
    leftovers = Leftovers(tmp_path / "temporary")
    command = (*UNISONO, "run", "-n", "2", str(script))
    done = refused(calls, error, *command, **leftovers.variables)
    assert done.stdout.count("reduced") == 2, done.stderr
    assert "[0] PeerLost (1,) True True" in done.stdout, done.stdout + done.stderr
    assert "rank 1 of 2 failed: killed by SIGKILL" in done.stderr.splitlines()[-1]
    leftovers.check()


def test_spawn_without_affinity_and_memory_files(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import unisono\n"
        "from unisono.core import groups\n"
        "def rank(): return int(groups.world().rank)\n"
        "if __name__ == '__main__': print(unisono.spawn(rank, 2, engine='shm'))\n"
    )
    done = refused("memfd_create,sched_setaffinity", "EPERM", sys.executable, str(program))
    assert done.stdout == "[0, 1]\n", done.stderr


def test_top_finds_a_job_without_memory_files() -> None:
    with Ranks(1, REFUSED + "world = groups.init('shm', 60)\nsay(joined=True)\nhear()\n") as job:
        job.read_all()
        done = subprocess.run(
            [*UNISONO, "top", str(job[0].pid), "--once", "--json"],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert json.loads(done.stdout)["size"] == 1
        job[0].tell()


# ---- memory --------------------------------------------------------------------------------------

#: Says how many MiB a job has with an array and without, and whether the next array is zeros.
ARRAYS = """
import unisono
world = groups.init("shm", 60)
def memory():
    found = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    found = [path for path in found if os.path.realpath(path).startswith("/dev/shm/#")]
    assert len(found) == 1 and os.stat(found[0]).st_mode & 0o777 == 0o600, found
    return os.stat(found[0]).st_blocks // 2048
before = memory()
array = unisono.empty(100 << 20, np.uint8)
array[:] = 7
held = memory()
del array
kept = memory()
with unisono.shared_arrays(0):
    zeros = np.zeros(100 << 20, np.uint8)
say(held=held - before, kept=kept - before, zeros=not zeros.any(), again=memory() - before)
"""


@pytest.mark.thorough
def test_memory_is_given_back_and_cleared() -> None:
    with Ranks(1, REFUSED + ARRAYS) as job:
        assert job[0].read() == {"held": 100, "kept": 0, "zeros": True, "again": 100}


TOO_MUCH = """
import unisono
world = groups.init("shm", 60)
say(**fault(lambda: unisono.empty(100 << 20, np.uint8)))
"""


def in_own_dev_shm(mount: str, body: str) -> str:
    """What a job of one rank prints where this is mounted at /dev/shm."""
    program = f"from tests.helpers.rank_side import *\n{REFUSED}{body}"
    done = subprocess.run(
        [*hosts.own_memory(mount), sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": with_tests(), **JobEnvironment(1).variables(0)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(hosts.why_not() is not None, reason="needs a /dev/shm of its own")
def test_a_small_dev_shm_is_a_lack_of_memory() -> None:
    error = json.loads(in_own_dev_shm("-t tmpfs -o size=32m tmpfs", TOO_MUCH))
    assert error["kind"] == "OutOfSharedMemory", error
    assert "100.0 MiB of shared memory are needed: No space left" in error["text"], error


@pytest.mark.skipif(hosts.why_not() is not None, reason="needs a /dev/shm of its own")
def test_without_dev_shm_the_error_names_the_call() -> None:
    start = "say(**fault(lambda: groups.init('shm', 60)))"
    error = json.loads(in_own_dev_shm("-t ramfs ramfs", start))
    assert error["kind"] == "LaunchError", error
    assert "memfd_create is refused (Operation not permitted), and /dev/shm cannot" in error["text"]
    assert "allow memfd_create in the seccomp profile, or mount a tmpfs" in error["text"]
