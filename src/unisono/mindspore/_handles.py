"""`CommHandle`: what an asynchronous call returns in this dialect."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from unisono.core.engine import DONE, Work
from unisono.errors import ArgumentTypeError

__all__ = ["CommHandle", "handle_of", "new_handle"]


class CommHandle:
    """What an asynchronous call returns; a handle without work has ended from the beginning.

    >>> def total():
    ...     y, handle = comm_func.all_reduce(np.full(2, dist.get_rank()), async_op=True)
    ...     handle.wait()
    ...     return y.tolist()
    >>> unisono.spawn(total, 2)
    [[1, 1], [1, 1]]
    """

    def __init__(self, handle: Work | None = None, exec_sync: bool = False) -> None:
        if handle is not None and not isinstance(handle, Work):
            raise ArgumentTypeError(f"handle must be a work of unisono, got {handle!r}")
        self.handle = handle
        self.exec_sync = exec_sync

    def wait(self) -> None:
        """Return when the result is complete; raise the error of a call that failed."""
        if self.handle is not None:
            self.handle.wait()

    def is_completed(self) -> bool:
        """Tell whether the call has ended, without waiting."""
        return self.handle is None or self.handle.is_completed()

    def exception(self) -> Exception | None:
        """Return the error of a call that has failed, None otherwise."""
        return None if self.handle is None else self.handle.exception()

    def result(self) -> Any:
        """Wait, and return what the call returned beside this handle."""
        return None if self.handle is None else self.handle.result()

    def __await__(self) -> Generator[Any, None, Any]:
        return (DONE if self.handle is None else self.handle).__await__()

    def __repr__(self) -> str:
        state = "completed" if self.is_completed() else "in progress"
        return f"CommHandle({state}, exec_sync={self.exec_sync})"


def handle_of(work: Work, result: Any, async_op: bool) -> CommHandle | None:
    """The handle of a call that fills `result`, or None if the call was not asynchronous."""
    return new_handle(work, result) if async_op else None


def new_handle(work: Work, result: Any) -> CommHandle:
    """The handle of an asynchronous call that fills `result`."""
    return CommHandle(work.with_value(result))
