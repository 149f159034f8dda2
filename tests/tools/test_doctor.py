"""`unisono doctor`: what it finds, where engines run and where they do not, and how it looks."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers import hosts
from tests.helpers.leftovers import Leftovers
from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE, wait_until
from tests.helpers.refusals import CALLS, CAN_REFUSE, refusing
from tests.helpers.thorough import essential_rows
from unisono.core import registry
from unisono.tools.doctor import probe

MAIN = "from unisono.cli import main; sys.exit(main())"
UNISONO = [sys.executable, "-c", f"import sys; {MAIN}"]
#: The same where neither torch nor mpi4py is installed: it is quick.
QUICK = [
    *(sys.executable, "-c"),
    f"import sys; sys.modules['torch'] = sys.modules['mpi4py'] = None; {MAIN}",
]


def call(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
        env={**inherited, "PYTHONPATH": with_tests(), **variables},
    )


@pytest.mark.thorough  # it imports torch four times
def test_every_engine_that_is_installed_runs_a_job() -> None:
    done = call(*UNISONO, "doctor", "--json")
    findings = json.loads(done.stdout)
    assert findings["unisono"] == version("unisono")
    assert findings["frameworks"]["numpy"] == version("numpy")
    for name, reason in registry.available().items():
        answer = findings["engines"][name]
        assert answer["reason"] == reason
        assert answer["runs"] == (reason is None)
        assert (answer["seconds"] is not None) == (reason is None)
    assert findings["engines"]["hybrid"]["gaps"][0].keys() == {"what", "reason"}
    assert findings["host"]["cores"] == len(os.sched_getaffinity(0))
    assert findings["host"]["memory_available"] > 0
    assert findings["host"]["refused"] == {}
    assert findings["host"]["memfd_create"]
    assert findings["fine"] and findings["verdict"].startswith("fine: two ranks ran on each")
    assert done.returncode == 0


def test_the_verdict_comes_first_and_gaps_on_request() -> None:
    done = call(*QUICK, "doctor")
    verdict, *rest = done.stdout.splitlines()
    assert verdict == "fine: two ranks ran on each of the engines shm, threads"
    lines = [line.split(maxsplit=2) for line in rest]
    assert ["engine", "threads", "runs"] in lines
    assert ["framework", "numpy", version("numpy")] in lines
    # Each finding is one line in a pipe.
    kinds = {"version", "engine", "framework", "host", "GPU", "launcher"}
    assert {line[0] for line in lines} == kinds
    assert done.stderr == ""
    more = call(*QUICK, "doctor", "--gaps").stdout.splitlines()
    assert any(line.startswith("gap  ") for line in more)


@pytest.mark.thorough
def test_doctor_tells_which_launcher_it_sees() -> None:
    """And its own jobs have nothing to do with that."""
    variables = {"UNISONO_RANK": "1", "UNISONO_SIZE": "3", "UNISONO_JOB": "job"}
    findings = json.loads(call(*QUICK, "doctor", "--json", **variables).stdout)
    assert findings["launcher"] == {"source": "unisono", "rank": 1, "size": 3, "error": None}
    assert findings["fine"]
    broken = json.loads(call(*QUICK, "doctor", "--json", RANK="x", WORLD_SIZE="2").stdout)
    assert broken["launcher"]["source"] is None
    assert "RANK is 'x'" in broken["launcher"]["error"]
    assert broken["fine"]


@pytest.mark.thorough
def test_doctor_imports_no_framework() -> None:
    program = (
        "import sys; from unisono.tools.doctor import command; command.examine()\n"
        "print({'torch', 'mindspore', 'jax', 'cupy', 'mpi4py'} & set(sys.modules))"
    )
    assert call(sys.executable, "-c", program).stdout == "set()\n"


# ---- where something does not work ---------------------------------------------------------------

needs_refusals = pytest.mark.skipif(not CAN_REFUSE, reason="knows no numbers of calls here")


@needs_refusals
@pytest.mark.parametrize(
    ("calls", "error"),
    essential_rows(
        1,
        [
            (",".join(CALLS["x86_64"]), "EPERM"),
            *((call, error) for call in CALLS["x86_64"] for error in ("EPERM", "ENOSYS")),
        ],
    ),
)
def test_calls_that_are_refused(calls: str, error: str) -> None:
    done = call(*refusing(calls, error, *QUICK, "doctor"))
    verdict, *rest = done.stdout.splitlines()
    assert verdict.startswith("fine: two ranks ran on each of the engines shm, threads; ")
    reason = os.strerror(getattr(errno, error))
    for name in calls.split(","):
        assert name in verdict
        assert any(line.split()[:2] == ["host", name] and reason in line for line in rest), rest
    assert done.returncode == 0, done.stderr


@needs_refusals
@pytest.mark.skipif(hosts.why_not() is not None, reason="needs a /dev/shm of its own")
def test_an_engine_that_does_not_run_here() -> None:
    command = refusing("memfd_create", "EPERM", *QUICK, "doctor")
    done = call(*hosts.own_memory("-t ramfs ramfs"), *command)
    verdict, *rest = done.stdout.splitlines()
    reason = "LaunchError: memfd_create is refused (Operation not permitted), and /dev/shm cannot"
    assert verdict.startswith(f"not fine: engine shm: {reason}")
    assert any(line.startswith("engine  ") and f"no: {reason}" in line for line in rest), rest
    assert any(line.split() == ["engine", "threads", "runs"] for line in rest), rest
    assert done.returncode == 1


def test_a_job_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped job is ended at the deadline, with all its processes."""
    monkeypatch.setattr(probe, "_DEADLINE", 0.2)
    stop = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    monkeypatch.setattr(probe, "_command", lambda engine: [sys.executable, "-c", stop])
    outcomes = probe.probe(["shm"])
    assert str(outcomes["shm"].reason).startswith("two ranks gave no answer in ")


def test_doctor_leaves_nothing_when_it_is_killed(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path)
    doctor = subprocess.Popen([*QUICK, "doctor"], env={**os.environ, **leftovers.variables})
    wait_until(lambda: len(leftovers.processes()) > 1 or doctor.poll() is not None)
    doctor.kill()
    doctor.wait()
    leftovers.check()


# ---- people read it ------------------------------------------------------------------------------


def on_a_terminal(command: list[str], columns: int) -> str:
    """What a command prints on a terminal of this width."""
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=secondary,
        env={**os.environ, "COLUMNS": str(columns)},
    ) as process:
        os.close(secondary)
        seen = b""
        try:
            while part := os.read(primary, 65536):
                seen += part
        except OSError:  # how Linux says that the other side is closed
            pass
        process.wait(30)
    os.close(primary)
    return seen.decode().replace("\r\n", "\n")


def test_a_hint_is_whole_on_a_terminal() -> None:
    shown = on_a_terminal([*QUICK, "doctor"], 150)
    assert "pip install 'mpi4py>=4' mpich" in shown


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [60, 100])
def test_lines_fit_the_terminal(columns: int) -> None:
    lines = on_a_terminal([*QUICK, "doctor", "--gaps"], columns).splitlines()
    assert any(line.startswith("engine  ") for line in lines)
    assert max(map(len, lines)) <= columns
