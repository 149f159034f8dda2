"""What the tests of engine `mpi` share: jobs under mpiexec, functions on ranks, single calls."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.helpers import mpi_pool, worlds
from unisono.core import buffers, dispatch
from unisono.core.groups import Group
from unisono.errors import UnisonoError

__all__ = ["PRELUDE", "SOON", "call", "error_of", "heard", "job", "on_ranks", "run"]

SOON = 40.0  # seconds in which every job has ended

PRELUDE = """
import json, os, sys, time
import numpy as np
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.errors import UnisonoError

def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\\n")  # in one piece: mpiexec mixes lines
    sys.stdout.flush()

def reduce(group, blocking=True):
    memory = buffers.view(np.full(3, group.rank + 1.0))
    dispatch.all_reduce(group, memory, memory, ReduceOp.SUM, blocking=blocking).wait()
    return float(memory.array[0])

def fault(action):
    try:
        action()
    except (UnisonoError, KeyboardInterrupt) as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": None, "text": ""}
"""


def run(n: int, body: str, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a job, and what its ranks said in whatever order."""
    with job(n, body, **variables) as process:
        said, _ = process.communicate(timeout=SOON)
    return process.returncode, heard(said)


@contextlib.contextmanager
def job(n: int, body: str, **variables: str) -> Iterator[subprocess.Popen]:
    """n ranks of a script that begins with PRELUDE; what is left of them is ended."""
    process = mpi_pool.start(
        n, "-c", PRELUDE + body, env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(SOON)
        process.stdout.close()


def heard(said: str) -> list[dict[str, Any]]:
    """Lines of JSON among others."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def on_ranks(
    n: int, function: Callable[..., Any], *args: Any, kind: str = "mpi", timeout: float = 30
) -> list[Any]:
    """The results of `function(group, *args)` on n ranks that live for this one call."""
    with contextlib.closing(mpi_pool.MpiPool(kind, n, timeout)) as pool:
        return pool.run(function, args, deadline=max(timeout, worlds.DEADLINE))


def call(group: Group, verb: str, *arguments: object, timeout: float | None = None) -> None:
    """One call, waited for; arrays are viewed."""
    viewed = [buffers.view(a) if isinstance(a, np.ndarray) else a for a in arguments]
    getattr(dispatch, verb)(group, *viewed, timeout=timeout)


def error_of(action: Callable[[], object]) -> UnisonoError | None:
    """What an action raised, as a result that travels to the test."""
    try:
        action()
    except UnisonoError as error:
        return error
    return None
