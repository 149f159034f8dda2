"""`unisono trace`: traces of real jobs, what it says about them, and files that are not traces."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import Ranks, state_of
from tests.helpers.launcher import UNISONO
from tests.helpers.processes import wait_until
from tests.helpers.traces import trace_data
from unisono.launch.process import JobEnvironment
from unisono.tools.trace.file import read


def call(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UNISONO, "trace", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "160"},
        cwd=cwd,
    )


def findings(path: Path) -> dict[str, Any]:
    done = call(path, "--json")
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


def script(folder: Path, text: str) -> str:
    """The body of a rank that runs `text` as a file, so that call sites are lines of it."""
    path = folder / "train.py"
    path.write_text(f"from tests.helpers.rank_side import *\n{text}")
    return f"import runpy\nrunpy.run_path({str(path)!r})"


def line_of(folder: Path, mark: str) -> str:
    lines = (folder / "train.py").read_text().splitlines()
    return f"train.py:{1 + next(n for n, line in enumerate(lines) if mark in line)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


def the_trace(folder: Path) -> Path:
    """The only trace; a rank that has lost a peer writes it while it goes on."""
    wait_until(lambda: any(folder.glob("unisono-trace-*.json")))
    (path,) = folder.iterdir()
    return path


# ---- real jobs -----------------------------------------------------------------------------------

SLOW = """
import unisono.torch.distributed as dist
dist.init_process_group("shm")
x = np.ones(8, np.float32)
for turn in range(5):
    if rank == 1:
        time.sleep(0.4)
    dist.barrier()  # late
    works = [dist.all_reduce(np.ones(100_000), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
say(joined=True)
if rank == 2:
    hear()
say(**fault(lambda: dist.all_reduce(x)))  # last
"""


@pytest.fixture
def slow(tmp_path: Path, folder: Path) -> Path:
    """The trace of three ranks: rank 1 is slow, and rank 2 gets killed."""
    with Ranks(3, script(tmp_path, SLOW), UNISONO_TRACE=str(folder)) as ranks:
        for rank in range(3):
            ranks[rank].read()
        for rank in (0, 1):
            ranks[rank].wait_for_sleep()
        ranks[2].signal(signal.SIGKILL)
        for rank in (0, 1):
            assert ranks[rank].read()["kind"] == "PeerLost"
        return the_trace(folder)


def test_slow_rank_and_lost_rank(slow: Path, tmp_path: Path) -> None:
    told = findings(slow)
    assert told["failed"] and told["reason"].startswith("PeerLost: rank 2 ")
    assert told["script"] == "train.py"
    # Rank 1 sleeps five times for 0.4 s before the barrier; nobody else does.
    assert told["late_by_rank"][0]["rank"] == 1
    assert told["late_by_rank"][0]["late"] > 1.2e9
    assert told["late_by_line"][0]["call_site"].endswith(line_of(tmp_path, "# late"))
    assert {(one["verb"], one["last"]) for one in told["latest"]} == {("barrier", 1)}
    assert len(told["latest"]) == 5
    assert told["disagreements"] == []
    states = [rank["state"] for rank in told["ranks"]]
    assert states[:2] == ["running", "running"] and states[2] in ("killed by SIGKILL", "ended")
    for rank in (0, 1):
        assert told["ranks"][rank]["waits_for"] == [2]
        assert 0 < told["ranks"][rank]["activity"]["waiting"] <= 1
        assert told["ranks"][rank]["call"]["verb"] == "all_reduce"
        assert told["ranks"][rank]["call"]["call_site"].endswith(line_of(tmp_path, "# last"))


@pytest.mark.thorough
def test_what_people_read(slow: Path, tmp_path: Path) -> None:
    done = call(slow)
    assert done.returncode == 1 and done.stderr == ""
    assert re.search(r"came last, by rank\n +rank +calls .*\n +1 ", done.stdout)
    assert re.search(
        r"came last, by line\n +line .*\n.*" + line_of(tmp_path, "# late"), done.stdout
    )
    assert re.search(r"\n +0 +\d+ +running +\d+% +all_reduce float32 x 8 sum .* 2\n", done.stdout)
    page, chrome = slow.with_suffix(".html"), slow.with_suffix(".chrome.json")
    assert f"timeline: {page}\n" in done.stdout and f": {chrome}\n" in done.stdout
    for path in (page, chrome):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(slow.parent.iterdir()) == sorted([slow, page, chrome])


@pytest.mark.thorough
def test_chrome_trace(slow: Path, tmp_path: Path) -> None:
    out = tmp_path / "for perfetto.json"
    told = call(slow, "--chrome", out, "--html", tmp_path / "page.html", "--json").stdout
    assert json.loads(told)["chrome"] == str(out)
    events = json.loads(out.read_text())["traceEvents"]
    records = [one for rank in read(slow).ranks for one in rank.calls]
    bars = [one for one in events if one["ph"] == "X" and one["cat"] != "wait"]
    assert sorted((one["name"], one["args"]["began"]) for one in bars) == sorted(
        (one.verb, one.began) for one in records
    )
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert [name.split(" (")[0] for name in names.values()] == ["rank 0", "rank 1", "rank 2"]
    assert {one["pid"] for one in bars} <= set(names)
    waits = {one["name"] for one in events if one.get("cat") == "wait"}
    assert {"waits for rank 1", "waits for rank 2"} <= waits
    assert [one["name"] for one in events if one["ph"] == "i"]
    # On one thread viewers want events that follow or enclose each other.
    threads: dict[int, list[tuple[float, float]]] = {}
    for one in bars:
        threads.setdefault(one["tid"], []).append((one["ts"], one["ts"] + one["dur"]))
    assert len(threads) > 3, "calls at the same time have a thread each"
    for spans in threads.values():
        spans.sort()
        for before, after in itertools.pairwise(spans):
            assert after[0] >= before[1] - 0.001


STOPPED = """
world = groups.init("shm", 1.0)
reduce(world, 77)
say(joined=True)
hear()
say(**fault(lambda: reduce(world)))
"""


@pytest.mark.thorough
def test_stopped_rank(folder: Path) -> None:
    with Ranks(3, STOPPED, UNISONO_TRACE=str(folder)) as ranks:
        for rank in range(3):
            ranks[rank].read()
        ranks[0].signal(signal.SIGSTOP)
        wait_until(lambda: state_of(ranks[0].pid) == "T")
        for rank in (1, 2):
            ranks[rank].tell()
        errors = {ranks[rank].read()["kind"] for rank in (1, 2)}
        assert "CommTimeout" in errors
    told = findings(the_trace(folder))
    assert told["ranks"][told["by"]]["waits_for"] == [0]
    assert told["ranks"][0]["call"]["count"] == 77 and told["ranks"][0]["waits_for"] == []


MISMATCH = """
import unisono.torch.distributed as dist
dist.init_process_group("shm")
x = np.ones(4, np.float32)
def odd():
    dist.broadcast(x, 1)  # odd
def even():
    dist.all_reduce(x)  # even
say(**fault(odd if rank == 1 else even))
hear()
"""


def test_ranks_that_disagree(tmp_path: Path, folder: Path) -> None:
    with Ranks(3, script(tmp_path, MISMATCH), UNISONO_TRACE=str(folder)) as ranks:
        assert {ranks[rank].read()["kind"] for rank in range(3)} == {"MismatchError"}
    path = the_trace(folder)
    (told,) = findings(path)["disagreements"]
    verbs = {rank: one["verb"] for rank, one in told["ranks"].items()}
    assert verbs == {"0": "all_reduce", "1": "broadcast", "2": "all_reduce"}
    text = call(path).stdout
    title = f"ranks disagree in call {told['call']} of group {told['group']}"
    even, odd = line_of(tmp_path, "# even"), line_of(tmp_path, "# odd")
    assert re.search(rf"{title}\n.*(\n.*)*0, 2 +all_reduce float32 x 4 sum .*{even}", text)
    assert re.search(rf"\n +1 +broadcast float32 x 4 root 1 .*{odd}", text)


# ---- a job that runs -----------------------------------------------------------------------------

RUNNING = """
world = groups.init("shm", 600)
for step in range(30):
    time.sleep(0.02 if rank == 1 else 0)
    reduce(world)
say(joined=True)
if rank != 1:
    reduce(world, 7)
hear()
"""


def test_a_job_that_runs(tmp_path: Path) -> None:
    job = JobEnvironment(3, name=f"odd name/{secrets.token_hex(8)}")
    with Ranks(3, RUNNING, job=job) as ranks:
        for rank in range(3):
            ranks[rank].read()
        ranks.wait_for_sleep(0, 2)
        done = call(str(ranks[1].pid), "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr  # nothing has failed
        told = json.loads(done.stdout)
        assert (told["job"], told["script"], told["by"], told["reason"]) == (
            job.name,
            "-c",
            None,
            "",
        )
        assert [rank["waits_for"] for rank in told["ranks"]] == [[1], [], [1]]
        assert told["ranks"][0]["call"]["count"] == 7
        assert told["late_by_rank"][0]["rank"] == 1 and told["late_by_rank"][0]["late"] > 0.3e9
        activity = [rank["activity"] for rank in told["ranks"]]
        assert activity[1]["came_last"] > activity[0]["came_last"]
        assert activity[0]["waiting"] > activity[1]["waiting"]
        # The beginning of its name is enough, and the files bear the name.
        done = call(job.name[:20], cwd=tmp_path)
        assert done.returncode == 0 and f"job {job.name}, -c, 3 ranks, seen " in done.stdout
        base = f"unisono-trace-{job.name.replace(' ', '-').replace('/', '-')}"
        assert {path.name for path in tmp_path.iterdir()} == {f"{base}.html", f"{base}.chrome.json"}
        page = (tmp_path / f"{base}.html").read_text("utf-8")
        assert "<title>-c, 20" in page
        events = json.loads((tmp_path / f"{base}.chrome.json").read_text())["traceEvents"]
        assert "waits for rank 1" in {event["name"] for event in events}
        ranks[1].tell()


@pytest.mark.thorough
def test_names_that_fit_several_jobs_or_none(tmp_path: Path) -> None:
    prefix = secrets.token_hex(8)
    body = "world = groups.init('shm', 600)\nsay(joined=True)\nhear()"
    first, second = (JobEnvironment(1, name=f"{prefix}-{letter}") for letter in "ab")
    with Ranks(1, body, job=first) as one, Ranks(1, body, job=second) as two:
        one[0].read(), two[0].read()
        done = call(prefix, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"begins so: {prefix}-a, {prefix}-b; name one of them" in done.stderr
        done = call(f"{prefix}-c", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no file" in done.stderr and "no job of this user" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_receive_waits_for_its_message(tmp_path: Path) -> None:
    data = trace_data()
    data["ranks"][0]["calls"].append(
        [2, 0, None, "recv", "float32", 8, None, None, 1, "train.py:4", 2000, 4500, "done"]
    )
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(data))
    told = json.loads(call(path, "--json").stdout)
    assert told["ranks"][0]["activity"]["waiting"] == pytest.approx(2500 / 4000)
    events = json.loads((tmp_path / "messages.chrome.json").read_text())["traceEvents"]
    (wait,) = [event for event in events if event.get("cat") == "wait"]
    assert (wait["name"], wait["dur"]) == ("waits for a message", 2.5)


def test_a_trace_without_the_name_of_its_script(tmp_path: Path) -> None:
    data = trace_data()
    del data["script"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    assert call(path).returncode == 0
    assert "<title>job a job, 20" in path.with_suffix(".html").read_text("utf-8")


# ---- files ---------------------------------------------------------------------------------------


def changed(*path: Any, value: Any) -> str:
    data = json.loads(json.dumps(trace_data()))
    parent = data
    for step in path[:-1]:
        parent = parent[step]
    last = path[-1]
    is_field = isinstance(parent, list) and last in data["fields"]
    parent[data["fields"].index(last) if is_field else last] = value
    return json.dumps(data)


def test_a_trace_without_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "fine.json"
    path.write_text(json.dumps(trace_data()))
    assert call(path).returncode == 0


CALL = ("ranks", 1, "calls", 0)
WRONG = {
    "empty": ("", "is not a trace, or only part of one"),
    "truncated": (json.dumps(trace_data())[:-40], "is not a trace, or only part of one"),
    "binary": ("\x00\x01\x7fELF", "is not a trace, or only part of one"),
    "deep": ("[" * 100_000, "is not a trace, or only part of one"),
    "foreign": ('{"traceEvents": []}', "not a trace of unisono"),
    "list": ("[1, 2]", "not a trace of unisono"),
    "later": (changed("version", value=3), "a trace of version 3"),
    "no ranks": (changed("ranks", value=[]), "it has 0 ranks, and its size is 2"),
    "swapped": (changed("ranks", 1, "rank", value=0), "there is no rank 1"),
    "short": (changed(*CALL, value=[1]), "call 0 of rank 1 is not a list of 13 fields"),
    "other fields": (changed("fields", value=["a"]), "the fields of its calls are not sequence"),
    "no calls": (changed("ranks", 0, "calls", value={}), "'calls' of rank 0 is not a list"),
    "text": (changed(*CALL, "began", value="1"), "'began' of call 0 of rank 1 is not a whole"),
    "float": (changed(*CALL, "count", value=1e300), "'count' of call 0 of rank 1"),
    "huge": (changed("clock", value=10**400), "is not a trace, or only part|'clock' of the file"),
    "true": (changed("by", value=True), "'by' of the file is not a whole number"),
    "verb": (changed(*CALL, "verb", value=None), "'verb' of call 0 of rank 1 is not text"),
    "backwards": (changed(*CALL, "ended", value=5), "call 0 of rank 1 ends before it begins"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_files_that_are_not_traces(kind: str, tmp_path: Path) -> None:
    content, text = WRONG[kind]
    path = tmp_path / "trace.json"
    path.write_text(content)
    done = call(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("unisono: ") and re.search(text, done.stderr)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path], "nothing is written"


def test_no_file_at_all(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "none.json", "there is no file"), (tmp_path, "is not a file")):
        done = call(path)
        assert done.returncode == 2 and text in done.stderr
    assert call().returncode == 2


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_data()))
    (tmp_path / "folder").mkdir()
    for option in ("--html", "--chrome"):
        for target in (tmp_path / "none" / "out", tmp_path / "folder"):
            done = call(path, option, target)
            assert (done.returncode, done.stdout) == (2, "")
            assert f"unisono: cannot write '{target}': " in done.stderr
    assert "must be different files" in call(path, "--html", path).stderr
    assert json.loads(path.read_text()) == trace_data()
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")], "no drafts are left"
