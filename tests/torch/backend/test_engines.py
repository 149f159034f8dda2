"""Real torch on backend "unisono" over each engine: the same script, the same numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

pytest.importorskip("torch")

from tests.helpers import mpi_pool

SCRIPT = str(ROOT / "examples" / "ddp.py")
DEADLINE = 120


def losses(command: list[str], **variables: str) -> list[str]:
    """What the example prints of its losses, to the last digit."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"loss (\S+)", done.stdout)
    assert len(found) > 5 and float(found[-1]) < float(found[0])
    return found


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return losses([sys.executable, "-m", "unisono", "run", "-n", "2", SCRIPT])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["torch:gloo", "hybrid"])
def test_started_by_unisono_run(expected, name):
    command = [sys.executable, "-m", "unisono", "run", "-n", "2", SCRIPT]
    assert losses(command, UNISONO_ENGINE=name) == expected


@pytest.mark.thorough
def test_started_by_mpiexec(expected, port):
    pytest.importorskip("mpi4py")
    rank = "OMPI_COMM_WORLD_RANK" if mpi_pool.is_open_mpi() else "PMI_RANK"
    command = ["sh", "-c", f'RANK=${rank} exec "$@"', "sh", sys.executable, SCRIPT]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    assert losses([*mpi_pool.launcher(2), *command], UNISONO_ENGINE="mpi", **variables) == expected
