"""`unisono bench` measures what it says, beside Gloo, and refuses what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono import bench, bench_faces


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", "--rounds", "2", "--seconds", "0.01", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_table_picture_and_peer(tmp_path: Path) -> None:
    picture = tmp_path / "bench.png"
    done = call("--sizes", "8,64K", "--against", "gloo", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "all_reduce, 2 ranks, float32"
    assert lines[1].split() == ["size", "shm", "gloo", "gloo/shm"]
    assert [line.split()[:2] for line in lines[2:]] == [["8", "B"], ["64", "KiB"]]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_collective_as_json() -> None:
    done = call("--sizes", "1K", "--collectives", ",".join(bench.COLLECTIVES), "-n", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [cell["collective"] for cell in found["cells"]] == list(bench.COLLECTIVES)
    for cell in found["cells"]:
        assert len(cell["rounds"]["shm"]) == 2
        assert 0 < cell["seconds"]["shm"] < 10


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--collectives", "all_gossip"], "no collective 'all_gossip'"),
        (["--against", "nobody"], "no peer 'nobody'"),
        (["--sizes", "2"], "'2' is not a size"),
        (["--sizes", "huge"], "'huge' is not a size"),
        (["-n", "0"], "the number of ranks is 0"),
        (["--engine", "steam"], "no engine 'steam'"),
    ],
)
def test_wrong_words(words: list[str], text: str) -> None:
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


# ---- faces ---------------------------------------------------------------------------------------


def test_faces_as_a_table() -> None:
    pytest.importorskip("torch")
    done = call("--faces", "--engine", "threads")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    title = "all_reduce of 8 bytes, 2 ranks, engine threads; microseconds a call"
    assert lines[0] == title
    assert lines[1].split() == ["numpy", "over", "core", "torch", "over", "core"]
    ways = list(bench_faces.WAYS)
    assert [line[:18].rstrip() for line in lines[2:]] == ways
    numbers = [[float(word) for word in line[18:].split()] for line in lines[2:]]
    assert [len(row) for row in numbers] == [2, 4, 2, 4]
    for core, face in (numbers[:2], numbers[2:]):
        # What a face adds is its time less that of the core; all three are rounded.
        assert face[1] == pytest.approx(face[0] - core[0], abs=0.02)
        assert face[3] == pytest.approx(face[2] - core[1], abs=0.02)


def test_faces_as_json() -> None:
    done = call("--faces", "--json", "-n", "3", "--rounds", "4")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["engine"], found["bytes"]) == (3, "shm", 8)
    for kind, ways in found["rounds"].items():
        assert list(ways) == list(bench_faces.WAYS)
        for way, times in ways.items():
            assert len(times) == 4
            assert found["microseconds"][kind][way] == min(times) > 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "0"], "the number of ranks is 0"),
        (["--rounds", "0"], "the number of rounds is 0"),
        (["--engine", "steam"], "no engine 'steam'"),
    ],
)
def test_faces_with_wrong_words(words: list[str], text: str) -> None:
    done = call("--faces", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
