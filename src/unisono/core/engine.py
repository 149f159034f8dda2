"""What an engine is: twelve verbs on flat buffers, each of which returns a `Work`.

Adding an engine means one file with a subclass of `Engine` and one line in the entry points
`unisono.engines`. Everything else (lists, uneven shapes, objects, tuples, handles) is built above.
"""

from __future__ import annotations

import numbers
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from unisono.core.dtypes import ReduceOp
from unisono.errors import ArgumentError, CommTimeout, UnisonoError, Unsupported

if TYPE_CHECKING:
    from unisono.core.buffers import Buffer
    from unisono.core.environment import Launch
    from unisono.core.trace import Rank

__all__ = ["DONE", "Counts", "Engine", "ReduceOp", "Work"]

#: How many elements belong to each rank; None means equal shares.
Counts = Sequence[int] | None


class Work(ABC):
    """A call under way. It may be waited for twice, and from any thread.

    An engine writes `_block` and `_poll`; the rest (callbacks, the place for errors) is here.
    """

    def __init__(self) -> None:
        self.where = ""
        self.source: int | None = None  # which rank a message came from, once it has come
        self.value: Any = None  # what `result` gives; the face that started the call sets it
        self._lock = threading.Lock()
        self._settled = False
        self._error: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []

    @abstractmethod
    def _poll(self) -> bool:
        """Tell without waiting whether the call has ended, well or badly."""

    @abstractmethod
    def _block(self, timeout: float | None) -> None:
        """Wait for the end; raise the call's error, or CommTimeout if `timeout` passes first."""

    def then(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the call is first seen to have ended well."""
        with self._lock:
            if not self._settled:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Return True when the result is in its place; raise what went wrong.

        A `timeout` (in seconds) that passes raises `CommTimeout` and leaves the call under way.
        """
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        given: object = timeout
        # Written so that NaN fails it.
        if given is not None and not (isinstance(given, numbers.Real) and float(given) >= 0):
            raise ArgumentError(f"timeout is {given!r}; give seconds, 0 or more, or a timedelta")
        if not self._settled:
            try:
                self._block(timeout)
            except CommTimeout:
                # `timeout` passed, or the deadline. The call may have ended just after the former.
                if not self.is_completed():
                    raise
            except UnisonoError as error:
                if not self._poll():
                    raise
                self._settle(error)
            else:
                self._settle(None)
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> Any:
        """Wait, and return what the call was for: the tensors that hold its result."""
        self.wait()
        return self.value

    def __await__(self) -> Generator[Any, None, Any]:
        """`await work` waits without blocking the event loop, and gives the result."""
        import asyncio  # few need it, and it is slow to load

        return asyncio.get_running_loop().run_in_executor(None, self.result).__await__()

    def is_completed(self) -> bool:
        """Tell whether the call has ended, without waiting."""
        if not self._settled and self._poll():
            self.exception()
        return self._settled

    def exception(self) -> Exception | None:
        """Return the error of a call that has ended badly, None otherwise."""
        if not self._settled and self._poll():
            try:
                self._block(0)
            except CommTimeout as error:
                self._settle(error if self._poll() else None)
            except UnisonoError as error:
                self._settle(error)
            else:
                self._settle(None)
        return self._error

    def _settle(self, error: Exception | None) -> None:
        """Note the outcome once, and run the callbacks in the thread that saw it first.

        A callback that fails has not put the result in its place, so its error is the call's.
        """
        with self._lock:
            if self._settled:
                return
            if error is None:
                try:
                    for callback in self._callbacks:
                        callback()
                except Exception as failure:
                    error = failure
            if error is not None and self.where:
                error.add_note(self.where)
            self._callbacks.clear()
            self._error = error
            self._settled = True


class _Done(Work):
    """The work of a call that ended before it returned; one object serves them all."""

    def __init__(self) -> None:
        super().__init__()
        self._settled = True

    def _poll(self) -> bool:
        return True

    def _block(self, timeout: float | None) -> None:
        return None

    def then(self, callback: Callable[[], None]) -> None:
        callback()


DONE: Work = _Done()


class Engine(ABC):
    """The twelve verbs of one rank in one group, plus `rank`, `size` and `close`.

    Rules that hold for every verb:

    - Buffers are flat and have been checked by `dispatch`. `src` and `dst` may be the same memory.
    - `blocking` says that the caller will wait at once: the engine may run the call in the
      caller's thread, and then returns finished work or raises.
    - Calls on one engine object come in one order; different engine objects are independent.
    - Roots and peers are ranks of this group. A reduction combines operands in rank order.
    """

    name: ClassVar[str]
    #: Whose memory the engine reaches: "cpu", "cuda", ...
    devices: ClassVar[frozenset[str]] = frozenset(["cpu"])
    rank: int
    size: int
    timeout: float
    #: Whether the caller sees to it that ranks agree on their calls, so that the engine need not.
    trusting: bool = False

    @classmethod
    def unavailable(cls) -> str | None:
        """Say why this engine cannot run here and what would mend that; None if it can."""
        return None

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        """The engine called `name:detail`, for an engine that comes in several kinds."""
        raise ArgumentError(f"engine {cls.name!r} has no kind {detail!r}")

    @classmethod
    @abstractmethod
    def open(cls, launch: Launch, timeout: float) -> Engine:
        """Join the world that `launch` describes."""

    @abstractmethod
    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        """Copy `src` of the root to `dst` of every rank (`src` is None elsewhere)."""

    @abstractmethod
    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        """Combine every `src` into `dst` of the root (`dst` is None elsewhere)."""

    @abstractmethod
    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        """Combine every `src` into `dst` of every rank."""

    @abstractmethod
    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        """Combine every `src` and leave part `rank` of it in `dst`."""

    @abstractmethod
    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        """Join every `src` in `dst` of the root; `counts` matters on the root only."""

    @abstractmethod
    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        """Join every `src` in `dst` of every rank."""

    @abstractmethod
    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        """Deal `src` of the root out; `counts` matters on the root only."""

    @abstractmethod
    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        """Send part j of `src` to rank j, and receive part i of `dst` from rank i."""

    @abstractmethod
    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        """Send `src` to `peer`; ends when `src` may be written again."""

    @abstractmethod
    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        """Receive into `dst` from `peer`, or from any rank; `work.source` says from whom."""

    @abstractmethod
    def barrier(self, blocking: bool) -> Work:
        """End when every rank has called it."""

    @abstractmethod
    def split(self, ranks: Sequence[int], key: str) -> Engine:
        """Make the engine of the subgroup `ranks`; called by its members only.

        `key` is the same on all members and new for this world.
        """

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[Engine, tuple[int, ...]]:
        """Make the engine of the ranks that are alive and not excluded; called by all of these.

        Returns it with the ranks of this group that are in it. This engine is of no more use, but
        for `close`, which the new one may rely on not to be called before its own.
        """
        raise Unsupported(
            f"engine {self.name!r} cannot shrink a group; engines 'shm' and 'threads' can"
        )

    @abstractmethod
    def close(self) -> None:
        """Leave the group; closing twice is allowed."""

    def exit(self) -> None:  # noqa: B027 - few engines have anything to say
        """Hear, before `close`, that this process is about to end: others may ask how."""

    def records(self) -> list[Rank]:
        """What each rank of the job called last; empty on engines that keep no records."""
        return []
