"""`unisono bench` measures what it says, next to Gloo, and refuses what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.tools.bench import collectives, faces


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "unisono",
            "bench",
            "--rounds",
            "2",
            "--seconds",
            "0.01",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_table_plot_and_peer(tmp_path: Path) -> None:
    plot = tmp_path / "bench.png"
    done = call("--sizes", "8,64K", "--against", "gloo", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "all_reduce, 2 ranks, float32"
    assert lines[1].split() == ["size", "shm", "gloo", "gloo/shm"]
    assert [line.split()[:2] for line in lines[2:]] == [["8", "B"], ["64", "KiB"]]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_every_collective_as_json() -> None:
    every = ",".join(collectives.COLLECTIVES)
    done = call("collectives", "--sizes", "1K", "--collectives", every, "-n", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [cell["collective"] for cell in found["cells"]] == list(collectives.COLLECTIVES)
    for cell in found["cells"]:
        assert len(cell["rounds"]["shm"]) == 2
        assert 0 < cell["seconds"]["shm"] < 10


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--collectives", "all_gossip"], "no collective 'all_gossip'"),
        (["--against", "nobody"], "no peer 'nobody'"),
        (["--sizes", "2"], "'2' is not a size"),
        (["--sizes", "huge"], "'huge' is not a size"),
        (["-n", "0"], "the number of ranks is 0"),
        (["--engine", "steam"], "no engine 'steam'"),
        (["--rounds", "0"], "the number of rounds is 0"),
        (["--seconds", "0"], "--seconds is 0; give a number above 0"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--parameters", "1M"], "`bench collectives` has no --parameters; leave it out, or use"),
        (["tables"], "invalid choice: 'tables'"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str) -> None:
    done = call(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


# ---- faces ---------------------------------------------------------------------------------------


def faces_table(engine: str) -> dict[str, list[float | None]]:
    """The numbers of each row, without the cells that are always empty; None for a dash."""
    done = call("faces", "--engine", engine)
    assert done.returncode == 0, done.stderr
    title, kinds, *rows = done.stdout.splitlines()
    assert title == f"all_reduce of 8 bytes, 2 ranks, engine {engine}; µs per call"
    assert kinds.split() == ["numpy", "over", "core", "torch", "over", "core"]
    width = max(map(len, faces.WAYS))
    assert [row[:width].rstrip() for row in rows] == list(faces.WAYS)
    return {
        row[:width].rstrip(): [None if cell == "-" else float(cell) for cell in row[width:].split()]
        for row in rows
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["shm", "threads"])
def test_faces_as_a_table(name: str) -> None:
    pytest.importorskip("torch")
    table = faces_table(name)
    for way, core in (
        ("unisono.torch.distributed", "core, in place"),
        ("mint.distributed", "core, in place"),
        ("comm_func", "core, new tensor"),
    ):
        # What a face adds is its time minus that of the core; all three are rounded.
        face, floor = table[way], table[core]
        assert (len(face), len(floor)) == (4, 2)
        assert face[1] == pytest.approx(face[0] - floor[0], abs=0.02)
        assert face[3] == pytest.approx(face[2] - floor[1], abs=0.02)
    backend, idle = table["torch, backend unisono"], table["torch, backend that does nothing"]
    if name == "threads":  # real torch has one process group per process
        assert backend == idle == [None, None]
    else:
        empty, time, more = backend
        assert empty is None
        assert more == pytest.approx(time - table["core, in place"][1], abs=0.02)
        assert idle[0] is None and idle[1] > 0


@pytest.mark.thorough
def test_faces_as_json() -> None:
    done = call("faces", "--json", "-n", "3", "--rounds", "4")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["engine"], found["bytes"]) == (3, "shm", 8)
    for kind, ways in found["rounds"].items():
        wanted = [way for way in faces.WAYS if kind == "torch" or "backend" not in way]
        assert list(ways) == wanted
        for way, times in ways.items():
            assert len(times) == 4
            assert found["microseconds"][kind][way] == min(times) > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "0"], "the number of ranks is 0"),
        (["--rounds", "0"], "the number of rounds is 0"),
        (["--engine", "steam"], "no engine 'steam'"),
        (
            ["--sizes", "8"],
            "`bench faces` has no --sizes; leave it out, or use `bench collectives`",
        ),
        (["--against", "gloo"], "use `bench collectives` or `bench ddp`"),
    ],
)
def test_faces_with_wrong_arguments(arguments: list[str], text: str) -> None:
    done = call("faces", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
