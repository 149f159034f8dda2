"""Whole programs over unisono: unchanged with a patch, and with the prefix in their imports.

Their weights are those of one process, up to the rounding of float32, and both ways of running
them give the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import mindspore_programs
from tests.helpers.mindspore_jobs import MINDSPORE_ALONE, run_as_msrun, run_by_unisono
from tests.helpers.mindspore_programs import reference, task

pytest.importorskip("mindspore")

PATCH = ["--patch", "mindspore"]
WAYS = {"patched": PATCH, "prefixed": []}
PYNATIVE, GRAPH = "PYNATIVE_MODE", "GRAPH_MODE"
FOLDER = Path(mindspore_programs.__file__).parent

#: Sums of float32 in another order, in five steps: the largest difference seen is 2e-6. Each of the
#: weights moves by a thousand times as much as is allowed here.
TOLERANCE = 1e-5
MOVED = 1e-2

Answers = list[dict[str, np.ndarray]]  # one of each rank

EXPECTED = {
    "data_parallel": (reference.network, task.network_weights),
    "tensor_parallel": (reference.network, task.network_weights),
    "zero": (reference.network, task.network_weights),
    "sequence_parallel": (reference.attention, task.attention_weights),
    "pipeline": (reference.layers, task.layer_weights),
}

SEQUENCE = [("function", PYNATIVE), ("primitive", GRAPH), ("by_hand", PYNATIVE)]
PIPELINE = [
    *((variant, PYNATIVE) for variant in ("mint", "comm_func", "isend")),
    ("primitive", GRAPH),
]

#: Variants and modes of each program on so many ranks: every variant in every mode on two, and in
#: one mode on four. A row is one test, whose variants follow one another on the same ranks.
ROWS = [
    *(
        (name, ranks, [(variant, mode) for variant in variants])
        for name, variants in [
            ("data_parallel", ["careful", "reducer", "model", "own"]),
            ("tensor_parallel", ["own", "built_in"]),
            ("tensor_parallel", ["gather", "hybrid"]),
            ("zero", ["3", "2", "1"]),
        ]
        for mode, ranks in [(GRAPH, 2), (PYNATIVE, 2), (GRAPH, 4)]
    ),
    ("sequence_parallel", 4, SEQUENCE),
    ("sequence_parallel", 2, [*SEQUENCE, ("function", GRAPH), ("primitive", PYNATIVE)]),
    ("pipeline", 4, PIPELINE),
    ("pipeline", 2, [*PIPELINE, ("primitive", PYNATIVE)]),
]


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


def arguments(path: Path, runs: Sequence[tuple[str, str]]) -> list[str]:
    """Those of in_turn.py: where each run leaves its answers, its mode and its variant."""
    return [text for variant, mode in runs for text in (f"{path}-{variant}-{mode}-", mode, variant)]


def answers(path: Path, ranks: int) -> Answers:
    return [dict(np.load(f"{path}{rank}.npz")) for rank in range(ranks)]


def bits(found: Answers) -> list[dict[str, bytes]]:
    return [{name: array.tobytes() for name, array in one.items()} for one in found]


def weights_of(name: str, found: Answers) -> dict[str, np.ndarray]:
    """The trained weights, of which each stage of a pipeline has some."""
    whole: dict[str, np.ndarray] = {}
    for one in found:
        for weight, array in one.items():
            if not weight.startswith("moments_"):
                assert weight not in whole or np.array_equal(whole[weight], array), weight
                whole[weight] = array
    return whole


def check_weights(name: str, variant: str, ranks: int, both: Sequence[Answers]) -> None:
    """Patched and prefixed: the same bits, which are close to what one process learns."""
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


@pytest.mark.parametrize("name", ["tensor_parallel", "zero"])
def test_weights(tmp_path: Path, name: str) -> None:
    """The program itself is the script of the ranks."""
    variant = {"tensor_parallel": "own", "zero": "3"}[name]
    both = []
    for way, options in WAYS.items():
        script = copy_programs(tmp_path / way, way == "prefixed") / f"{name}.py"
        out = tmp_path / f"{way}-answers"
        done = run_by_unisono(options, script, str(out), GRAPH, variant)
        assert done.returncode == 0, done.stderr
        both.append(answers(out, 2))
    check_weights(name, variant, 2, both)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "ranks", "runs"), ROWS)
def test_weights_of_each_variant(
    tmp_path: Path, name: str, ranks: int, runs: Sequence[tuple[str, str]]
) -> None:
    """They share ranks, because MindSpore takes longer to start than they take to learn."""
    for way, options in WAYS.items():
        script = copy_programs(tmp_path / way, way == "prefixed") / "in_turn.py"
        done = run_by_unisono(options, script, name, *arguments(tmp_path / way, runs), ranks=ranks)
        assert done.returncode == 0, done.stderr
    for variant, mode in runs:
        both = [answers(tmp_path / f"{way}-{variant}-{mode}-", ranks) for way in WAYS]
        check_weights(name, variant, ranks, both)


ORACLE = [("data_parallel", "own"), ("tensor_parallel", "built_in"), ("zero", "1")]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "variant"), ORACLE)
def test_bits_of_mindspore(tmp_path: Path, name: str, variant: str) -> None:
    """Where MindSpore has the collectives on a CPU: AllReduce and AllGather."""
    script = copy_programs(tmp_path / "unchanged", False) / "in_turn.py"
    runs = [(variant, PYNATIVE), (variant, GRAPH)]
    run_as_msrun(script, name, *arguments(tmp_path / "real", runs), tries=MINDSPORE_ALONE)
    done = run_by_unisono(PATCH, script, name, *arguments(tmp_path / "ours", runs))
    assert done.returncode == 0, done.stderr
    for _, mode in runs:
        ours, real = (answers(tmp_path / f"{way}-{variant}-{mode}-", 2) for way in ("ours", "real"))
        assert bits(ours) == bits(real), mode
