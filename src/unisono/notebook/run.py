"""One task on all ranks: from the moment they get it until all have answered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from unisono.launch.outcome import name_ranks
from unisono.notebook.interrupts import Interrupts
from unisono.notebook.output import Printer
from unisono.notebook.tasks import Answer, Event, OutputPiece, Task

__all__ = ["Backend", "Run"]

#: Seconds that ranks get to end by themselves after the first has failed; then it leaves the world,
#: and calls that wait for it fail.
_SETTLE = 0.3
#: Seconds after which we say for whom we still wait.
_TELL = 3.0
#: The longest wait between two looks at everything else.
_POLL = 0.1
_NEVER = float("inf")


class Backend(Protocol):
    """Threads or processes that are ranks."""

    patience: float

    def start(self, task: Task, *, renew: bool) -> None:
        """Give a task to all ranks; with `renew` they get a new world first."""

    def output(self) -> AbstractContextManager[None]:
        """A context in which the output of the ranks becomes events."""

    def events(self, seconds: float) -> Sequence[Event]:
        """What happened; waits for it, but not longer than that."""

    def leave(self, rank: int, reason: str) -> None:
        """Let a rank that has failed leave its world."""

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the ranks."""

    def give_up(self, ranks: Iterable[int]) -> Sequence[Answer]:
        """Wait no longer for ranks that do not react."""

    def lost(self) -> dict[int, str]:
        """Ranks that have ended, and how."""

    def close(self) -> None:
        """End the ranks."""


class Run:
    """One task on all ranks: waits for their answers, and prints what they write.

    `is_interrupted` says that the caller is to get a KeyboardInterrupt, and `has_interrupted_ranks`
    that ranks got one before they had answered.
    """

    def __init__(self, n: int, backend: Backend, is_first: bool) -> None:
        self._n = n
        self._backend = backend
        self._is_first = is_first  # then ranks have nothing to lose, and are not waited for
        self._answers: dict[int, Answer] = {}  # in the order in which they came
        self._printer = Printer(n)
        self._interrupts = Interrupts()
        self._contexts = contextlib.ExitStack()
        self._failed_at = _NEVER
        self._interrupted_at = _NEVER
        self._tell_at = _NEVER
        self._left: set[int] = set()
        self.is_interrupted = False
        self.has_interrupted_ranks = False

    def __enter__(self) -> Run:
        self._contexts.enter_context(self._interrupts)
        self._contexts.enter_context(self._backend.output())
        self._contexts.callback(self._printer.finish)
        return self

    def __exit__(self, *_: object) -> None:
        self._contexts.close()

    def wait(self) -> dict[int, Answer]:
        """Return the answers of the ranks, which have got a task, by rank."""
        while self._pending and not (self._is_first and (self._left or self.is_interrupted)):
            try:
                self._take(self._backend.events(_POLL))
                self._printer.show()
                if self._interrupts.take():
                    self._interrupt()
                self._act(time.monotonic())
            except KeyboardInterrupt:  # a handler of the user's own has raised it
                self._interrupt()
        self.is_interrupted |= self._interrupts.take()
        return self._answers

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, OutputPiece):
                self._printer.take(event)
            elif event.rank not in self._answers:
                self._answers[event.rank] = event
                if event.error is not None and self._failed_at == _NEVER:
                    self._failed_at = time.monotonic()
                    self._tell_at = self._failed_at + _TELL

    @property
    def _pending(self) -> list[int]:
        return [rank for rank in range(self._n) if rank not in self._answers]

    def _interrupt(self) -> None:
        if self.is_interrupted:
            self._take(self._backend.give_up(self._pending))
            return
        self.is_interrupted = True
        self._interrupted_at = time.monotonic()
        self._tell_at = self._interrupted_at + _TELL
        if not self._is_first:
            self.has_interrupted_ranks = True
            self._backend.interrupt(self._pending)

    def _act(self, now: float) -> None:
        """Do what is due by now."""
        pending = self._pending
        if not pending:
            return
        if now > self._interrupted_at + self._backend.patience:
            self._printer.say(
                f"{name_ranks(pending)} cannot be interrupted in this call, and what runs there "
                "ends when the call does; the next cell runs in new threads"
            )
            self._take(self._backend.give_up(pending))
        elif not self.is_interrupted and now > self._failed_at + _SETTLE:
            self._let_failed_leave()
        if now > self._tell_at:
            self._tell_at = _NEVER
            if self.is_interrupted:
                self._printer.say(
                    f"{name_ranks(pending)} did not react to the interrupt yet; interrupt again to "
                    "end all ranks"
                )
            else:
                self._printer.say(
                    f"{name_ranks(self._left)} failed, and {name_ranks(pending)} still run; "
                    "interrupt to stop them"
                )

    def _let_failed_leave(self) -> None:
        for rank, answer in self._answers.items():
            if answer.error is not None and rank not in self._left:
                self._left.add(rank)
                self._backend.leave(rank, f"raised {type(answer.error).__name__}: {answer.error}")
