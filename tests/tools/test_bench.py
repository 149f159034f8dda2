"""`unisono bench` measures what it says, next to Gloo, and refuses what it cannot do."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.thorough import essential
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


def test_tables_plot_and_peer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plot, figures = tmp_path / "bench.png", tmp_path / "bench.json"
    asked = ["--collectives", "all_reduce,broadcast", "--sizes", "8,64K", "--against", "gloo"]
    done = call(*asked, "--plot", str(plot), "--json", str(figures))
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    header = [["size", "unisono", "gloo", "memcpy", "unisono", "best"], ["/memcpy", "/unisono"]]
    found = json.loads(figures.read_text())
    for title in ("all_reduce, 2 ranks, float32", "broadcast, 2 ranks, float32"):
        start = lines.index(title)
        assert [line.split() for line in lines[start + 1 : start + 3]] == header
        rows = [line.split() for line in lines[start + 3 : start + 5]]
        assert [row[:2] for row in rows] == [["8", "B"], ["64", "KiB"]]
        ratios = [cell["ratio"] for cell in found["cells"] if title.startswith(cell["collective"])]
        assert [float(row[-1]) for row in rows] == pytest.approx(ratios, abs=0.006)
    assert f"geometric mean of 4 rows: {found['geometric_mean']:.2f};" in lines[-1]
    for cell in found["cells"]:
        assert cell["best_peer"] == "gloo"
        assert cell["ratio"] == cell["seconds"]["gloo"] / cell["seconds"]["unisono"]

    # The file has everything, so the same is printed from it.
    picture = tmp_path / "again.svg"
    again = call("--from", str(figures), "--plot", str(picture))
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert "<svg" in picture.read_text()
    some = call("--from", str(figures), "--collectives", "broadcast", "--sizes", "64K", "--json")
    (cell,) = json.loads(some.stdout)["cells"]
    assert (cell["collective"], cell["bytes"]) == ("broadcast", 65536)
    none = call("--from", str(figures), "--ranks", "3")
    assert none.returncode == 2 and "has no such rows" in none.stderr


def test_progress_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    command = ["bench", "--rounds", "1", "--seconds", "0.005", "--sizes", "8,16"]
    process = subprocess.Popen(
        [sys.executable, "-m", "unisono", *command],
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: everybody else has closed the terminal
        while chunk := os.read(controller, 4096):
            shown += chunk
    os.close(controller)
    assert process.communicate(timeout=60)[0].count("#") == 0
    assert process.returncode == 0
    bars = shown.decode().split("\r\x1b[K")
    assert f"[{'.' * 24}] 0/2: all_reduce, 8 B, 2 ranks" in bars
    assert any(re.match(r"\[#{12}\.{12}\] 1/2, about .* left: all_red.*16 B", bar) for bar in bars)
    assert bars[-1] == ""  # nothing is left of it


@pytest.mark.parametrize("face", essential(1, collectives.FACES))
def test_every_collective_as_json(face: str) -> None:
    every = ",".join(collectives.COLLECTIVES)
    asked = ["--sizes", "1K", "--collectives", every, "--ranks", "2,3", "--face", face]
    done = call("collectives", *asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["face"], found["geometric_mean"], found["left_out"]) == (face, None, {})
    rows = [(cell["ranks"], cell["collective"]) for cell in found["cells"]]
    assert rows == [(ranks, name) for ranks in (2, 3) for name in collectives.COLLECTIVES]
    for cell in found["cells"]:
        assert cell["ratio"] is None
        for name in ("unisono", "memcpy"):
            first, third = cell["quartiles"][name]
            assert len(cell["rounds"][name]) == 2
            assert 0 < first <= cell["seconds"][name] <= third < 10


@pytest.mark.parametrize("face", essential(1, collectives.FACES))
def test_arrays_in_shared_memory(face: str) -> None:
    asked = ["--sizes", "256K", "--collectives", "all_reduce,all_to_all", "--face", face]
    done = call("collectives", *asked, "--memory", "shared", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["memory"] == "shared" and len(found["cells"]) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--collectives", "all_gossip"], "no collective 'all_gossip'"),
        (["--against", "nobody"], "no peer 'nobody'"),
        (["--sizes", "2"], "'2' is not a size"),
        (["--sizes", "huge"], "'huge' is not a size"),
        (["-n", "0"], "the number of ranks is 0"),
        (["--ranks", "2,many"], "the number of ranks is many"),
        (["--face", "moon"], "no face 'moon'; there are torch, comm_func"),
        (["--memory", "magnetic"], "no memory 'magnetic'; there are ordinary, shared"),
        (["--device", "abacus"], "no device 'abacus'; there are cpu, cuda"),
        (["--device", "cuda", "--memory", "shared"], "--memory shared is on the CPU"),
        (["--device", "cuda", "--against", "intel"], "no peer 'intel'; there are gloo"),
        (["--device", "cuda", "--ranks", "1"], "engine 'cuda' cannot run here: "),
        (["--peer-env", "mpich"], "--peer-env is 'mpich'; write NAME=PYTHON"),
        (["--peer-env", "lam=python"], "no peer 'lam'; there are intel, openmpi, mpich, gloo"),
        (["--peer-env", "mpich=nowhere"], "there is no Python 'nowhere'"),
        (["--plot", "bench.doc"], "--plot bench.doc is not a picture; end it with .svg"),
        (["--plot", "nowhere/bench.svg"], "--plot nowhere/bench.svg: there is no folder nowhere"),
        (["--from", "nowhere.json"], "--from nowhere.json cannot be read"),
        (["--json", "faces"], "--json faces: write `bench faces --json`"),
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
    title, kinds, *rows, blank, load = done.stdout.splitlines()
    assert blank == "" and "other programs used" in load
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
        (["-n", "2,4"], "`bench faces` has one number of ranks; give -n 2"),
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
