"""Works as torch wants them, each around one work of the core."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unisono.core.engine import Work
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.futures import Run, WorkFuture, future_for_cpp, run_in_new_thread

__all__ = ["FINISHED", "CollectiveWork", "MessageWork"]

_NO_LIMIT = timedelta(0)  # torch passes this, or less, where it means no limit


@skip
class _FinishedWork(dist.Work):  # type: ignore[misc]
    """The work of every call that ended before it returned; one object serves them all.

    torch's functions only call its `wait`, and a new object would cost a third of a small call.
    """

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Return immediately."""
        return True

    def is_completed(self) -> bool:
        """Tell that the call has ended."""
        return True

    def is_success(self) -> bool:
        """Tell that it ended well: otherwise it would have raised."""
        return True


FINISHED = _FinishedWork()


@skip
class CollectiveWork(dist.Work):  # type: ignore[misc]
    """A collective under way; `run` says where the callbacks of its future run."""

    def __init__(self, work: Work, run: Run) -> None:
        super().__init__()
        self._work = work
        self._run = run
        self._future: Any = None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Return True when the result is in its place; raise what went wrong."""
        return self._work.wait(timeout if timeout > _NO_LIMIT else None)

    def synchronize(self) -> None:
        """Wait: there is no stream that could."""
        self._work.wait()

    def is_completed(self) -> bool:
        """Tell whether the call has ended, without waiting."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Tell whether the call has ended well."""
        return self._work.is_completed() and self._work.exception() is None

    def exception(self) -> Exception | None:
        """The error of a call that has ended badly, None otherwise."""
        return self._work.exception()

    def result(self) -> list[Any]:
        """Wait, and return the tensors that hold the result."""
        tensors: list[Any] = self._work.result()
        return tensors

    def get_future(self) -> Any:
        """A future of the tensors that hold the result; made when it is first asked for."""
        if self._future is None:
            # C++ has no frame: if it called, this is the frame of the code that called C++, which
            # does not name this method. A wrong guess would cost what `future_for_cpp` describes.
            by_python = "get_future" in sys._getframe(1).f_code.co_names
            make = WorkFuture.of if by_python else future_for_cpp
            self._future = make(self._work, self._run)
        return self._future


@skip
class MessageWork(CollectiveWork):
    """A message under way; it may end before messages that were started earlier."""

    def __init__(self, work: Work, peer: int | None) -> None:
        super().__init__(work, run_in_new_thread)
        self._peer = peer

    def source_rank(self) -> int:
        """The rank of the group that the message came from."""
        source = self._work.source
        if source is None:  # an engine may leave it out where it was asked for one rank
            source = self._peer
        return -1 if source is None else source

    _source_rank = source_rank
