"""The examples: the same training in both dialects, and the same numbers to the last bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DIALECTS = ("torch", "mindspore")


def run(dialect: str, ranks: int) -> list[str]:
    """The lines that the example prints, sorted, for ranks may end in any order."""
    done = subprocess.run(
        [
            *[sys.executable, "-m", "unisono", "run", "-n", str(ranks)],
            str(EXAMPLES / f"train_{dialect}_words.py"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def losses(lines: list[str]) -> list[float]:
    return [float(line.split()[-1]) for line in lines if line.startswith("[0] step")]


def checksums(lines: list[str]) -> list[str]:
    return [line.split()[-1] for line in lines if "weights" in line]


@pytest.fixture(scope="module")
def on_two() -> dict[str, list[str]]:
    """What each dialect prints on two ranks."""
    return {dialect: run(dialect, 2) for dialect in DIALECTS}


def test_both_dialects_agree_to_the_last_bit(on_two: dict[str, list[str]]) -> None:
    assert len(on_two["torch"]) == 22  # a loss for each of 20 steps, a checksum from each rank
    assert on_two["torch"] == on_two["mindspore"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_ranks_have_the_same_weights(on_two: dict[str, list[str]], dialect: str) -> None:
    first, second = checksums(on_two[dialect])
    assert first == second


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_network_learns(on_two: dict[str, list[str]], dialect: str) -> None:
    found = losses(on_two[dialect])
    assert found[-1] < 0.7 * found[0]


def test_two_ranks_learn_what_one_learns(on_two: dict[str, list[str]]) -> None:
    """The order of the sums differs, so the last bits may."""
    alone = losses(run("torch", 1))
    assert losses(on_two["torch"]) == pytest.approx(alone, rel=1e-9)


def test_the_examples_differ_only_in_their_words() -> None:
    """All that has nothing to do with communication is the same, line by line."""
    shared = [
        {
            line
            for line in (EXAMPLES / f"train_{dialect}_words.py").read_text().splitlines()
            if not any(word in line for word in ("dist", "comm", "words", "sums", "gradients"))
        }
        for dialect in DIALECTS
    ]
    assert len(shared[0]) > 30
    assert shared[0] == shared[1]
