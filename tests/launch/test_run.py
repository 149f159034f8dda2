"""`unisono run`, with real processes, signals and a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.helpers.processes import (
    DEADLINE,
    is_running,
    pids_of,
    wait_until,
)

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]
CORES = len(os.sched_getaffinity(0))

PREAMBLE = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
"""

#: Counts its SIGINTs, and says so when none has come for a while.
COUNTING = """
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", os.getpid(), flush=True)
while not seen:
    time.sleep(0.05)
time.sleep(0.5)
print("seen", len(seen))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script that knows its rank, and return its path."""

    def write(body: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + body)
        return str(path)

    return write


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, "run", *arguments], capture_output=True, text=True, timeout=DEADLINE, **options
    )


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a job that is still running when this returns; it is killed at the end of the test."""
    jobs: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*prefix, *UNISONO, "run", *arguments]
        pipe = subprocess.PIPE
        jobs.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            job.kill()
            job.communicate()


# ---- what ranks get ------------------------------------------------------------------------------


def test_labels_and_streams(script: Callable[[str], str]) -> None:
    done = run("-n", "3", script("print('to', 'out'); print('to err', file=sys.stderr)"))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] to out", "[1] to out", "[2] to out"]
    assert sorted(done.stderr.splitlines()) == ["[0] to err", "[1] to err", "[2] to err"]


def test_lines_of_two_ranks_never_mix(script: Callable[[str], str]) -> None:
    body = "for _ in range(2000): sys.stdout.write(str(rank) * 100 + '\\n')"
    lines = run("-n", "4", script(body)).stdout.splitlines()
    assert len(lines) == 8000
    assert set(lines) == {f"[{rank}] {str(rank) * 100}" for rank in range(4)}


def test_a_last_line_without_an_end_is_printed(script: Callable[[str], str]) -> None:
    done = run("-n", "2", script("sys.stdout.write(f'half {rank}')"))
    assert sorted(done.stdout.splitlines()) == ["[0] half 0", "[1] half 1"]


def test_a_lot_of_output_arrives_whole(script: Callable[[str], str]) -> None:
    done = run("-n", "2", script("for i in range(40000): print('x' * 20, i)"))
    assert done.stdout.count("\n") == 80000
    assert done.stdout.count(" 39999\n") == 2


def test_flags_of_the_script_pass_through(script: Callable[[str], str]) -> None:
    flags = ["--its", "-n", "9", "--engine=own", "--", "-m", "x", "--help"]
    done = run("-n", "2", script("print(sys.argv[1:])"), *flags)
    assert sorted(done.stdout.splitlines()) == [f"[0] {flags}", f"[1] {flags}"]


def test_a_double_dash_may_come_before_the_script(script: Callable[[str], str]) -> None:
    done = run("-n", "1", "--", script("print(sys.argv[1:])"), "--flag", "--")
    assert done.stdout == "[0] ['--flag', '--']\n"


def test_module(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    flags = ["-n", "3", "--", "--timeout", "5", "--"]
    done = run("-n", "2", "-m", "some_module", *flags, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[0] __main__ {flags}", f"[1] __main__ {flags}"]


def test_environment(script: Callable[[str], str]) -> None:
    names = (
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR UNISONO_RANK UNISONO_SIZE "
        "UNISONO_LOCAL_RANK UNISONO_LOCAL_SIZE UNISONO_ENGINE UNISONO_TIMEOUT PYTHONUNBUFFERED "
        "RANK_ID RANK_SIZE DEVICE_ID"
    )
    body = f"print([os.environ[name] for name in {names.split()!r}])"
    done = run("-n", "2", "--engine", "threads", "--timeout", "9", script(body))
    assert sorted(done.stdout.splitlines()) == [
        f"[{r}] {[r, '2', r, '2', '127.0.0.1', r, '2', r, '2', 'threads', '9.0', '1', r, '2', r]}"
        for r in ("0", "1")
    ]


def test_every_job_has_its_own_name_and_secret(script: Callable[[str], str]) -> None:
    names = ["UNISONO_JOB", "UNISONO_SECRET", "MASTER_PORT"]
    path = script(f"print(*(os.environ[name] for name in {names}))")
    jobs = []
    for _ in range(2):
        lines = run("-n", "2", path).stdout.splitlines()
        job, secret, port = lines[0].split()[1:]
        assert lines[1].split()[1:] == [job, secret, port]
        assert len(bytes.fromhex(secret)) == 32
        assert 0 < int(port) < 65536
        jobs.append((job, secret))
    assert jobs[0][0] != jobs[1][0] and jobs[0][1] != jobs[1][1]


def test_the_port_is_held_for_the_ranks(script: Callable[[str], str]) -> None:
    """A rank can listen there with SO_REUSEADDR, as torch's store does, and only so."""
    body = """
import socket
for reuse in (False, True):
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            store.bind(("", int(os.environ["MASTER_PORT"])))
            store.listen()
            print(reuse, "listens")
        except OSError as error:
            print(reuse, error.strerror)
"""
    done = run("-n", "1", script(body))
    assert done.stdout == "[0] False Address already in use\n[0] True listens\n"


def test_ranks_share_the_launchers_session_and_group(script: Callable[[str], str]) -> None:
    body = (
        "print(os.getsid(0) == os.getsid(os.getppid()), os.getpgid(0) == os.getpgid(os.getppid()))"
    )
    lines = run("-n", "2", script(body)).stdout.splitlines()
    assert sorted(lines) == ["[0] True True", "[1] True True"]


def threads_of(core: int) -> set[int]:
    """The hardware threads of the core of one of them, as far as we may use them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/core_cpus_list")
    siblings = {core}
    for part in path.read_text().strip().split(",") if path.exists() else ():
        first, _, last = part.partition("-")
        siblings |= set(range(int(first), int(last or first) + 1))
    return siblings & os.sched_getaffinity(0)


def cores_of(done: subprocess.CompletedProcess[str]) -> list[set[int]]:
    return [set(map(int, line.split()[1:])) for line in sorted(done.stdout.splitlines())]


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_each_rank_has_cores_of_its_own(script: Callable[[str], str]) -> None:
    first, second = cores_of(run("-n", "2", script("print(*os.sched_getaffinity(0))")))
    assert len(first) == len(second) == CORES // 2
    assert not first & second


def test_ranks_are_not_bound_if_there_are_too_few_cores(script: Callable[[str], str]) -> None:
    path = script("print(*os.sched_getaffinity(0))")
    everything = os.sched_getaffinity(0)
    assert cores_of(run("-n", str(CORES + 1), path)) == [everything] * (CORES + 1)
    assert cores_of(run("-n", "1", "--bind", "none", path)) == [everything]


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_each_rank_has_one_core_if_asked_for(script: Callable[[str], str]) -> None:
    path = script("print(*os.sched_getaffinity(0))")
    (alone,) = cores_of(run("-n", "1", "--bind", "core", path))
    assert alone == threads_of(min(alone)) < os.sched_getaffinity(0)
    first, second = cores_of(run("-n", "2", "--bind", "core", path))
    assert len(first) == len(second) and not first & second


def test_one_core_for_each_rank_needs_as_many(script: Callable[[str], str]) -> None:
    path = script("print('started')")
    done = run("-n", str(CORES + 1), "--bind", "core", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"needs a core for each of {CORES + 1} ranks, and there are {CORES}" in done.stderr
    done = run("-n", "1", "--bind", "tightly", path)
    assert done.returncode == 2 and "invalid choice: 'tightly'" in done.stderr


def test_ranks_of_other_launchers_keep_their_cores(script: Callable[[str], str]) -> None:
    body = "import unisono.torch.distributed as dist; before = os.sched_getaffinity(0)\n"
    body += "dist.init_process_group(); print(os.sched_getaffinity(0) == before)"
    done = subprocess.run(
        [sys.executable, script(body)],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr


def limited(soft: int, hard: int) -> list[str]:
    """A program that may open so many files and becomes the program that follows."""
    source = f"import os, resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard}))"
    return [sys.executable, "-c", f"{source}; os.execv(sys.argv[1], sys.argv[1:])"]


def test_the_limit_of_open_files_is_raised(script: Callable[[str], str], start: Start) -> None:
    body = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    job = start("-n", "12", script(body), prefix=limited(40, 2000))
    out, err = job.communicate(timeout=DEADLINE)
    assert (job.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{rank}] (164, 2000)" for rank in range(12))


def test_too_many_ranks_for_the_limit_are_refused(
    script: Callable[[str], str], start: Start
) -> None:
    job = start("-n", "1000", script("print('started')"), prefix=limited(1024, 1024))
    out, err = job.communicate(timeout=DEADLINE)
    assert (job.returncode, out) == (2, "")
    assert err.startswith(
        "unisono: 1000 ranks need 3128 open files, and the limit is 1024 (`ulimit -Hn`); start at "
        "most 298 ranks, or have the limit raised"
    )


def test_a_number_of_ranks_with_too_many_digits(script: Callable[[str], str]) -> None:
    done = run("-n", "1" + 12 * "0", script("print('started')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "unisono: 1000000000000 ranks need" in done.stderr


def test_only_the_first_rank_reads_stdin(script: Callable[[str], str]) -> None:
    done = run("-n", "2", script("print(repr(sys.stdin.read()))"), input="text")
    assert sorted(done.stdout.splitlines()) == ["[0] 'text'", "[1] ''"]


def test_log_directory(script: Callable[[str], str], tmp_path: Path) -> None:
    logs = tmp_path / "deep" / "logs"
    body = "print('out', rank); sys.stderr.write('err')"
    assert run("-n", "2", "--log-dir", str(logs), script(body)).returncode == 0
    written = {path.name: path.read_text() for path in logs.iterdir()}
    assert written == {
        "rank-0.out": "out 0\n",
        "rank-0.err": "err",
        "rank-1.out": "out 1\n",
        "rank-1.err": "err",
    }


def test_log_directory_that_cannot_be_made(script: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("-n", "2", "--log-dir", str(tmp_path / "file" / "logs"), script("print('ran')"))
    assert done.returncode == 2
    assert f"--log-dir '{tmp_path}/file/logs' cannot be made" in done.stderr
    assert done.stdout == ""


def test_log_directory_that_cannot_be_written(script: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "rank-1.err").mkdir()
    done = run("-n", "2", "--log-dir", str(tmp_path), script("time.sleep(60)"))
    assert done.returncode == 2
    expected = f"unisono: --log-dir: cannot write '{tmp_path}/rank-1.err': Is a directory; "
    assert done.stderr.startswith(expected)


# ---- how jobs fail -------------------------------------------------------------------------------


def test_the_failing_rank_is_reported_last(script: Callable[[str], str], tmp_path: Path) -> None:
    body = """
Path(sys.argv[1], f"pid-{rank}").write_text(str(os.getpid()))
if rank == 1:
    while len(list(Path(sys.argv[1]).glob("pid-*"))) < 3:
        time.sleep(0.02)
    raise ValueError("this is the cause")
time.sleep(600)
"""
    done = run("-n", "3", "--grace", "1", script(body), str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "[1] ValueError: this is the cause\nunisono: rank 1 of 3 failed: exit code 1\n"
    )
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("pid-*"))


def test_exit_code_of_the_failing_rank(script: Callable[[str], str]) -> None:
    done = run("-n", "2", script("sys.exit(7 if rank == 1 else 0)"))
    assert done.returncode == 7
    assert done.stderr == "unisono: rank 1 of 2 failed: exit code 7\n"


def test_a_killed_rank(script: Callable[[str], str]) -> None:
    body = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    done = run("-n", "2", "--grace", "0.5", script(body))
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == "unisono: rank 1 of 2 failed: killed by SIGKILL"


def test_a_survivor_is_not_the_culprit(script: Callable[[str], str]) -> None:
    # The survivors end first: the culprit has told them, but takes its time to leave.
    body = """
from unisono.errors import PeerLost
if rank == 2:
    time.sleep(0.8)
    sys.exit("the cause")
raise PeerLost("rank 2 closed the group")
"""
    done = run("-n", "3", script(body))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "[2] the cause\n"
        "unisono: failed as well: ranks 0, 1 (exit code 1)\n"
        "unisono: rank 2 of 3 failed: exit code 1\n"
    )


def test_a_cause_that_ends_late_is_found_behind_wrapped_errors(
    script: Callable[[str], str],
) -> None:
    """The kind of an error is data: neither other hooks nor other texts on stderr hide it."""
    body = """
from unisono.errors import PeerLost
sys.excepthook = lambda *_: print("no traceback", file=sys.stderr)
if rank == 2:
    time.sleep(0.8)
    print("PeerLost: only a text", file=sys.stderr)
    raise ValueError("the cause")
try:
    raise PeerLost("rank 2 closed the group")
except PeerLost as error:
    raise LookupError("no gradients") from error
"""
    path = script(body)
    done = run("-n", "3", path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"unisono: rank 2 of 3 failed: ValueError at {path}:11: the cause"
    )


def test_lines_of_the_culprit_are_repeated_if_others_came_after_them(
    script: Callable[[str], str],
) -> None:
    body = """
if rank == 1:
    sys.exit("the cause")
time.sleep(1)
sys.exit("a consequence" if rank == 0 else 0)
"""
    done = run("-n", "3", script(body))
    assert done.stderr.splitlines() == [
        "[1] the cause",
        "[0] a consequence",
        "unisono: failed as well: rank 0 (exit code 1)",
        "unisono: the last lines of rank 1 on stderr:",
        "    the cause",
        "unisono: rank 1 of 3 failed: exit code 1",
    ]


@pytest.mark.thorough
def test_a_rank_that_ignores_sigterm_is_killed(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    body = """
if rank == 0:
    while not Path(sys.argv[1], "pid").exists():
        time.sleep(0.02)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1], "written").write_text(str(os.getpid()))
Path(sys.argv[1], "written").rename(Path(sys.argv[1], "pid"))
time.sleep(600)
"""
    begin = time.monotonic()
    done = run("-n", "2", "--grace", "0", script(body), str(tmp_path))
    assert done.returncode == 3
    assert time.monotonic() - begin > 4.5
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_grandchild_does_not_hold_the_launcher(script: Callable[[str], str]) -> None:
    body = "print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    done = run("-n", "1", script(body))
    assert done.returncode == 0
    grandchild = int(done.stdout.split()[-1])
    assert is_running(grandchild)
    os.kill(grandchild, signal.SIGKILL)


# ---- signals -------------------------------------------------------------------------------------


def test_interrupt_by_kill_is_forwarded_once(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "2", script(COUNTING))
    pids_of(job, 2)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=DEADLINE)
    assert sorted(out.splitlines()) == ["[0] seen 1", "[1] seen 1"]
    assert job.returncode == 130
    assert err.splitlines()[-1] == "unisono: interrupted by SIGINT"


def test_second_interrupt_kills(script: Callable[[str], str], start: Start) -> None:
    body = "signal.signal(signal.SIGINT, lambda *_: print('no', flush=True))\n"
    job = start("-n", "2", script(body + "print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 2)
    job.send_signal(signal.SIGINT)
    assert job.stdout is not None
    assert {job.stdout.readline() for _ in range(2)} == {"[0] no\n", "[1] no\n"}
    assert job.stderr is not None
    assert job.stderr.readline() == (
        "unisono: still running after Ctrl-C: ranks 0, 1; Ctrl-C again kills what still runs\n"
    )
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=DEADLINE)
    assert job.returncode == 130
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_end_by_signal(script: Callable[[str], str], start: Start, number: signal.Signals) -> None:
    body = f"signal.signal({int(number)}, lambda *_: sys.exit('got it'))\n"
    job = start("-n", "2", script(body + "print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 2)
    job.send_signal(number)
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 128 + number
    assert {"[0] got it", "[1] got it"} < set(err.splitlines())
    assert not any(map(is_running, pids))


def ignoring(*numbers: signal.Signals) -> list[str]:
    """A program that ignores these signals and becomes the program that follows."""
    lines = "\n".join(f"signal.signal({int(number)}, signal.SIG_IGN)" for number in numbers)
    source = f"import os, signal, sys\n{lines}\nos.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", source]


def test_an_ignored_hangup_stays_ignored(script: Callable[[str], str], start: Start) -> None:
    """As under nohup: the job goes on without its terminal, its ranks too."""
    body = """
print("ready", os.getpid(), signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, os.getpid())
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""
    path = script(body)
    end = Path(path).parent / "end"
    job = start("-n", "2", path, str(end), prefix=ignoring(signal.SIGHUP))
    for pid in [*pids_of(job, 2), job.pid]:
        os.kill(pid, signal.SIGHUP)
    end.touch()
    _, err = job.communicate(timeout=DEADLINE)
    assert (job.returncode, err) == (0, "")


def test_an_ignored_interrupt_is_not_inherited(script: Callable[[str], str], start: Start) -> None:
    """As under cron: a rank can still be interrupted, and clean up."""
    body = "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    job = start("-n", "2", script(body), prefix=ignoring(signal.SIGINT))
    out, _ = job.communicate(timeout=DEADLINE)
    assert sorted(out.splitlines()) == ["[0] True", "[1] True"]


def test_terminal_interrupt_reaches_ranks_once(script: Callable[[str], str]) -> None:
    # A program in between takes its stdin as its terminal: code before exec is not safe here.
    own_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    terminal, end = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-c", own_terminal, *UNISONO, "run", "-n", "2", script(COUNTING)],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    seen = b""
    interrupted = False
    try:
        while chunk := os.read(terminal, 4096):
            seen += chunk
            if seen.count(b"ready") == 2 and not interrupted:
                interrupted = True
                os.write(terminal, b"\x03")
    except OSError:
        pass  # the terminal ends with its last process
    os.close(terminal)
    assert job.wait(DEADLINE) == 130
    assert seen.count(b"seen 1") == 2
    assert b"\x1b[" in seen  # labels are coloured on a terminal


def test_no_rank_survives_the_launcher(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "3", script("print('ready', os.getpid())\nwhile 1: time.sleep(1)"))
    pids = pids_of(job, 3)
    assert all(map(is_running, pids))
    job.kill()
    job.communicate(timeout=DEADLINE)
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_reader_that_leaves_ends_the_job(script: Callable[[str], str], start: Start) -> None:
    job = start("-n", "2", script("while 1: print('more' * 100)"))
    assert job.stdout is not None
    job.stdout.readline()
    job.stdout.close()
    job.stdout = None
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    assert "BrokenPipeError" in err
