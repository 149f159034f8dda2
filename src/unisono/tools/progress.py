"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time

__all__ = ["ProgressBar"]

_WIDTH = 30
_EVERY = 0.1  # seconds


class ProgressBar:
    """Show how far a command has come: `progress(done, total)`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._visible = sys.stderr.isatty()
        self._shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Draw the bar, not more often than the eye can see; erase it when all is done."""
        if not self._visible:
            return
        if done >= total:
            sys.stderr.write("\r\x1b[K")
        elif time.monotonic() - self._shown >= _EVERY:
            self._shown = time.monotonic()
            filled = "#" * (_WIDTH * done // total)
            sys.stderr.write(f"\r{self._what} [{filled:<{_WIDTH}}] {done}/{total}\x1b[K")
        sys.stderr.flush()
