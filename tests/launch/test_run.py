"""What `unisono run` gives to its ranks, and what becomes of their output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.launcher import Start, run
from tests.helpers.processes import DEADLINE

CORES = len(os.sched_getaffinity(0))


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
