"""Ranks that are threads of this process and wait for tasks."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import queue
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unisono.launch.outcome import ErrorSummary
from unisono.notebook.output import RankOutput, labelled_threads
from unisono.notebook.tasks import Answer, Event, OutputPiece, Task, perform, standing

if TYPE_CHECKING:
    from unisono.engines.threads.engine import ThreadsEngine

__all__ = ["ThreadRanks"]


@dataclass(frozen=True)
class _Order:
    """A task for one rank; with `engine` it leaves its world and joins that one."""

    number: int
    task: Task
    context: contextvars.Context
    engine: ThreadsEngine | None


class ThreadRanks:
    """The ranks, seen from the thread that uses them."""

    #: Seconds that a rank has to end its call after an interrupt; then it gets another thread.
    patience = 2.0

    def __init__(self, n: int, timeout: float) -> None:
        self._timeout = timeout
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._namespaces: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in range(n)]
        self._engines: list[ThreadsEngine] = []
        self._number = 0  # of the last task
        self._threads = [self._thread(rank) for rank in range(n)]

    def _thread(self, rank: int) -> _RankThread:
        return _RankThread(rank, self._namespaces[rank], self._events)

    def start(self, task: Task, *, renew: bool) -> None:
        """Give a task to all ranks; with `renew` they get a new world first."""
        # Importing unisono alone must not load NumPy.
        from unisono.engines.threads.engine import threads_world

        if renew:
            self._engines = threads_world(len(self._threads), self._timeout)
        self._number += 1
        for rank, thread in enumerate(self._threads):
            engine = self._engines[rank] if renew else None
            thread.orders.put(_Order(self._number, task, contextvars.copy_context(), engine))

    def output(self) -> AbstractContextManager[None]:
        """A context in which the output of the ranks becomes events."""
        return labelled_threads()

    def events(self, seconds: float) -> list[Event]:
        """What happened; waits for it, but not longer than that."""
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=seconds))
            while not self._events.empty():
                found.append(self._events.get_nowait())
        # A thread that was given up answers too late, to a task that nobody waits for.
        return [one for one in found if isinstance(one, OutputPiece) or one.task == self._number]

    def leave(self, rank: int, reason: str) -> None:
        """Let a rank that has failed leave its world: others shall not wait for it."""
        self._engines[rank].hub.leave(rank, reason)

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the ranks, and end the calls in which any of them waits."""
        for rank in ranks:
            self._threads[rank].interrupt()
        for rank, engine in enumerate(self._engines):
            engine.hub.leave(rank, "was interrupted")

    def give_up(self, ranks: Iterable[int]) -> Sequence[Answer]:
        """Give other threads to ranks that do not end; the old ones end when they can."""
        answers = []
        for rank in ranks:
            self._threads[rank].orders.put(None)
            self._threads[rank] = self._thread(rank)
            error = KeyboardInterrupt()
            answers.append(Answer(rank, error=error, summary=ErrorSummary.of(error)))
        return answers

    def lost(self) -> dict[int, str]:
        """Ranks that have ended, and how; threads do not."""
        return {}

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.orders.put(None)
        for thread in self._threads:
            thread.join()


class _RankThread:
    """One thread that does what it is ordered; it knows nothing of the ranks it belongs to.

    An interrupt is an exception that Python raises in the thread at its next instruction. `_busy`
    says that it may come, and the lock sees to it that it does not come later.
    """

    def __init__(
        self, rank: int, namespace: dict[str, Any], events: queue.SimpleQueue[Event]
    ) -> None:
        self.orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._rank = rank
        self._namespace = namespace
        self._events = events
        self._lock = threading.Lock()
        self._busy = False
        # A rank that never ends must not keep the program alive.
        self._thread = threading.Thread(target=self._work, name=f"unisono rank {rank}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in what the thread does now."""
        with self._lock:
            if self._busy:
                _raise_in(self._thread, KeyboardInterrupt)

    def join(self) -> None:
        """Wait a moment for the end of the thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _work(self) -> None:
        from unisono.core import groups

        RankOutput(self._rank, self._events)
        while (order := self.orders.get()) is not None:
            if order.engine is not None:
                groups.close()
                groups.install(order.engine, in_thread=True, claimed=False)
            groups.unclaim()
            answer = self._perform(order)
            self._events.put(answer)
            del order, answer  # they may be large
        groups.close()

    def _perform(self, order: _Order) -> Answer:
        """Do a task; the only part that can be interrupted."""
        result, error, summary = None, None, None
        try:
            self._busy = True
            try:
                result, error, summary = order.context.run(perform, order.task, self._namespace)
            finally:
                self._rest()
        except KeyboardInterrupt as interrupt:  # it came between the task and us
            self._rest()
            error, summary = interrupt, ErrorSummary.of(interrupt)
        stands = standing(error is not None)
        return Answer(self._rank, result, error, summary, stands, order.number)

    def _rest(self) -> None:
        with self._lock:
            self._busy = False
            _raise_in(self._thread, None)  # one that has been asked for and has not come yet


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Let a thread raise an error at its next instruction; None: none after all."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), None if error is None else ctypes.py_object(error)
    )
