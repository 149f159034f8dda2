"""How a rank that fails tells its supervisor what kind of error ended it.

The supervisor keeps a memory file for each rank and puts its path and name into UNISONO_REPORT. A
rank that ends by an exception writes a line of JSON there. This is the simplest way that works in
every script:

- Python remembers the exception that it has printed in `sys.last_value`, so a function at exit can
  read it. No hook is replaced, so scripts that set `sys.excepthook` and debuggers keep theirs; no
  bootstrap module stands before the script, so `sys.argv`, `sys.path`, `__main__` and tracebacks
  are those of a plain Python.
- The file is the supervisor's own (`/proc/PID/fd/N`): ranks inherit no descriptor, and nothing is
  left on disk, however the supervisor ends. In a container the same path may be another file, so
  the rank compares the name before it writes.
- Only a rank that has imported unisono can have lost a peer, and that is what the supervisor needs
  to know. For all others (killed by a signal, `os._exit`, a program that is not Python) the exit
  status is enough.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import sys
from pathlib import Path

from unisono.launch.outcome import ErrorSummary

__all__ = ["VARIABLE", "ErrorReports", "report_at_exit"]

#: Tells a rank which file it writes its report to, as "PATH NAME".
VARIABLE = "UNISONO_REPORT"
_LONGEST = 4096  # bytes of a report


def report_at_exit() -> None:
    """In a rank, arrange that an exception that ends this process is reported."""
    destination = os.environ.get(VARIABLE)
    if destination:
        atexit.register(_report, destination, os.getpid())


def _report(destination: str, pid: int) -> None:
    error = getattr(sys, "last_value", None)
    if error is None or os.getpid() != pid:  # a forked child is not the rank
        return
    import json

    path, _, name = destination.partition(" ")
    with contextlib.suppress(OSError):
        if str(Path(path).readlink()) == f"/memfd:{name} (deleted)":
            Path(path).write_text(json.dumps(ErrorSummary.of(error).to_data()))


class ErrorReports:
    """The supervisor's side: a memory file for each rank."""

    def __init__(self, size: int) -> None:
        self._name = f"unisono-report-{secrets.token_hex(8)}"
        self._files = [os.memfd_create(self._name) for _ in range(size)]

    def destination(self, rank: int) -> str:
        """Return what the rank finds in UNISONO_REPORT."""
        return f"/proc/{os.getpid()}/fd/{self._files[rank]} {self._name}"

    def read(self, rank: int) -> ErrorSummary | None:
        """Return what the rank has reported, or None."""
        import json

        try:
            return ErrorSummary.from_data(json.loads(os.pread(self._files[rank], _LONGEST, 0)))
        except (ValueError, KeyError, TypeError):
            return None  # nothing, or cut short by the end of the rank

    def close(self) -> None:
        """Release the files."""
        while self._files:
            os.close(self._files.pop())
