"""What the tests of `unisono run` start: a script that knows its rank, and a job that goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO, Start

PREAMBLE = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script that knows its rank, and return its path."""

    def write(body: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + body)
        return str(path)

    return write


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a job that is still running when this returns; it is killed at the end of the test."""
    jobs: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [*prefix, *UNISONO, "run", *arguments]
        pipe = subprocess.PIPE
        jobs.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.poll() is None:
            job.kill()
            job.communicate()
