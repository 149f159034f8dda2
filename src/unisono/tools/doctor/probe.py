"""Run a job of two ranks on each engine, all at the same time, and tell how each ended.

Each job is what a user would start: `unisono run` for most engines, mpiexec for `mpi`, one process
for `threads`. What the ranks do is in `probe_rank.py`. No job outlives its deadline, or us.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unisono.launch.outcome import exit_text
from unisono.launch.process import die_with_parent
from unisono.tools.doctor.probe_rank import FAILED

__all__ = ["ProbeOutcome", "probe"]

#: Seconds for all jobs; a busy host needs several to import torch four times.
_DEADLINE = 60.0
#: Seconds for a call, so that its own error comes first.
_CALL_TIMEOUT = 45
_POLL = 0.02
_NO_ANSWER = (
    f"two ranks gave no answer in {_DEADLINE:g} s; `unisono run -n 2 --timeout 10 SCRIPT` with "
    "this engine shows where they wait"
)
_RANK = "unisono.tools.doctor.probe_rank"
#: Variables by which we may be a rank of another job, which these jobs must not join.
_OF_LAUNCHERS = re.compile(
    r"(UNISONO_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|JOB|SECRET|ENGINE|REPORT|TIMEOUT)"
    r"|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|RANK_(ID|SIZE)"
    r"|(PMI|PMIX|OMPI|PRTE|SLURM|HYDRA|MPI|TORCHELASTIC|MS)_.*)"
)
#: Open MPI refuses root, and more ranks than cores, unless it is told.
_FOR_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
}


@dataclass(frozen=True)
class ProbeOutcome:
    """How the job of an engine ended: `reason` is None if it did what it should.

    `seconds` is None if there was no job, because nothing here can start one.
    """

    reason: str | None
    seconds: float | None


def probe(engines: Iterable[str]) -> dict[str, ProbeOutcome]:
    """Run a job on each of these engines; all of them at the same time."""
    outcomes: dict[str, ProbeOutcome] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        jobs: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        for engine in engines:
            command = _command(engine)
            if command is None:
                outcomes[engine] = ProbeOutcome(
                    "not tried: there is no mpiexec to start ranks", None
                )
            else:
                jobs[engine] = stack.enter_context(_job(command))
        while jobs:
            seconds = time.monotonic() - began
            for engine, (process, output) in list(jobs.items()):
                if process.poll() is not None:
                    outcomes[engine] = ProbeOutcome(_reason(process.returncode, output), seconds)
                elif seconds > _DEADLINE:
                    outcomes[engine] = ProbeOutcome(_NO_ANSWER, seconds)
                else:
                    continue
                del jobs[engine]
            time.sleep(_POLL)
    return outcomes


def _command(engine: str) -> list[str] | None:
    """Give the command that runs two ranks, or None if there is none."""
    rank = ["-m", _RANK, engine]
    if engine == "threads":
        return [sys.executable, *rank]
    if engine == "mpi":
        # pip puts it beside Python, and one that belongs to another MPI may come first on PATH.
        beside = str(Path(sys.executable).parent)
        mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
        return None if mpiexec is None else [mpiexec, "-n", "2", sys.executable, *rank]
    return [sys.executable, "-m", "unisono", "run", "-n", "2", *rank]


@contextlib.contextmanager
def _job(command: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=_variables(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
        try:
            yield process, output
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                process.kill()
            process.wait()


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    ours = {name: value for name, value in environ.items() if not _OF_LAUNCHERS.fullmatch(name)}
    return {**ours, **_FOR_OPEN_MPI, "UNISONO_TIMEOUT": str(_CALL_TIMEOUT)}


def _reason(code: int, output: IO[bytes]) -> str | None:
    """Say why a job failed, from what its ranks and its launcher wrote."""
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
    # Rank 0 first, because at the start it tells the others why there is no job.
    told = [line.partition(FAILED)[2] for line in sorted(lines) if FAILED in line]
    if code == 0 and not told:
        return None
    # A rank that has lost a peer is not the cause.
    causes = [text for text in told if not text.startswith("PeerLost")]
    last = [line for line in lines if line][-1:]
    return (causes or told or last or [exit_text(code)])[0]
