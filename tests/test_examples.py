"""The examples: the same training in both dialects, and DDP on unisono as on Gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DIALECTS = ("torch", "mindspore")


def run(dialect: str, ranks: int) -> list[str]:
    """The lines that the example prints, sorted, because ranks may end in any order."""
    done = subprocess.run(
        [
            *[sys.executable, "-m", "unisono", "run", "-n", str(ranks)],
            str(EXAMPLES / f"train_{dialect}.py"),
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


#: What only lines about communication or about the dialect contain.
DIFFERING = ("dist", "Comm", "comm", "dialect", "sums", "gradients")


def test_the_examples_differ_only_in_their_communication() -> None:
    """Every line that has nothing to do with communication is the same."""
    shared = [
        {
            line
            for line in (EXAMPLES / f"train_{dialect}.py").read_text().splitlines()
            if not any(word in line for word in DIFFERING)
        }
        for dialect in DIALECTS
    ]
    assert len(shared[0]) > 30
    assert shared[0] == shared[1]


# ---- DDP -----------------------------------------------------------------------------------------


def run_ddp(launcher: list[str], backend: str) -> list[float]:
    """The losses that the example prints."""
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(EXAMPLES / "ddp.py"), "--backend", backend],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    # A thread of Gloo (torch 2.13) may free the last tensor while Python ends, and then aborts.
    assert done.returncode == 0 or backend == "gloo", done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]


@pytest.fixture(scope="module")
def ddp_losses() -> list[float]:
    """What DDP learns on two ranks."""
    pytest.importorskip("torch")
    return run_ddp(["unisono", "run", "-n", "2"], "unisono")


@pytest.mark.thorough
def test_ddp_learns(ddp_losses: list[float]) -> None:
    assert len(ddp_losses) == 12
    assert ddp_losses[-1] < 0.1 * ddp_losses[0]


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["unisono", "gloo"])
def test_ddp_learns_the_same_under_torchrun_and_on_gloo(
    ddp_losses: list[float], backend: str
) -> None:
    """Only the backend differs; sums of two numbers do not depend on their order."""
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2"]
    assert run_ddp(torchrun, backend) == pytest.approx(ddp_losses, rel=1e-5)
