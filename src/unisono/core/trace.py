"""What every rank called last, and the file that holds it when a call has failed.

Engines `shm` and `threads` keep the last calls of each rank. When ranks disagree, are lost or reach
a deadline, one rank of the job writes all of them to one file, which `unisono trace` draws; the
error names it. `UNISONO_TRACE` is the folder for such files (by default the temporary one); 0 means
that none are written.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import operator
import os
import shlex
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError

__all__ = [
    "FIELDS",
    "LIMIT",
    "RankReport",
    "Record",
    "RecordSource",
    "Tracer",
    "call_site",
    "state_of",
]

#: How many calls of each rank are kept.
LIMIT = 1024
#: Seconds that a rank waits for the file of another.
_WAIT_FOR_FILE = 0.25

_STATES: dict[type[UnisonoError], str] = {
    MismatchError: "mismatch",
    PeerLost: "lost",
    CommTimeout: "timeout",
}
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


@dataclass(slots=True)
class Record:
    """One call of one rank. Times are nanoseconds of the monotonic clock, which ranks share.

    `state` is "running", "done" or the fault: mismatch, lost, timeout, interrupted, memory, closed,
    system. Messages have a `peer` and no `call` number.
    """

    sequence: int
    group: int
    call: int | None
    verb: str
    dtype: str | None
    count: int | None
    op: str | None
    root: int | None
    peer: int | None
    call_site: str | None
    began: int
    ended: int | None = None
    state: str = "running"

    def age(self) -> str:
        """Say where it was called, and since when it runs or has ended.

        >>> made = Record(1, 0, 3, "barrier", None, None, None, None, None, "a.py:1", 0)
        >>> made.ended = time.monotonic_ns()
        >>> made.age()
        ' at a.py:1, which ended 0.0 s ago'
        """
        at = f" at {self.call_site}" if self.call_site else ""
        if self.ended is None:
            passed = (time.monotonic_ns() - self.began) / 1e9
            return f"{at}, which has been running for {passed:.1f} s"
        return f"{at}, which ended {(time.monotonic_ns() - self.ended) / 1e9:.1f} s ago"


#: The fields of a record, and their values in a row: rows are written twice as fast as objects.
FIELDS = tuple(one.name for one in fields(Record))
_row = operator.attrgetter(*FIELDS)


@dataclass(slots=True)
class RankReport:
    """One rank of a job: its process, the state of that, and its last calls in order.

    `missing` are the world ranks for which its call waits, where that is known.
    """

    rank: int
    pid: int
    state: str
    calls: Sequence[Record] = ()
    missing: Sequence[int] | None = None


class RecordSource(Protocol):
    """Where the records of a job are, and who may write the trace file."""

    def look(self) -> list[RankReport]:
        """All ranks of the job."""

    def claim(self) -> bool:
        """Try to become the rank that writes; only one may in each second."""

    def written(self) -> None:
        """Note that the file has been written."""

    def fresh(self) -> bool:
        """Tell whether the rank that claimed last has written."""


def state_of(failure: UnisonoError) -> str:
    """The state of a record whose call ended with this error."""
    return _STATES.get(type(failure), "closed")


@dataclass
class Tracer:
    """Writes the trace of a job when a call of this rank fails, and says so in the error."""

    job: str
    rank: int
    source: RecordSource

    def explain(self, error: UnisonoError) -> None:
        """Add the name of the file to the error, if one was written or is about to be.

        If none can be written, the error says why.
        """
        if type(error) not in _STATES:
            return
        path = None
        try:
            path = _path(self.job)
            if path is None:
                return
            _check_folder(path.parent)
            write = self._write_beside if isinstance(error, PeerLost) else self._write
            if not write(path, error):
                return
        except OSError as obstacle:
            line = _not_written(path, obstacle)
        else:
            command = f"unisono trace {shlex.quote(str(path))}"
            line = f"the last calls of all ranks: {path} ({command})"
        error.args = (f"{error}\n{line}", *error.args[1:])

    def _write_beside(self, path: Path, error: UnisonoError) -> bool:
        """Let a thread write the file: survivors have other things to do, and may have no time.

        Python waits for the thread when the process ends, but not if it is killed; then the file
        is missing. Ranks that do not write do not wait either.
        """
        with contextlib.suppress(UnisonoError, RuntimeError):  # no threads while Python ends
            if self.source.claim():
                # Looked at now: the group may be closed a moment later.
                found = (path, _reason(error), self.source.look())
                threading.Thread(target=self._finish, args=found, name="unisono trace").start()
            return True
        return False

    def _finish(self, path: Path, reason: str, ranks: Sequence[RankReport]) -> None:
        try:
            self._record(path, reason, ranks)
        except OSError as obstacle:  # the error that named the file has been raised
            warnings.warn(_not_written(path, obstacle), RuntimeWarning, stacklevel=1)

    def _write(self, path: Path, error: UnisonoError) -> bool:
        with contextlib.suppress(UnisonoError):
            if self.source.claim():
                self._record(path, _reason(error), self.source.look())
                return True
            deadline = time.monotonic() + _WAIT_FOR_FILE
            while not self.source.fresh() and time.monotonic() < deadline:
                time.sleep(0.005)
            return self.source.fresh() and path.exists()
        return False

    def _record(self, path: Path, reason: str, ranks: Sequence[RankReport]) -> None:
        _store(path, self._page(reason, ranks))
        with contextlib.suppress(UnisonoError):  # the group may be closed by now
            self.source.written()

    def _page(self, reason: str, ranks: Sequence[RankReport]) -> dict[str, Any]:
        return {
            "unisono": "trace",
            "version": 2,
            "job": self.job,
            "script": Path(sys.argv[0]).name if sys.argv else "",
            "written": datetime.now(UTC).isoformat(),
            "clock": time.monotonic_ns(),
            "by": self.rank,
            "reason": reason,
            "size": len(ranks),
            "fields": FIELDS,
            "ranks": [
                {
                    "rank": one.rank,
                    "pid": one.pid,
                    "state": one.state,
                    "calls": [_row(record) for record in one.calls],
                }
                for one in ranks
            ],
        }


def _reason(error: UnisonoError) -> str:
    return f"{type(error).__name__}: {error}"


def _path(job: str) -> Path | None:
    """Where the trace of this job goes; None if none is wanted.

    Raises an OSError if there is no folder for temporary files.
    """
    folder = os.environ.get("UNISONO_TRACE") or tempfile.gettempdir()
    if folder == "0":
        return None
    digest = hashlib.blake2b(job.encode(), digest_size=8).hexdigest()
    return Path(folder) / f"unisono-trace-{os.getuid()}-{digest}.json"


def _check_folder(folder: Path) -> None:
    """Raise an OSError if no file can be made in a folder: the same one on every rank."""
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _not_written(path: Path | None, obstacle: OSError) -> str:
    where = "" if path is None else f" to {path.parent}"
    return (
        f"no trace is written{where}: {obstacle.strerror}; "
        "set UNISONO_TRACE to a folder that can be written, or to 0"
    )


def _store(path: Path, page: dict[str, Any]) -> None:
    """Write the file under a temporary name (mode 0600), then rename it."""
    handle, draft = tempfile.mkstemp(prefix=".unisono-trace-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(page))  # json.dump would take ten times as long
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink()
        raise


# ---- the call site; native/call_site.hpp does the same -------------------------------------------

_foreign: dict[str, bool] = {}  # by file: whether it is neither ours nor torch's


def call_site() -> str | None:
    """The first line outside unisono and torch that led to this call, such as "train.py:88".

    >>> call_site()
    '<doctest unisono.core.trace.call_site[0]>:1'
    """
    frame: FrameType | None = sys._getframe(1)
    in_torch: FrameType | None = None  # the first that is torch's
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            if name not in _foreign:
                _foreign[name] = not _of_torch(name)
            if _foreign[name]:
                break
            in_torch = in_torch or frame
        frame = frame.f_back
    frame = frame or in_torch
    if frame is None:
        return None
    return f"{frame.f_code.co_filename.removeprefix(_here())}:{frame.f_lineno}"


@functools.cache
def _here() -> str:
    try:
        return str(Path.cwd()) + os.sep
    except OSError:  # the working directory is gone
        return ""


def _of_torch(name: str) -> bool:
    file = getattr(sys.modules.get("torch"), "__file__", None)
    if file is None:
        return False
    # What torch decorates its functions with stands between them and the user.
    glue = ("typing_extensions.py", "contextlib.py", "warnings.py")
    return name.startswith(str(Path(file).parent) + os.sep) or Path(name).name in glue
