"""The last calls of ranks that are threads of this process."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from unisono.core.call import Call
from unisono.core.trace import LIMIT, RankReport, Record, state_of
from unisono.errors import UnisonoError

__all__ = ["Recorder"]

#: Nanoseconds between two trace files.
_BETWEEN_FILES = 1_000_000_000


class Recorder:
    """Keeps the records of all ranks of one job; a `RecordSource` of `core.trace`."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._calls: list[deque[Record]] = [deque(maxlen=LIMIT) for _ in range(size)]
        self._begun = [0] * size
        self._groups = 0
        self._claimed = 0
        self._written = 0
        self.states = ["running"] * size

    def new_group(self) -> int:
        """The number of one more group."""
        with self._lock:
            self._groups += 1
            return self._groups - 1

    def begin(self, rank: int, group: int, turn: int | None, call: Call) -> Record:
        """Note that a world rank calls something; messages have no `turn`."""
        with self._lock:
            self._begun[rank] += 1
            record = Record(
                self._begun[rank],
                group,
                turn,
                call.verb,
                call.dtype.name if call.dtype is not None else None,
                max([call.share, *call.sends, *call.receives]) if call.dtype is not None else None,
                call.op.name if call.op is not None else None,
                call.root,
                call.peer,
                call.site or None,
                time.monotonic_ns(),
            )
            self._calls[rank].append(record)
        return record

    def end(self, record: Record, failure: UnisonoError | None) -> None:
        """Note how a call ended."""
        record.state = "done" if failure is None else state_of(failure)
        record.ended = time.monotonic_ns()

    def last(self, rank: int) -> Record | None:
        """What the rank called last."""
        with self._lock:
            return self._calls[rank][-1] if self._calls[rank] else None

    def look(self) -> list[RankReport]:
        """All ranks of the job."""
        with self._lock:
            return [
                RankReport(rank, os.getpid(), self.states[rank], list(calls))
                for rank, calls in enumerate(self._calls)
            ]

    def claim(self) -> bool:
        """Try to become the rank that writes; only one may in each second."""
        with self._lock:
            now = time.monotonic_ns()
            if self._claimed and now < self._claimed + _BETWEEN_FILES:
                return False
            self._claimed = now
            return True

    def written(self) -> None:
        """Note that the file has been written."""
        self._written = time.monotonic_ns()

    def fresh(self) -> bool:
        """Tell whether the rank that claimed last has written."""
        return self._written >= self._claimed
