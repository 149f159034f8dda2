"""`unisono bench --against`: peers in environments of their own, and peers that fail."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from unisono.errors import LaunchError, Unsupported
from unisono.tools.bench import collectives, environments, peers, rank
from unisono.tools.bench.runner import Library, LibraryRanks, start_libraries

MPIEXEC = Path(sys.executable).parent / "mpiexec"

# A rank that answers without any library, or fails as its first argument says.
RANK = """
import os, sys
from unisono.tools.bench import rank

def answer(request):
    if sys.argv[1] == "dies":
        sys.stderr.write("out of luck\\n")
        sys.stderr.flush()
        os._exit(3)
    if sys.argv[1] == "wrong" and os.environ["RANK"] == "1":
        raise RuntimeError("it is wrong")
    if sys.argv[1] == "refuses" and request["collective"] == "all_to_all":
        raise NotImplementedError("no all_to_all")
    return 0.5 + int(os.environ["RANK"])

if sys.argv[1] == "cannot start":
    sys.exit("there is no such library")
rank.serve(sys.argv[2], int(os.environ["RANK"]), "1.0", answer)
"""


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    tiny = ["--rounds", "2", "--seconds", "0.005", "--sizes", "8,20K"]
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", *tiny, *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, **variables},
    )


# ---- runner --------------------------------------------------------------------------------------


def library(name: str) -> Library:
    return Library(name, [sys.executable, "-c", RANK, name])


def test_ranks_answer() -> None:
    with start_libraries([library("good"), library("better")], 2) as running:
        assert [own.name for own in running] == ["good", "better"]
        assert running[0].version == "1.0"
        assert running[1].ask({}) == [0.5, 1.5]
        assert running[1].slowest({}) == 1.5


def test_a_library_that_does_not_start_is_left_out() -> None:
    reasons = {}
    libraries = [library("good"), library("cannot start")]
    with start_libraries(libraries, 2, lambda name, error: reasons.update({name: error})) as left:
        assert [own.name for own in left] == ["good"]
        assert left[0].ask({}) == [0.5, 1.5]
    assert list(reasons) == ["cannot start"]
    assert "did not start" in str(reasons["cannot start"])
    assert "there is no such library" in str(reasons["cannot start"])


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("dies", ["of dies ended", "out of luck"]),
        ("wrong", ["rank 1 of wrong failed: RuntimeError: it is wrong"]),
    ],
)
def test_a_library_that_fails_says_why(name: str, texts: list[str]) -> None:
    own = LibraryRanks(library(name), 2)
    try:
        own.wait_ready()
        assert not own.has_failed
        with pytest.raises(LaunchError) as caught:
            own.ask({})
        assert own.has_failed
        assert all(text in str(caught.value) for text in texts)
    finally:
        own.close()
        own.close()  # twice is harmless


def test_a_library_that_has_not_started_ends_at_once() -> None:
    own = LibraryRanks(Library("slow", [sys.executable, "-c", "import time; time.sleep(60)"]), 2)
    began = time.monotonic()
    own.close()
    assert time.monotonic() - began < 8


def test_a_collective_that_a_library_does_not_have() -> None:
    with start_libraries([library("good"), library("refuses")], 2) as running:
        cells = [
            collectives.measure(running, name, 8, 1, 0.1) for name in ("all_to_all", "all_reduce")
        ]
        assert [list(cell["seconds"]) for cell in cells] == [
            ["good", "memcpy"],
            ["good", "refuses", "memcpy"],
        ]
        assert [cell["best_peer"] for cell in cells] == [None, "refuses"]
    with (
        start_libraries([library("refuses")], 2) as running,
        pytest.raises(Unsupported, match="refuses: no all_to_all"),
    ):
        collectives.measure(running, "all_to_all", 8, 1, 0.1)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_wrong_results_are_found(collective: str) -> None:
    # Alone, every collective is a copy; nobody else is there to be in the wrong place.
    source, target = rank._buffers(collective, 8, 1)
    right = rank._Prepared(lambda: np.copyto(target, source), source, lambda _: target)
    rank._check(collective, right, 0, 1)
    assert not source.any()
    wrong = rank._Prepared(lambda: target.__setitem__(3, -1), source, lambda _: target)
    with pytest.raises(RuntimeError, match=f"{collective} of 32 bytes is wrong on rank 0"):
        rank._check(collective, wrong, 0, 1)


# ---- environments --------------------------------------------------------------------------------


def test_a_folder_is_as_good_as_its_python() -> None:
    folder = Path(sys.executable).parent.parent
    found = environments.given_pythons([f"mpich={folder}", f"gloo={sys.executable}"])
    assert found == {"mpich": str(folder / "bin/python"), "gloo": sys.executable}


def test_an_environment_that_is_complete_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path))
    (tmp_path / "peers/intel").mkdir(parents=True)
    (tmp_path / "peers/intel" / environments._MARK).write_text("")
    assert environments.peer_python("intel", {}) == str(tmp_path / "peers/intel/bin/python")
    assert environments.peer_python("intel", {"intel": "given"}) == "given"


def test_mpiexec_is_beside_the_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = str(tmp_path / "python")
    with pytest.raises(LaunchError, match="there is no mpiexec beside"):
        peers.peer_library("mpich", python, "ordinary", 2)
    (tmp_path / "mpiexec").write_text("")
    (tmp_path / "mpiexec").chmod(0o755)
    monkeypatch.setattr(peers, "allowed_cores", lambda: [[0, 2], [1, 3]])
    found = [
        peers.peer_library("openmpi", python, "ordinary", ranks).command for ranks in (2, 4, 8)
    ]
    assert [command[:3] for command in found] == [
        [str(tmp_path / "mpiexec"), "-n", str(ranks)] for ranks in (2, 4, 8)
    ]
    assert found[0][3:5] == ["--bind-to", "core"]
    assert found[1][3:6] == ["--use-hwthread-cpus", "--bind-to", "hwthread"]
    assert found[2][3:7] == ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]


# ---- the command ---------------------------------------------------------------------------------


def test_no_peer_is_left(tmp_path: Path) -> None:
    done = bench("--against", "mpich", "--peer-env", f"mpich={_no_python(tmp_path)}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unisono: mpich is left out: there is no mpiexec beside" in done.stderr
    assert "no peer is left of mpich" in done.stderr


def _no_python(folder: Path) -> Path:
    program = folder / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return program


def test_a_peer_that_fails_in_the_middle_is_left_out(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys\n"
        "from unisono.tools.bench import rank\n"
        "def answer(request):\n"
        "    assert request['bytes'] < 1000, 'this is too long for me'\n"
        "    return 100.0\n"
        "rank.serve(sys.argv[-1], int(os.environ['RANK']), 'short 1.0', answer)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    asked = ["--against", "gloo", "--peer-env", f"gloo={python}", "--collectives", "all_reduce"]
    done = bench(*asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["libraries"]["gloo"] == "short 1.0"
    short, long = found["cells"]
    assert (short["best_peer"], short["seconds"]["gloo"]) == ("gloo", 100.0)
    assert short["ratio"] == 100.0 / short["seconds"]["unisono"]
    assert found["geometric_mean"] == pytest.approx(short["ratio"])
    assert (long["best_peer"], long["ratio"], set(long["seconds"])) == (
        None,
        None,
        {"unisono", "memcpy"},
    )
    reason = "rank 0 of gloo failed: AssertionError: this is too long for me"
    assert found["left_out"] == {"gloo": reason}
    assert f"unisono: gloo is left out: {reason}" in done.stderr


@pytest.mark.thorough
def test_no_network(tmp_path: Path) -> None:
    done = bench("--against", "intel", UNISONO_CACHE=str(tmp_path), PIP_NO_INDEX="1")
    assert done.returncode == 2
    assert f"making an environment for intel in {tmp_path}/peers/intel" in done.stderr
    assert "intel is left out: Could not find a version" in done.stderr
    assert not (tmp_path / "peers/intel" / environments._MARK).exists()


@pytest.mark.thorough
@pytest.mark.skipif(
    not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None, reason="needs an MPI"
)
@pytest.mark.parametrize("ranks", ["2", "3"])
def test_mpi(ranks: str, tmp_path: Path) -> None:
    name = "openmpi" if (MPIEXEC.parent / "prterun").exists() else "mpich"
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    done = bench(
        *("--against", f"{name},gloo", "--peer-env", f"{name}={sys.executable}"),
        *("--peer-env", f"gloo={_no_python(nobody)}", "--ranks", ranks, "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "did not start" in found["left_out"]["gloo"]
    assert "MPI" in found["libraries"][name]
    assert len(found["cells"]) == 12
    assert all(cell["best_peer"] == name for cell in found["cells"])
