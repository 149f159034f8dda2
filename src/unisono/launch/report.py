"""How a rank tells its supervisor what kind of error ended it, and without whom it goes on.

The supervisor keeps a file for each rank and puts its path and name into UNISONO_REPORT. A rank
that ends by an exception writes a line of JSON there, and so does one that has shrunk its group
(`environment.tell_supervisor`). This is the simplest way that works in every script:

- Python remembers the exception that it has printed in `sys.last_value`, so a function at exit can
  read it. No hook is replaced, so scripts that set `sys.excepthook` and debuggers keep theirs; no
  bootstrap module stands before the script, so `sys.argv`, `sys.path`, `__main__` and tracebacks
  are those of a plain Python.
- The file is in memory and the supervisor's own (`/proc/PID/fd/N`): ranks inherit no descriptor,
  and nothing is left on disk, however the supervisor ends. Where the kernel refuses memfd_create it
  is a temporary file that has no name in any folder. In a container the same path may be another
  file, so the rank compares the name that the kernel shows before it writes.
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
import tempfile
from pathlib import Path
from typing import Any

from unisono.errors import LaunchError
from unisono.launch.outcome import ErrorSummary

__all__ = ["VARIABLE", "ErrorReports", "report_at_exit"]

#: Tells a rank which file it writes its reports to, as "PATH NAME"; a name may contain spaces.
VARIABLE = "UNISONO_REPORT"
_LONGEST = 1 << 16  # bytes that we read of what a rank has reported


def report_at_exit() -> None:
    """In a rank, arrange that an exception that ends this process is reported."""
    if os.environ.get(VARIABLE):
        atexit.register(_report, os.getpid())


def _report(pid: int) -> None:
    error = getattr(sys, "last_value", None)
    if error is None or os.getpid() != pid:  # a forked child is not the rank
        return
    from unisono.core import environment

    environment.tell_supervisor({"error": ErrorSummary.of(error).to_data()})


def _nameless_file(name: str) -> int:
    try:
        return os.memfd_create(name)
    except OSError as refusal:
        try:
            with tempfile.TemporaryFile() as file:
                return os.dup(file.fileno())
        except OSError as error:
            raise LaunchError(
                f"memfd_create is refused ({refusal.strerror}), and no temporary file can replace "
                f"it ({error.strerror}); allow memfd_create in the seccomp profile, or set TMPDIR"
            ) from error


class ErrorReports:
    """The supervisor's side: a file for each rank."""

    def __init__(self, size: int) -> None:
        name = f"unisono-report-{secrets.token_hex(8)}"
        self._files = [_nameless_file(name) for _ in range(size)]

    def destination(self, rank: int) -> str:
        """Return what the rank finds in UNISONO_REPORT."""
        path = f"/proc/{os.getpid()}/fd/{self._files[rank]}"
        return f"{path} {Path(path).readlink()}"

    def read(self, rank: int) -> ErrorSummary | None:
        """Return the error that the rank has reported, or None."""
        for line in self._lines(rank):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return ErrorSummary.from_data(line["error"])
        return None

    def left_behind(self, rank: int) -> set[int]:
        """Return the ranks without which the rank has gone on."""
        found: set[int] = set()
        for line in self._lines(rank):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found.update(map(int, line["left_behind"]))
        return found

    def _lines(self, rank: int) -> list[Any]:
        import json

        lines: list[Any] = []
        if not self._files:  # closed
            return lines
        for text in os.pread(self._files[rank], _LONGEST, 0).splitlines():
            with contextlib.suppress(ValueError):  # cut short by the end of the rank
                lines.append(json.loads(text))
        return lines

    def close(self) -> None:
        """Release the files."""
        while self._files:
            os.close(self._files.pop())
