"""Works as torch wants them, around the core's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from unisono.core.engine import Work
from unisono.torch.backend import futures
from unisono.torch.backend.dynamo import leave_alone
from unisono.torch.backend.futures import Line

__all__ = ["FINISHED", "Message", "Pending", "Together"]

_NO_LIMIT = timedelta(0)  # and below: what torch passes where no limit is meant


@leave_alone
class _Finished(dist.Work):  # type: ignore[misc]
    """The work of every call that ended before it returned; one object serves them all.

    torch's functions ask it for nothing but `wait`: making a new one would cost as much as a third
    of a small call.
    """

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Tell that the call has ended."""
        return True

    def is_success(self) -> bool:
        """Tell that it ended well: otherwise it would have raised."""
        return True


FINISHED = _Finished()


@leave_alone
class Pending(dist.Work):  # type: ignore[misc]
    """A collective under way."""

    def __init__(self, work: Work, line: Callable[[], Line], for_python: bool) -> None:
        super().__init__()
        self._work = work
        self._line = line
        self._for_python = for_python
        self._future: Any = None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Return True when the result is in its place; raise what went wrong."""
        return self._work.wait(timeout if timeout > _NO_LIMIT else None)

    def synchronize(self) -> None:
        """Wait, for there is no stream that could."""
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
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Any:
        line = self._line()
        if self._for_python:
            return futures.for_python(self._work, line)
        return futures.for_cpp(self._work, line.run)


@leave_alone
class Message(Pending):
    """A message under way: it ends whenever its peer lets it, before or after others."""

    def __init__(self, work: Work, peer: int | None) -> None:
        dist.Work.__init__(self)
        self._work = work
        self._peer = peer
        self._future = None

    def source_rank(self) -> int:
        """The rank of the group that the message came from."""
        source = self._work.source
        if source is None:  # an engine may leave it out where it was asked for one rank
            source = self._peer
        return -1 if source is None else source

    _source_rank = source_rank

    def _make_future(self) -> Any:
        return futures.for_cpp(self._work, futures.in_a_thread)


class Together(Work):
    """Several calls as one: it has ended when all have."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works
        self.value = [tensor for work in works for tensor in work.value or ()]

    def _poll(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def _block(self, timeout: float | None) -> None:
        for work in self._works:
            work.wait(timeout)
