"""Whole programs over unisono: unchanged with a patch, and with the prefix in their imports.

Their weights are those of one process, up to the rounding of float32, and both ways of running
them give the same bits.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import mindspore_programs
from tests.helpers.mindspore_jobs import run_as_msrun, run_by_unisono
from tests.helpers.mindspore_programs import reference, task
from tests.helpers.thorough import essential_rows

pytest.importorskip("mindspore")

PATCH = ["--patch", "mindspore"]
PYNATIVE, GRAPH = "PYNATIVE_MODE", "GRAPH_MODE"
FOLDER = Path(mindspore_programs.__file__).parent

#: Sums of float32 in another order, in five steps: the largest difference seen is 2e-6. Each of the
#: weights moves by a thousand times as much as is allowed here.
TOLERANCE = 1e-5
MOVED = 1e-2

EXPECTED = {
    "data_parallel": (reference.network, task.network_weights),
    "tensor_parallel": (reference.network, task.network_weights),
    "zero": (reference.network, task.network_weights),
    "sequence_parallel": (reference.attention, task.attention_weights),
    "pipeline": (reference.layers, task.layer_weights),
}

PROGRAMS = [
    ("data_parallel", ["careful", "reducer", "model", "own"], [GRAPH, PYNATIVE]),
    ("tensor_parallel", ["own", "built_in", "gather", "hybrid"], [GRAPH, PYNATIVE]),
    ("zero", ["3", "2", "1"], [GRAPH, PYNATIVE]),
    ("sequence_parallel", ["function"], [PYNATIVE, GRAPH]),
    ("sequence_parallel", ["primitive"], [GRAPH, PYNATIVE]),
    ("sequence_parallel", ["by_hand"], [PYNATIVE]),
    ("pipeline", ["mint", "comm_func", "isend"], [PYNATIVE]),
    ("pipeline", ["primitive"], [GRAPH, PYNATIVE]),
]
#: One case of each program; then every variant in every mode, and with four ranks in one mode.
ESSENTIAL = [
    ("tensor_parallel", "own", GRAPH, 2),
    ("zero", "3", GRAPH, 2),
]
REST = [
    (name, variant, mode, ranks)
    for name, variants, modes in PROGRAMS
    for variant in variants
    for mode, ranks in [*((mode, 2) for mode in modes), (modes[0], 4)]
]
CASES = [*ESSENTIAL, *(case for case in REST if case not in ESSENTIAL)]


def prefixed(source: str) -> str:
    """The program with `unisono.` before the modules that communicate."""
    modules = r"mindspore(?=( import|\.communication|\.mint|\.ops)\b)"
    changed = re.sub(rf"^from {modules}", "from unisono.mindspore", source, flags=re.M)
    return re.sub(
        r"^import mindspore\.communication",
        "import unisono.mindspore.communication",
        changed,
        flags=re.M,
    )


def copy_programs(folder: Path, change: bool) -> Path:
    folder.mkdir()
    for path in FOLDER.glob("*.py"):
        source = path.read_text()
        (folder / path.name).write_text(prefixed(source) if change else source)
    return folder


def answers(path: Path, ranks: int) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(f"{path}{rank}.npz")) for rank in range(ranks)]


def bits(found: list[dict[str, np.ndarray]]) -> list[dict[str, bytes]]:
    return [{name: array.tobytes() for name, array in one.items()} for one in found]


def weights_of(name: str, found: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The trained weights, of which each stage of a pipeline has some."""
    whole: dict[str, np.ndarray] = {}
    for one in found:
        for weight, array in one.items():
            if not weight.startswith("moments_"):
                assert weight not in whole or np.array_equal(whole[weight], array), weight
                whole[weight] = array
    return whole


@pytest.mark.parametrize(
    ("name", "variant", "mode", "ranks"), essential_rows(len(ESSENTIAL), CASES)
)
def test_weights(tmp_path: Path, name: str, variant: str, mode: str, ranks: int) -> None:
    both = []
    for way in ("patched", "prefixed"):
        script = copy_programs(tmp_path / way, way == "prefixed") / f"{name}.py"
        options = PATCH if way == "patched" else []
        out = tmp_path / f"{way}-answers"
        done = run_by_unisono(options, script, str(out), mode, variant, ranks=ranks)
        assert done.returncode == 0, done.stderr
        both.append(answers(out, ranks))
    found = both[0]
    assert bits(found) == bits(both[1])
    train, first = EXPECTED[name]
    expected = reference.network(task.CLIP) if variant == "careful" else train()
    weights = weights_of(name, found)
    assert weights.keys() == expected.keys()
    for weight, before in first().items():
        np.testing.assert_allclose(weights[weight], expected[weight], rtol=0, atol=TOLERANCE)
        assert np.abs(weights[weight] - before).max() > MOVED, weight
    if name == "zero":
        for weight, before in first().items():
            parts = ranks if len(before) % ranks == 0 else 1
            for one in found:
                assert one[f"moments_{weight}"].size == before.size // parts


ORACLE = [("data_parallel", "own"), ("tensor_parallel", "built_in"), ("zero", "1")]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", [PYNATIVE, GRAPH])
@pytest.mark.parametrize(("name", "variant"), ORACLE)
def test_bits_of_mindspore(tmp_path: Path, name: str, variant: str, mode: str) -> None:
    """Where MindSpore has the collectives on a CPU: AllReduce and AllGather."""
    script = copy_programs(tmp_path / "unchanged", False) / f"{name}.py"
    run_as_msrun(script, str(tmp_path / "real"), mode, variant)
    done = run_by_unisono(PATCH, script, str(tmp_path / "ours"), mode, variant)
    assert done.returncode == 0, done.stderr
    assert bits(answers(tmp_path / "ours", 2)) == bits(answers(tmp_path / "real", 2))
