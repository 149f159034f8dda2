"""`unisono trace --merge`: calls beside the events of torch.profiler, on one clock."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.helpers.launcher import run  # noqa: E402
from unisono import cli  # noqa: E402
from unisono.core.trace import RankReport, Record, Tracer  # noqa: E402

SLACK = 20_000  # microseconds: a busy machine may stop us between two readings of clocks


def call(*arguments: str | Path) -> int:
    try:
        return cli.main(["trace", *map(str, arguments)])
    except SystemExit as error:
        return int(error.code or 0)


def recorded(folder: Path) -> tuple[Path, Path]:
    """A trace of two ranks, the first of which is this process, and its profile.

    The calls were made as long as `record_function` shows it.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        began = time.monotonic_ns()
        with torch.profiler.record_function("mark"):
            time.sleep(0.05)
        ended = time.monotonic_ns()
    profile, trace = folder / "profile.json", folder / "trace.json"
    profiler.export_chrome_trace(str(profile))
    record = Record(1, 0, 1, "all_reduce", "float32", 4, "sum", None, None, "a.py:1", began, ended)
    record.state = "done"
    pids = (os.getpid(), os.getpid() + 1)
    ranks = [RankReport(n, pid, "running", [record]) for n, pid in enumerate(pids)]
    source: Any = None
    trace.write_text(json.dumps(Tracer("job", 0, source)._page("PeerLost: x", ranks)))
    return trace, profile


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def named(all_events: list[dict[str, Any]], name: str, pid: int) -> dict[str, Any]:
    (found,) = [each for each in all_events if (each.get("name"), each["pid"]) == (name, pid)]
    return found


@pytest.mark.parametrize("compressed", [False, True])
def test_calls_and_events_have_one_clock(tmp_path: Path, compressed: bool) -> None:
    trace, profile = recorded(tmp_path)
    if compressed:
        profile.write_bytes(gzip.compress(profile.read_bytes()))
    merged = tmp_path / "merged.json"
    assert call(trace, "--merge", profile, "--chrome", merged) in (0, 1)
    own, other = os.getpid(), os.getpid() + 1
    mark = named(events(merged), "mark", own)
    for pid in (own, other):
        shown = named(events(merged), "all_reduce", pid)
        assert abs(shown["ts"] - mark["ts"]) < SLACK
        assert abs(shown["dur"] - mark["dur"]) < SLACK
        assert shown["args"]["dtype"] == "float32"
    assert named(events(merged), "process_name", own)["args"]["name"].startswith("rank 0")


def test_profiles_of_several_ranks_have_one_base(tmp_path: Path) -> None:
    trace, profile = recorded(tmp_path)
    content = json.loads(profile.read_text())
    later = {**content, "baseTimeNanoseconds": content["baseTimeNanoseconds"] + 5_000_000}
    second = tmp_path / "second.json"
    second.write_text(json.dumps(later))
    merged = tmp_path / "merged.json"
    call(trace, "--merge", profile, "--merge", second, "--chrome", merged)
    marks = [each["ts"] for each in events(merged) if each.get("name") == "mark"]
    assert marks[1] - marks[0] == pytest.approx(5000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing", "is not a profile"),
        ("[]", "export_chrome_trace"),
        ('{"traceEvents": []}', "when it began"),
        ('{"traceEvents": [], "baseTimeNanoseconds": 0}', "no profile is of a rank of this job"),
    ],
)
def test_what_is_no_profile_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    trace, profile = recorded(tmp_path)
    profile.write_text(text)
    assert call(trace, "--merge", profile) == 2
    assert expected in capsys.readouterr().err
    assert call(trace, "--merge", tmp_path / "missing.json") == 2
    assert "cannot read the profile" in capsys.readouterr().err


JOB = """
import os, signal, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("unisono")
rank = dist.get_rank()
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    try:
        for step in range(10):
            if step == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(4))
    except RuntimeError:
        pass
profiler.export_chrome_trace(f"{sys.argv[1]}/profile-{rank}.json")
"""


@pytest.mark.thorough
def test_a_job_that_was_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spans of the profiler and the records of the trace are of the same calls."""
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("UNISONO_TRACE", str(traces))
    script = tmp_path / "script.py"
    script.write_text(JOB)
    run("-n", "3", "--on-failure", "continue", str(script), str(tmp_path))
    (trace,) = traces.glob("*.json")
    merged = tmp_path / "merged.json"
    profiles = [tmp_path / f"profile-{rank}.json" for rank in (0, 2)]
    assert call(trace, *(f"--merge={path}" for path in profiles), "--chrome", merged) == 1
    found = events(merged)
    for rank in json.loads(trace.read_text())["ranks"]:
        mine = [each for each in found if each["pid"] == rank["pid"] and each["ph"] == "X"]
        spans = sorted(each["ts"] for each in mine if each["name"] == "unisono:all_reduce")
        calls = sorted(each["ts"] for each in mine if each["name"] == "all_reduce")
        assert len(spans) == (0 if rank["rank"] == 1 else 6)
        for span, shown in zip(spans, calls[-len(spans) :], strict=bool(spans)):
            assert abs(span - shown) < SLACK
