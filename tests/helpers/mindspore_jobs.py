"""Run a program on two ranks as msrun would start them: with real MindSpore, or with unisono."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import unisono
from unisono.launch.process import ReservedPort

__all__ = ["run_job"]


def run_job(program: str, answers: Path) -> list[dict[str, Any]]:
    """What two workers write as JSON to the path they are given, with their rank behind it."""
    script = answers.with_suffix(".py")
    script.write_text(program)
    held = ReservedPort()
    common = {
        **os.environ,
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(held),
        "GLOG_v": "3",
        "PYTHONPATH": str(Path(unisono.__file__).parents[1]),  # absolute: the ranks run elsewhere
    }
    roles = [{"MS_ROLE": "MS_SCHED"}]
    roles += [{"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)} for rank in range(2)]
    scheduler, *workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(answers)],
            env={**common, **role},
            cwd=answers.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if role["MS_ROLE"] == "MS_WORKER" else subprocess.DEVNULL,
            text=True,
        )
        for role in roles
    ]
    try:
        errors = [worker.communicate(timeout=120)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], errors
    finally:
        for process in (scheduler, *workers):
            process.kill()  # the scheduler stays for a minute if nobody ends it
            process.wait()
    return [json.loads(answers.with_name(f"{answers.name}{rank}").read_text()) for rank in range(2)]
