"""Futures of calls under way, and the thread that completes them and runs their callbacks.

A callback may start calls itself (PowerSGD does), in a thread that races with the one that trains.
So that all ranks see one order nevertheless, each group has one `Line`: a thread that completes
futures and runs callbacks strictly in the order in which they were asked for, on every rank alike.
Calls that callbacks start have an order of their own (see `Membership.here`).
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from unisono.core.engine import Work

__all__ = ["Future", "Line", "current_line", "for_cpp", "for_python", "in_a_thread"]


#: The lines that live in this process, by the number of their thread.
_lines: dict[int, Line] = {}


class Line:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._workers = torch.get_num_threads()
        # A daemon, for a thread that waits for others must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name=f"unisono {name}", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None]) -> None:
        """Do `job` after all that was asked for before; at once if a callback asks."""
        if current_line() is not self:
            with self._closing:
                if not self._closed:
                    self._jobs.put(job)
                    return
        job()  # a closed line comes from a closed group, whose calls have all ended

    def close(self, seconds: float) -> None:
        """End when the jobs so far are done, and wait for that for so long."""
        with self._closing:
            self._closed = True
            self._jobs.put(None)
        if current_line() is not self:
            self._thread.join(seconds)

    def _serve(self) -> None:
        number = threading.get_ident()
        _lines[number] = self
        torch.set_num_threads(self._workers)  # OpenMP keeps the number for each thread
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds tensors, and the next one may be far away
        del _lines[number]


def current_line() -> Line | None:
    """The line whose thread this is, because a callback runs; None for all other threads."""
    return _lines.get(threading.get_ident()) if _lines else None


class _Failure:
    """What a future holds instead of a value. DDP shows its text, and Python raises its error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        return "".join(traceback.format_exception(self.error)).strip()

    @staticmethod
    def unwrap(value: Any) -> Any:
        """Raise the error; torch calls this with the value of a future that has failed."""
        raise value.error


class Future(torch.futures.Future):  # type: ignore[misc]
    """A future for Python code; `then` and what comes after it run in the line, in order.

    torch's own runs a callback wherever it happens to be complete: in the thread that asks or in
    the one that completes it, which may differ between ranks.
    """

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._complete = threading.Event()

    def wait(self) -> Any:
        """Return its value, or raise its error; lets Ctrl-C through, which C++ does not."""
        self._complete.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """A future of what `callback` returns, which gets this one when it is complete."""
        child = Future(self._line)
        self._line.run(lambda: child.fill(lambda: callback(self)))
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run `callback` with this future when it is complete; its errors are lost, as upstream."""
        self.then(callback)

    def fill(self, make: Callable[[], Any]) -> None:
        """Complete it with what `make` returns or raises."""
        try:
            value = make()
        except BaseException as error:  # whoever waits has to hear of an exit as well
            self._set_unwrap_func(_Failure.unwrap)
            value = _Failure(error)
        self.set_result(value)
        self._complete.set()


def for_python(work: Work, line: Line) -> Future:
    """The future of a call whose work was handed to Python code."""
    future = Future(line)
    line.run(lambda: future.fill(work.result))
    return future


def for_cpp(work: Work, run: Callable[[Callable[[], None]], None]) -> Any:
    """The future of a call that C++ started, as DDP does; `run` says where it is waited for.

    C++ reads its value without a look at what it is, so an error must be one in C++ as well: that
    is what torch makes of an exception in a callback.
    """
    ended: Any = torch.futures.Future()
    future = ended.then(lambda _: work.result())

    def end() -> None:
        with contextlib.suppress(Exception):  # result() raises it again
            work.wait()
        ended.set_result(None)

    run(end)
    return future


def in_a_thread(job: Callable[[], None]) -> None:
    """Do `job` in a thread of its own: messages end in any order, so no line suits them."""
    threading.Thread(target=job, name="unisono message", daemon=True).start()
