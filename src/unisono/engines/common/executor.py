"""Runs the calls of one engine one after the other: in the caller's thread if it waits, or apart.

For engines whose calls are several steps in Python. The native engine does the same in C++.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from unisono.core.engine import DONE, Work
from unisono.errors import CommTimeout, NotReady, UnisonoError

__all__ = ["DeferredWork", "SerialExecutor"]

#: What a call does: it returns when its result is in its place, or raises.
_Task = Callable[[], object]

_IDLE_SECONDS = 1.0  # that the thread stays without work


class DeferredWork(Work):
    """A call that another thread runs."""

    def __init__(self, task: _Task) -> None:
        super().__init__()
        self._task: _Task | None = task
        self._ended = threading.Event()
        self._failure: UnisonoError | None = None

    def _poll(self) -> bool:
        return self._ended.is_set()

    def _block(self, timeout: float | None) -> None:
        if not self._ended.wait(timeout):
            raise CommTimeout(f"the call has not ended after {timeout:g} s; it goes on")
        if self._failure is not None:
            raise self._failure

    def run(self) -> None:
        """Run the task in this thread."""
        assert self._task is not None
        try:
            self._task()
        except UnisonoError as error:
            self.end(error)
        except BaseException as error:
            failure = UnisonoError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self.end(failure)
        else:
            self.end(None)

    def end(self, failure: UnisonoError | None) -> None:
        """Note the outcome, and release the memory that the task holds."""
        self._failure = failure
        self._task = None
        self._ended.set()


class SerialExecutor:
    """Runs calls in the order in which they were submitted.

    `always_apart` keeps them out of the caller's thread even if it waits: for calls that Ctrl-C
    does not interrupt.
    """

    def __init__(self, name: str, always_apart: bool = False) -> None:
        self._name = name
        self._always_apart = always_apart
        self._changed = threading.Condition()
        self._queue: deque[DeferredWork] = deque()
        self._busy = False  # a call runs, in whichever thread
        self._serving = False  # the thread is there
        self._closed = False

    def submit(self, task: _Task, blocking: bool) -> Work:
        """Run a call, or queue it if the caller does not wait or others are before it."""
        if blocking and not self._always_apart and self.begin():
            try:
                task()
            finally:
                self.end()
            return DONE
        with self._changed:
            if self._closed:
                raise NotReady("the engine is closed")
            work = DeferredWork(task)
            self._queue.append(work)
            self._serve_soon()
        if blocking:
            work.wait()
        return work

    def begin(self) -> bool:
        """Let the caller run a call itself, until `end`, if no other one is there."""
        with self._changed:
            if self._closed or self._busy or self._queue:
                return False
            self._busy = True
            return True

    def end(self) -> None:
        """Let other calls run."""
        with self._changed:
            self._busy = False
            if self._serving or self._closed:
                self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Let queued calls go on for `seconds`, then give them up; closing twice is allowed."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._queue and not self._busy, seconds)
            left, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for work in left:
            work.end(NotReady("the engine was closed before the call began"))

    def _serve_soon(self) -> None:
        self._changed.notify_all()
        if not self._serving:
            self._serving = True
            threading.Thread(target=self._serve, name=f"unisono {self._name}", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                ready = self._changed.wait_for(
                    lambda: self._queue and not self._busy, _IDLE_SECONDS
                )
                if not ready:
                    if self._queue:
                        continue  # a caller's own call takes long
                    self._serving = False
                    return
                work = self._queue.popleft()
                self._busy = True
            work.run()
            del work  # do not keep its memory while the next one is awaited
            with self._changed:
                self._busy = False
                self._changed.notify_all()
