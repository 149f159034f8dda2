"""Ctrl-C while this thread waits for ranks: noted, and acted on between two steps.

A KeyboardInterrupt that is raised anywhere could lose an answer that has just come.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """A context in which SIGINT is noted; only in the main thread, which alone gets it."""

    def __init__(self) -> None:
        self._count = 0
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        # A handler of the user's own, or a program that ignores Ctrl-C, is left alone.
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._count:  # it came too late for us
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        self._count += 1

    def take(self) -> bool:
        """Tell whether Ctrl-C was pressed since the last time."""
        if self._count == 0:
            return False
        self._count = 0
        return True
