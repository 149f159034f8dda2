"""`unisono bench` tells whether the machine was idle enough; and it measures thread ranks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO
from tests.helpers.processes import DEADLINE
from unisono.tools.bench import load

BENCH = [*UNISONO, "bench", "--rounds", "3", "--seconds", "0.05"]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BENCH, *arguments], capture_output=True, text=True, timeout=4 * DEADLINE
    )


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Two programs on each core that use it without a pause."""
    spin = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(spin) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()


@pytest.mark.thorough  # with two programs on each core it takes its time
def test_a_busy_machine_is_told(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    with busy_cores():
        done = call("--sizes", "8,1M", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("do not believe these figures: other programs")
    found = json.loads(file.read_text())["load"]
    assert found["too_busy"] and found["used_by_others"] > 0.1
    assert found["rows"] == 2 and found["cores"] == len(os.sched_getaffinity(0))
    again = call("--from", str(file)).stdout.splitlines()
    assert again[-1] == done.stdout.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("table", ["faces", "ddp"])
def test_other_tables_have_it_too(table: str) -> None:
    pytest.importorskip("torch")
    more = ["--parameters", "50K", "--against", ""] if table == "ddp" else ["--engine", "threads"]
    done = call(table, *more, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["load"]
    assert found["rows"] > 0 and 0 <= found["used_by_others"] <= 1


@pytest.mark.parametrize("face", ["torch", pytest.param("comm_func", marks=pytest.mark.thorough)])
def test_ranks_that_are_threads(face: str) -> None:
    done = call("--engine", "threads", "--face", face, "-n", "3", "--sizes", "8,64K", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["engine"] == "threads"
    assert [(cell["ranks"], cell["bytes"]) for cell in found["cells"]] == [(3, 8), (3, 65536)]


# ---- the arithmetic ------------------------------------------------------------------------------


def counters(path: Path, user: int, stolen: int) -> None:
    """Write what the kernel would for our cores: ticks of user time, of idle time, and stolen."""
    ticks = f"{user} 0 0 1000 0 0 0 {stolen} 0 0"
    path.write_text("".join(f"cpu{core} {ticks}\n" for core in os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("user", "stolen", "spreads", "text"),
    [
        (1, 0, [0.01, 0.2], "other programs used 1% of {cores}; the largest spread is 20%"),
        (50, 0, [0.01], "do not believe these figures: other programs used 50% of {cores}, and 0 "),
        (0, 30, [0.01], "do not believe these figures: other programs used 0% of {cores}, other "),
        (0, 0, [0.3, 0.3, 0.1], "do not believe these figures: other programs used 0% of {cores}"),
        (0, 0, [0.3, 0.1, 0.1, 0.1], "other programs used 0% of {cores}; the largest spread is"),
    ],
    ids=["idle", "busy", "stolen", "noisy", "one noisy row"],
)
def test_what_is_too_much(
    user: int,
    stolen: int,
    spreads: list[float],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "stat"
    monkeypatch.setattr(load, "_STATISTICS", path)
    monkeypatch.setattr(load, "_own_seconds", lambda: 7.0)
    clock = iter([100.0, 101.0])
    monkeypatch.setattr(load.time, "monotonic", lambda: next(clock))
    counters(path, 500, 40)
    meter = load.LoadMeter()
    ticks = os.sysconf("SC_CLK_TCK") // 100  # for each hundredth of a second
    counters(path, 500 + user * ticks, 40 + stolen * ticks)
    found = meter.finish(spreads)
    count = found["cores"]
    cores = "1 core" if count == 1 else f"{count} cores"
    assert load.describe(found).startswith(text.format(cores=cores)), load.describe(found)
