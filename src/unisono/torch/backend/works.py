"""Works as torch wants them, each around one work of the core."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from unisono.core.engine import DONE, Work
from unisono.torch.backend.direct import first_natively, native
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.futures import NativeFuture, Run, WorkFuture, run_in_new_thread

__all__ = ["FINISHED", "CollectiveWork", "MessageWork", "NativeMessageWork", "NativeWork"]

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

    def exception(self) -> None:
        """Return None: it ended well."""

    def result(self) -> list[Any]:
        """An empty list: the one object for all calls does not know their tensors."""
        return []

    def get_future(self) -> Any:
        """A future that is complete, with an empty list."""
        return WorkFuture.of(DONE.with_value([]), lambda job, ready: job())


FINISHED = _FinishedWork()


@skip
class CollectiveWork(dist.Work):  # type: ignore[misc]
    """A collective under way; `run` says where the callbacks of its future run."""

    _future: Any = None

    def __init__(self, work: Work, run: Run) -> None:
        super().__init__()
        self._work = work
        self._run = run

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
            self._future = WorkFuture.of(self._work, self._run)
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


# ---- calls of the native module: it makes these works, and sets `_call` --------------------------


def _core_work(self: Any, name: str) -> Any:
    """The work of the core, made on demand: for an error, a timeout, a question."""
    if name != "_work":
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    made = self._call.calls.work_of(self._call)
    return self.__dict__.setdefault("_work", made)  # another thread may have made one too


@skip
class NativeWork(CollectiveWork):
    """A collective under way, which the native thread runs unless somebody waits."""

    __init__ = dist.Work.__init__
    __getattr__ = _core_work
    wait = first_natively("wait")(CollectiveWork.wait)

    def result(self) -> list[Any]:
        """Wait, and return the tensors that hold the result."""
        return list(self._call.tensors) if self.wait() else []

    def get_future(self) -> Any:
        """A future of the tensors that hold the result; made when it is first asked for."""
        known = self.__dict__.get("_known_future")
        future = None if known is None else known()
        if future is None:
            future = NativeFuture(self, self._call.process_group.run_in_order)
            self._known_future = weakref.ref(future)  # weak: the future holds this work
            self._call.on_done(future.complete)
        return future


@skip
class NativeMessageWork(MessageWork):
    """A message under way."""

    __init__ = dist.Work.__init__
    __getattr__ = _core_work
    wait = first_natively("wait")(CollectiveWork.wait)
    _run = staticmethod(run_in_new_thread)

    def source_rank(self) -> int:
        """The rank of the group that the message came from."""
        peer: int = self._call.peer
        return peer

    _source_rank = source_rank


if native is not None:
    native.set_works(FINISHED, NativeWork, NativeMessageWork)
