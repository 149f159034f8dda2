"""Jobs of a MindSpore program: with MindSpore's own communication, or by `unisono run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import unisono
from unisono.launch.process import ReservedPort

__all__ = ["MINDSPORE_ALONE", "run_as_msrun", "run_by_unisono", "run_job"]

DEADLINE = 120


def _environment() -> dict[str, str]:
    # Absolute, because the ranks run elsewhere.
    return {**os.environ, "GLOG_v": "3", "PYTHONPATH": str(Path(unisono.__file__).parents[1])}


#: How often a job of MindSpore alone is tried: once in a long while it ends while it starts.
MINDSPORE_ALONE = 2


def run_as_msrun(script: Path, *arguments: str, tries: int = 1) -> None:
    """Two workers and the scheduler, as msrun starts them; the script makes the world."""
    for left in reversed(range(tries)):
        codes, errors = _run_once(script, arguments)
        if codes == [0, 0]:
            return
        assert left, (codes, errors)


def _run_once(script: Path, arguments: Sequence[str]) -> tuple[list[int], list[str]]:
    held = ReservedPort()
    common = {
        **_environment(),
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(held),
    }
    roles = [{"MS_ROLE": "MS_SCHED"}]
    roles += [{"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)} for rank in range(2)]
    scheduler, *workers = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**common, **role},
            cwd=script.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if role["MS_ROLE"] == "MS_WORKER" else subprocess.DEVNULL,
            text=True,
        )
        for role in roles
    ]
    try:
        errors = [worker.communicate(timeout=DEADLINE)[1] for worker in workers]
        return [worker.returncode for worker in workers], errors
    finally:
        for process in (scheduler, *workers):
            process.kill()  # the scheduler stays for a minute if nobody ends it
            process.wait()


def run_job(program: str, answers: Path, tries: int = 1) -> list[dict[str, Any]]:
    """What the two workers write as JSON to the path they are given, with their rank behind it."""
    script = answers.with_suffix(".py")
    script.write_text(program)
    run_as_msrun(script, str(answers), tries=tries)
    return [json.loads(answers.with_name(f"{answers.name}{rank}").read_text()) for rank in range(2)]


def run_by_unisono(
    options: Sequence[str], script: Path, *arguments: str, ranks: int = 2
) -> subprocess.CompletedProcess[str]:
    """The same script on ranks of `unisono run`; the caller looks at the exit code."""
    command = [sys.executable, "-m", "unisono", "run", "-n", str(ranks), *options]
    return subprocess.run(
        [*command, str(script), *arguments],
        env=_environment(),
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
