"""`unisono bench --tune`: measures both ways, finds where one is faster, and stores it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unisono.engines.shm import tuning
from unisono.engines.shm.tuning import CopyRange
from unisono.tools.bench.tune import best_range


def tune(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", "--tune", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **variables},
    )


def cell(share: int, gain: float, *, noisy: bool = False) -> dict[str, Any]:
    """A size at which the direct way is `gain` times as fast."""
    rounds = {"staged": [1.0, 1.01, 0.99, 1.02, 5.0], "direct": []}
    rounds["direct"] = [value / gain for value in rounds["staged"]]
    if noisy:
        rounds["direct"][:2] = [0.1, 3.0]
    return {
        "share": share,
        "seconds": {"staged": 1.0, "direct": 1.0 / gain},
        "rounds": rounds,
    }


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.5, 0.8, 1.3, 1.6, 1.5], CopyRange(4)),
        ([1.3, 1.3, 1.3, 1.3, 1.3], CopyRange(1)),
        ([0.5, 1.5, 1.6, 0.7, 0.6], CopyRange(2, 8)),
        ([0.5, 1.5, 0.9, 1.6, 1.5], CopyRange(2)),  # an outlier in the middle
        ([0.5, 0.6, 0.7, 0.8, 0.9], CopyRange(None)),
        ([1.01, 1.02, 0.99, 1.01, 1.0], None),
    ],
)
def test_the_range_with_the_largest_gain(gains: list[float], expected: CopyRange | None) -> None:
    cells = [cell(1 << i, gain) for i, gain in enumerate(gains)]
    assert best_range(cells) == expected
    assert best_range(cells[::-1]) == expected


def test_what_is_not_clear_does_not_count() -> None:
    cells = [cell(1, 1.5, noisy=True), cell(2, 1.5), cell(4, 1.5), cell(8, 0.5, noisy=True)]
    assert best_range(cells) == CopyRange(2)
    assert best_range([cell(1, 1.5, noisy=True), cell(2, 0.5, noisy=True)]) is None


@pytest.mark.thorough
def test_it_measures_and_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path))
    before = {("broadcast", 2): CopyRange(77), ("scatter", 2): CopyRange(88)}
    tuning.write(before)
    asked = ["--sizes", "4K,33M", "--collectives", "all_to_all,broadcast", "-n", "2"]
    done = tune(*asked, "--rounds", "5", "--seconds", "0.005", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # All-to-all of 2 x 33 MiB would take more memory than a measurement is worth.
    rows = [(row["collective"], row["share"], row["bytes"]) for row in found["cells"]]
    assert rows == [
        ("all_to_all", 4096, 8192),
        ("broadcast", 4096, 4096),
        ("broadcast", 33 << 20, 33 << 20),
    ]
    assert all({"staged", "direct"} < set(row["seconds"]) for row in found["cells"])
    ranges = {
        (entry["collective"], entry["ranks"]): CopyRange(entry["from"], entry["below"])
        for entry in found["ranges"]
    }
    assert found["file"] == str(tuning.file())
    assert tuning.read() == {("scatter", 2): CopyRange(88), **ranges}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--against", "gloo"], "`bench --tune` has no --against; leave it out, or use"),
        (["--rounds", "3"], "--rounds is 3; --tune needs 5 or more"),
        (["--collectives", "barrier"], "no collective to tune 'barrier'"),
        (["faces"], "--tune has no table; leave 'faces' out"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, tmp_path: Path) -> None:
    done = tune(*arguments, UNISONO_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert not list(tmp_path.iterdir())
