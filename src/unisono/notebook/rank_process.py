"""The program of a rank that is a process and waits for tasks."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from unisono.core import groups
from unisono.errors import ArgumentTypeError
from unisono.launch.outcome import ErrorSummary
from unisono.launch.process import die_with_parent
from unisono.launch.rank_errors import pack_error
from unisono.notebook import transfer
from unisono.notebook.tasks import Cell, Namespace, Task, perform, standing

__all__ = ["main"]


def main(parent: int, descriptor: int, cores: set[int] | None, engine: str, timeout: float) -> None:
    """Do the tasks that come from the parent, until it closes the connection."""
    die_with_parent(parent)
    if cores is not None:
        with contextlib.suppress(OSError):  # some containers refuse it
            os.sched_setaffinity(0, cores)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=True)
    rank = _Rank(int(os.environ["UNISONO_RANK"]), engine, timeout)
    with Connection(descriptor) as connection:
        while True:
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                break
            if data:
                connection.send_bytes(rank.answer(*pickle.loads(data)))
            else:
                groups.close()
    groups.close(exiting=True)


@dataclass
class _Order:
    """A packed task; with `variables` the rank leaves its world and joins that one."""

    packed: bytes
    variables: Mapping[str, str] | None
    engine: str
    timeout: float
    is_cell: bool = False

    def run(self, namespace: Namespace) -> Any:
        """Unpack the task, which may import much, and do it."""
        if self.variables is not None:
            groups.close()
            os.environ.update(self.variables)
            groups.init(self.engine, self.timeout, claimed=False)
        groups.unclaim()
        try:
            task: Task = transfer.loads(self.packed)
        except Exception as error:
            raise ArgumentTypeError(
                f"the function or an argument cannot be read in the process of a rank: {error}"
            ) from error
        self.is_cell = isinstance(task, Cell)
        return task.run(namespace)

    def parts(self) -> Mapping[str, Any]:
        """It travels no further."""
        return {}


class _Rank:
    """One rank: its variables are those of the module `__main__`."""

    def __init__(self, rank: int, engine: str, timeout: float) -> None:
        self._rank, self._engine, self._timeout = rank, engine, timeout
        # A module of its own, so that objects of its classes can be sent to other ranks.
        module = sys.modules["__main__"] = ModuleType("__main__")
        self._namespace = module.__dict__
        self._busy = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        if self._busy:  # otherwise there is nothing to interrupt
            raise KeyboardInterrupt

    def answer(self, packed: bytes, variables: Mapping[str, str] | None) -> bytes:
        """Do a task; return what the parent gets to know."""
        answer, error, summary = b"", None, None
        try:
            self._busy = True
            order = _Order(packed, variables, self._engine, self._timeout)
            try:
                result, error, summary = perform(order, self._namespace)
                if error is None:
                    answer = self._packed(result, order.is_cell)
            finally:
                self._busy = False
        except (KeyboardInterrupt, ArgumentTypeError) as caught:
            self._busy = False
            error, summary = caught, ErrorSummary.of(caught)
        if error is not None:
            answer = pack_error(error, self._rank, transfer.dumps)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the task may have closed it
                stream.flush()
        return pickle.dumps((answer, summary, standing(error is not None)))

    def _packed(self, result: Any, is_cell: bool) -> bytes:
        what = f"the result of rank {self._rank}, a {type(result).__name__},"
        try:
            return transfer.pack((None, result), what)
        except ArgumentTypeError:
            if not is_cell:
                raise
            return transfer.dumps((None, _Shown(repr(result))))


class _Shown:
    """Stands for the value of a cell's last expression that cannot be sent; it looks the same."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
