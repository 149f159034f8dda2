"""Where a trace comes from: a file that a failed call left, or the memory of a job that runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from unisono.errors import ArgumentError, LaunchError
from unisono.tools.formatting import plain
from unisono.tools.trace import file
from unisono.tools.trace.file import Trace

__all__ = ["load"]


def load(source: str) -> tuple[Trace, Path]:
    """Return the trace of a file or a running job, and the path after which timelines are named."""
    path = Path(source)
    if path.exists():
        return file.read(path), path
    trace = _look(source)
    return trace, Path(f"unisono-trace-{re.sub(r'[^A-Za-z0-9._-]+', '-', trace.job)}.json")


def _look(wanted: str) -> Trace:
    try:
        from unisono.tools import jobs
    except ImportError as error:
        raise LaunchError(f"the native module does not load here: {error}") from error
    found = jobs.select(jobs.running_jobs(), wanted)
    if not found:
        raise ArgumentError(
            f"there is no file {wanted!r}, and no job of this user with that name or pid runs "
            "here; give the file that an error named, or a job that `unisono top` shows"
        )
    if len(found) > 1:
        names = ", ".join(plain(job.name) for job in found)
        raise ArgumentError(f"several jobs have a name that begins so: {names}; name one of them")
    (job,) = found
    ranks, clock = job.look()
    written = datetime.now(UTC).isoformat()
    return Trace(job.name, job.program.script, written, clock, None, "", tuple(ranks))
