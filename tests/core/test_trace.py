"""Every rank keeps its last calls; errors tell them, and one file holds them all."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.paths import ROOT
from tests.helpers.processes import wait_until
from tests.helpers.thorough import essential, essential_rows
from unisono import _native, spawn
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.errors import LaunchError, MismatchError, UnisonoError

FIELDS = [
    "sequence", "group", "call", "verb", "dtype", "count", "op", "root", "peer", "call_site",
    "began", "ended", "state",
]  # fmt: skip


def script(folder: Path, text: str) -> str:
    """The body of a rank that runs `text` as a file of its own, so that its lines have numbers."""
    path = folder / "train.py"
    path.write_text(f"from tests.helpers.rank_side import *\n{text}")
    return f"import runpy\nrunpy.run_path({str(path)!r})"


def line_of(folder: Path, mark: str) -> str:
    """File and number of the line that holds a mark."""
    lines = (folder / "train.py").read_text().splitlines()
    return f"train.py:{1 + next(i for i, line in enumerate(lines) if mark in line)}"


def trace_of(folder: Path) -> dict[str, Any]:
    """The one trace in a folder, with its calls by the names of their fields."""
    (path,) = folder.iterdir()
    assert path.name.startswith(f"unisono-trace-{os.getuid()}-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    trace = json.loads(path.read_text())
    assert trace["fields"] == FIELDS
    for one in trace["ranks"]:
        one["calls"] = [dict(zip(FIELDS, call, strict=True)) for call in one["calls"]]
    return trace


def check_states(trace: dict[str, Any], state: str) -> None:
    """The last call of who wrote has ended so; that of another may not have been told yet."""
    for one in trace["ranks"]:
        allowed = {state} if one["rank"] == trace["by"] else {state, "running"}
        assert one["calls"][-1]["state"] in allowed


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


# ---- ranks that disagree -------------------------------------------------------------------------

FACES = {
    "torch": """
import unisono.torch.distributed as dist
dist.init_process_group("shm")
x = np.zeros(10, np.float32)
first = lambda: dist.all_reduce(x)
dist.barrier()
def call():
    if rank == 2:
        dist.all_gather_into_tensor(np.zeros(30, np.float32), x)  # odd
    else:
        dist.all_reduce(x)  # even
""",
    "mindspore": """
from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func
communication.init()
x = np.zeros(10, np.float32)
comm_func.barrier()
def call():
    if rank == 2:
        comm_func.all_gather_into_tensor(x)  # odd
    else:
        comm_func.all_reduce(x)  # even
""",
    "backend": """
import torch, torch.distributed as dist, unisono.torch.backend
dist.init_process_group("unisono")
x = torch.zeros(10)
dist.barrier()
def call():
    if rank == 2:
        dist.all_gather_into_tensor(torch.zeros(30), x)  # odd
    else:
        dist.all_reduce(x)  # even
""",
}


@pytest.mark.parametrize("face", essential(1, FACES))
def test_mismatch_names_the_lines(face: str, tmp_path: Path, traces: Path) -> None:
    if face == "backend":
        pytest.importorskip("torch")
    end = """
try:
    call()
except Exception as error:
    say(text=str(error))
hear()
os._exit(0)
"""
    with Ranks(3, script(tmp_path, FACES[face] + end), UNISONO_TRACE=str(traces)) as ranks:
        texts = [ranks[rank].read()["text"] for rank in range(3)]
        call = trace_of(traces)["ranks"][0]["calls"][-1]["call"]
        even, odd = (line_of(tmp_path, f"# {mark}") for mark in ("even", "odd"))
        for text in texts:
            first = text.index(f"ranks 0, 1: all_reduce float32 x 10 sum, call {call} at ")
            second = text.index(f"rank 2: all_gather float32 x 10, call {call} at ")
            assert text.index(even) > first and text.index(odd) > second
        trace = trace_of(traces)
        check_states(trace, "mismatch")
        assert trace["ranks"][2]["calls"][-1]["call_site"].endswith(odd)
        for rank in range(3):
            ranks[rank].tell()


# ---- ranks that are missing ----------------------------------------------------------------------

LATE = """
world = groups.init("shm", 600)
reduce(world, 77)
say(joined=True)
hear()
if rank == 2:
    hear()
    sys.exit()
say(**fault(lambda: reduce(world, timeout=1.0)))  # waits
"""


@pytest.mark.parametrize("stopped", essential(1, [True, False]), ids=["stopped", "elsewhere"])
def test_timeout_tells_what_each_did(stopped: bool, tmp_path: Path, traces: Path) -> None:
    with Ranks(3, script(tmp_path, LATE), UNISONO_TRACE=str(traces)) as ranks:
        for rank in range(3):
            ranks[rank].read()
        if stopped:
            ranks[2].signal(signal.SIGSTOP)
            wait_until(lambda: state_of(ranks[2].pid) == "T")
        for rank in (0, 1):
            ranks[rank].tell()
        errors = [ranks[rank].read() for rank in (0, 1)]
        assert "CommTimeout" in {error["kind"] for error in errors}
        for error in errors:
            if error["kind"] != "CommTimeout":
                continue  # it was told by the other one, whose deadline came first
            how = "alive but stopped" if stopped else "alive but has not come"
            assert how in error["text"], error
            assert "its last call was all_reduce float64 x 77 sum (call 1) at " in error["text"]
            assert "rank_side.py:" in error["text"] and "which ended " in error["text"]
            assert "arrived: rank 0 (pid " in error["text"]
            assert "the last calls of all ranks: " in error["text"]
        trace = trace_of(traces)
        assert trace["ranks"][2]["state"] == "running"
        assert [call["count"] for call in trace["ranks"][2]["calls"]] == [77]


def test_lost_rank_and_what_it_did_last(tmp_path: Path, traces: Path) -> None:
    text = """
world = groups.init("shm", 600)
def last():
    dispatch = sys.modules["unisono.core.dispatch"]
    dispatch.barrier(world)  # last
last()
say(joined=True)
if rank == 1:
    hear()
say(**fault(lambda: reduce(world)))
"""
    with Ranks(2, script(tmp_path, text), UNISONO_TRACE=str(traces)) as ranks:
        for rank in range(2):
            ranks[rank].read()
        ranks[0].wait_for_sleep()
        ranks[1].signal(signal.SIGKILL)
        error = ranks[0].read()
        assert error["kind"] == "PeerLost"
        assert "its last call was barrier (call 1) at " in error["text"]
        assert line_of(tmp_path, "# last") in error["text"]
        # It is named at once, and written beside the rank that goes on.
        wait_until(lambda: any(path.name[0] != "." for path in traces.iterdir()))
        trace = trace_of(traces)
        assert trace["reason"].startswith("PeerLost: rank 1 ")
        assert trace["by"] == 0
        assert [one["pid"] for one in trace["ranks"]] == [ranks[0].pid, ranks[1].pid]
        assert trace["ranks"][1]["state"] in ("killed by SIGKILL", "ended")
        assert [call["state"] for call in trace["ranks"][0]["calls"]] == ["done", "lost"]


def test_message_that_does_not_come(tmp_path: Path, traces: Path) -> None:
    text = """
world = groups.init("shm", 600)
if rank == 1:
    reduced = groups.world().split([1])
    reduce(reduced)
    say(ready=True)
    hear()
    sys.exit()
hear()
say(**fault(lambda: recv(world, 1, timeout=1.0)))
"""
    with Ranks(2, script(tmp_path, text), UNISONO_TRACE=str(traces)) as ranks:
        ranks[1].read()
        ranks[0].tell()
        error = ranks[0].read()
        assert error["kind"] == "CommTimeout"
        assert "its last call was all_reduce float64 x 1 sum (call 1)" in error["text"]
        (call,) = trace_of(traces)["ranks"][0]["calls"]
        assert (call["verb"], call["peer"], call["state"]) == ("recv", 1, "timeout")
        assert call["root"] is None and call["call"] is None


# ---- the file ------------------------------------------------------------------------------------

WRONG = """
world = groups.init("shm", 600)
for count in range(1500):
    reduce(world)
buffer = np.zeros(4)
work = start_reduce(world, buffer)
work.wait()
error = fault(lambda: reduce(world, 1 + rank))
say(**error)
hear()
"""


def test_trace_file(tmp_path: Path, traces: Path) -> None:
    began = time.monotonic_ns()
    with Ranks(2, script(tmp_path, WRONG), UNISONO_TRACE=str(traces)) as ranks:
        texts = [ranks[rank].read()["text"] for rank in range(2)]
        (path,) = traces.iterdir()
        for text in texts:
            assert text.endswith(f"\nthe last calls of all ranks: {path} (unisono trace {path})")
        trace = trace_of(traces)
        assert (trace["unisono"], trace["version"], trace["size"]) == ("trace", 2, 2)
        assert trace["job"] == ranks.job.name
        assert trace["reason"].startswith("MismatchError: ranks disagree in call 1502")
        for rank, one in enumerate(trace["ranks"]):
            assert (one["rank"], one["pid"]) == (rank, ranks[rank].pid)
            calls = one["calls"]
            assert len(calls) == 1024
            assert [call["sequence"] for call in calls] == list(range(479, 1503))
            assert [call["call"] for call in calls] == list(range(479, 1503))
            ended = [call for call in calls if call["ended"] is not None]
            assert len(ended) >= 1023
            assert all(began < call["began"] <= call["ended"] <= trace["clock"] for call in ended)
            assert {call["state"] for call in calls[:-1]} == {"done"}
            assert (calls[-2]["count"], calls[-1]["count"]) == (4, 1 + rank)
        check_states(trace, "mismatch")
        for rank in range(2):
            ranks[rank].tell()
            assert ranks[rank].end() == 0


def test_no_trace_is_wanted(tmp_path: Path) -> None:
    with Ranks(2, script(tmp_path, WRONG), UNISONO_TRACE="0") as ranks:
        for rank in range(2):
            error = ranks[rank].read()
            assert error["kind"] == "MismatchError"
            assert "the last calls of all ranks" not in error["text"]
            assert "UNISONO_TRACE" not in error["text"]


def test_the_command_is_quoted_for_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    with Ranks(2, script(tmp_path, WRONG), UNISONO_TRACE=str(folder)) as ranks:
        text = ranks[0].read()["text"]
    (path,) = folder.iterdir()
    command = text.rpartition("(")[2].removesuffix(")")
    told = subprocess.run(
        ["sh", "-c", f"set -- {command}; printf '%s\\n' \"$@\""], capture_output=True, text=True
    )
    assert told.stdout.splitlines() == ["unisono", "trace", str(path)]


LOST = """
world = groups.init("shm", 600)
reduce(world)
say(joined=True)
if rank == 1:
    hear()
say(**fault(lambda: reduce(world)))
"""


UNWRITABLE = [
    ("none", "No such file or directory"),
    ("a file", "Not a directory"),
    ("shut", "Perm"),
]


@pytest.mark.parametrize(("folder", "reason"), essential_rows(1, UNWRITABLE))
@pytest.mark.parametrize("body", essential(1, [WRONG, LOST]), ids=["mismatch", "lost"])
def test_a_folder_that_cannot_be_written_is_said(
    folder: str, reason: str, body: str, tmp_path: Path
) -> None:
    target = tmp_path / folder
    if folder == "a file":
        target.touch()
    elif folder == "shut":
        if os.getuid() == 0:
            target = Path("/proc/self")  # where not even root makes files
        else:
            target.mkdir(mode=0o500)
    with Ranks(2, script(tmp_path, body), UNISONO_TRACE=str(target)) as ranks:
        if body == LOST:
            for rank in range(2):
                ranks[rank].read()
            ranks[0].wait_for_sleep()
            ranks[1].signal(signal.SIGKILL)
        texts = [ranks[rank].read()["text"] for rank in range(1 if body == LOST else 2)]
    for text in texts:
        assert "the last calls of all ranks" not in text
        assert text.count("UNISONO_TRACE") == 1
        assert f"\nno trace is written to {target}: {reason}" in text
    assert len(set(texts)) == 1 or body == LOST, "the same on all ranks, so that output folds it"


FULL = WRONG.replace(
    "error = fault(",
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nerror = fault(",
)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, traces: Path) -> None:
    """The folder looks fine, and yet there is no room: only the rank that tries knows."""
    with Ranks(2, script(tmp_path, FULL), UNISONO_TRACE=str(traces)) as ranks:
        texts = [ranks[rank].read()["text"] for rank in range(2)]
    said = f"\nno trace is written to {traces}: File too large; set UNISONO_TRACE to "
    assert sum(said in text for text in texts) == 1
    assert not list(traces.iterdir())


@pytest.mark.thorough
def test_no_folder_for_temporary_files(tmp_path: Path) -> None:
    with Ranks(2, script(tmp_path, FULL), UNISONO_TRACE="") as ranks:
        for rank in range(2):
            error = ranks[rank].read()
            assert error["kind"] == "MismatchError"
            assert "\nno trace is written: No usable temporary directory" in error["text"]


# ---- ranks that are threads ----------------------------------------------------------------------


def disagree() -> str:
    world = groups.world()
    memory = buffers.view(np.zeros(2 + world.rank))
    with pytest.raises(MismatchError) as caught:
        dispatch.all_reduce(world, memory, memory, ReduceOp.SUM)  # here
    return str(caught.value)


def test_threads_keep_records_too(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(traces))
    source = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(source) if text.endswith("# here"))
    for text in spawn(disagree, 2):
        where = f"tests/core/{Path(__file__).name}:{line}"
        assert f"rank 1: all_reduce float64 x 3 sum, call 1 at {where}" in text.replace(
            f"{ROOT}/", ""
        )
    trace = trace_of(traces)
    check_states(trace, "mismatch")
    assert trace["ranks"][1]["calls"][0]["count"] == 3


# ---- looking from outside ------------------------------------------------------------------------


def test_viewer(tmp_path: Path) -> None:
    text = """
world = groups.init("shm", 600)
reduce(world)
if rank == 1:
    folder = "/proc/self/fd"
    links = {int(f): os.path.realpath(f"{folder}/{f}") for f in os.listdir(folder)}
    say(fd=[fd for fd, link in links.items() if "memfd:unisono" in link][0])
    hear()
reduce(world, 5)
say(done=True)
hear()
"""
    with Ranks(3, script(tmp_path, text)) as ranks:
        number = ranks[1].read()["fd"]
        ranks[0].wait_for_sleep()
        ranks[2].wait_for_sleep()
        with Path(f"/proc/{ranks[1].pid}/fd/{number}").open("rb") as file:
            viewer = _native.JobInspector(file.fileno())
        assert viewer.size == 3
        seen = viewer.snapshot()
        assert [pid for pid, _, _, _ in seen] == [ranks[rank].pid for rank in range(3)]
        assert [state for _, state, _, _ in seen] == ["running"] * 3
        assert [missing for _, _, _, missing in seen] == [[1], None, [1]]
        assert seen[0][2][-1][3:6] == ("all_reduce", "float64", 5)
        assert seen[0][2][-1][11:] == (None, "running")
        ranks[1].tell()
        for rank in range(3):
            ranks[rank].read()
            ranks[rank].tell()
            assert ranks[rank].end() == 0
        assert [state for _, state, _, _ in viewer.snapshot()] == ["left"] * 3


def garbage(kind: str, folder: Path) -> int:
    """A descriptor that is no job's."""
    if kind == "closed":
        handle = os.open("/dev/null", os.O_RDONLY)
        os.close(handle)
        return handle
    if kind == "socket":
        return socket.socket().detach()
    if kind == "device":
        return os.open("/dev/zero", os.O_RDWR)
    if kind == "folder":
        return os.open(folder, os.O_RDONLY)
    if kind == "file":
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            return os.dup(file.fileno())
    handle = os.memfd_create("garbage", os.MFD_ALLOW_SEALING)
    if kind == "cut":  # the head of a job, without the rest
        with os.fdopen(_native.create_job_memory(4), "rb") as job:
            os.write(handle, job.read(4096))
    elif kind == "random":
        os.write(handle, os.urandom(1 << 20))
    fcntl_add_seals, seal_shrink = 1033, 2
    __import__("fcntl").fcntl(handle, fcntl_add_seals, seal_shrink)
    return handle


@pytest.mark.parametrize(
    "kind", ["closed", "socket", "device", "folder", "file", "empty", "cut", "random"]
)
def test_garbage_is_no_job(kind: str, tmp_path: Path) -> None:
    handle = garbage(kind, tmp_path)
    with pytest.raises(LaunchError, match="not the memory of a job"):
        _native.JobInspector(handle)
    if kind != "closed":
        os.close(handle)


def test_a_job_full_of_garbage_is_no_crash() -> None:
    """Random bytes behind a right header give nonsense or an error, never a crash."""
    random = np.random.default_rng(5)
    handle = _native.create_job_memory(3)
    with os.fdopen(handle, "r+b", buffering=0) as job:
        size = os.fstat(handle).st_size
        for _ in range(50):
            begin = 128 + int(random.integers(0, 1 << 19))
            os.pwrite(handle, random.bytes(1 << 16), begin)
            try:
                seen = _native.JobInspector(job.fileno()).snapshot()
            except UnisonoError:
                continue
            assert len(seen) == 3
        assert os.fstat(handle).st_size == size
