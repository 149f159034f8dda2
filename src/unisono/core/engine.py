"""What an engine is: twelve verbs on flat buffers; each takes a `Call` and returns a `Work`.

Adding an engine means one folder or file with a subclass of `Engine` and one line in the entry
points `unisono.engines`. Everything else (lists, shapes, objects, tuples, handles) is built above.
"""

from __future__ import annotations

import numbers
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from unisono.core.call import Call
from unisono.core.dtypes import ReduceOp
from unisono.errors import ArgumentError, CommTimeout, UnisonoError, Unsupported

if TYPE_CHECKING:
    from unisono.core.environment import Launch
    from unisono.core.groups import Group
    from unisono.core.trace import RankReport

__all__ = ["DONE", "DRAIN_SECONDS", "AllOf", "Engine", "ReduceOp", "Work"]

#: How long `close` lets calls that are under way go on before it gives them up.
DRAIN_SECONDS = 2.0


class Work(ABC):
    """A call under way. It may be waited for twice, and from any thread.

    An engine writes `_block` and `_poll`; the rest (callbacks, the note about where) is here.

    >>> def total():
    ...     x = np.full(2, dist.get_rank())
    ...     work = dist.all_reduce(x, async_op=True)
    ...     work.wait()
    ...     return work.is_completed(), x.tolist()
    >>> unisono.spawn(total, 2)
    [(True, [1, 1]), (True, [1, 1])]
    """

    #: Which rank a message came from, once it has come.
    source: int | None
    #: What `result` returns; the face that started the call sets it with `with_value`.
    value: Any
    _at_end: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.source = None
        self.value = None
        self._where: Callable[[], str] | None = None
        # A callback may wait for this work, so the lock can be taken again by its owner.
        self._lock = threading.RLock()
        self._settled = False
        self._error: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []

    @abstractmethod
    def _poll(self) -> bool:
        """Tell without waiting whether the call has ended, well or badly."""

    @abstractmethod
    def _block(self, timeout: float | None) -> None:
        """Wait for the end; raise the call's error, or CommTimeout if `timeout` passes first."""

    def with_value(self, value: Any) -> Work:
        """The work of the same call, whose result is `value`."""
        self.value = value
        return self

    def note(self, where: Callable[[], str]) -> None:
        """Let the error of this call, if it has one, end with what `where` returns."""
        self._where = where

    def then(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the call is first seen to have ended well."""
        with self._lock:
            if not self._settled:
                self._callbacks.append(callback)
                return
        if self._error is None:
            callback()

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run `callback`, the only one, when the call has ended, well or badly.

        That is when its end is first seen, before anybody hears of it; and also earlier, in another
        thread, where the engine can tell. So it may run twice.
        """
        with self._lock:
            if not self._settled:
                self._at_end = callback
                return
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
            if error is None:
                try:
                    # One at a time: a callback that waits for this work runs those after it.
                    while self._callbacks:
                        self._callbacks.pop(0)()
                except Exception as failure:
                    error = failure
            if self._settled:
                return
            if error is not None and self._where is not None:
                error.add_note(self._where())
            self._callbacks.clear()
            self._error = error
            if self._at_end is not None:
                self._at_end()
            self._settled = True


class _Finished(Work):
    """The work of a call that ended before it returned; it cannot be changed."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value
        self._settled = True
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"{name} of finished work cannot be set; see with_value")
        super().__setattr__(name, value)

    def _poll(self) -> bool:
        return True

    def _block(self, timeout: float | None) -> None:
        return None

    def with_value(self, value: Any) -> Work:
        return _Finished(value)

    def note(self, where: Callable[[], str]) -> None:
        return None  # it has ended well

    def then(self, callback: Callable[[], None]) -> None:
        callback()


#: The work of every call that ended before it returned and whose result nobody asks for.
DONE: Work = _Finished()


class AllOf(Work):
    """Several calls as one: it has ended when all have."""

    def __init__(self, works: Sequence[Work], value: Any = None) -> None:
        super().__init__()
        self._works = works
        self.value = value

    def _poll(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def _block(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


class Engine(ABC):
    """The twelve verbs of one rank in one group, plus `rank`, `size` and `close`.

    Rules that hold for every verb:

    - A `Call` has been checked by `dispatch`. Its buffers are flat; source and destination may be
      the same memory.
    - `call.blocking` says that the caller waits: the engine may run the call in the caller's
      thread, and then returns finished work or raises.
    - `call.timeout` is the only deadline, and `call.checked` says whether ranks compare this call.
    - Calls on one engine object come in one order; different engine objects are independent.
    - Roots and peers are ranks of this group. A reduction combines operands in rank order.
    """

    name: ClassVar[str]
    #: Whose memory the engine reaches: "cpu", "cuda", ...
    devices: ClassVar[frozenset[str]] = frozenset(["cpu"])
    #: The engine that this one can be beside, to reach more memory for the same ranks.
    stands_on: ClassVar[str | None] = None
    #: Whether the engine finds the user's line itself, so that `dispatch` need not look for it.
    finds_call_sites: ClassVar[bool] = False
    rank: int
    size: int
    #: Seconds that calls wait for other ranks unless they say otherwise.
    timeout: float
    #: Each rank's host, as in `Launch.hosts`; empty where all ranks are on this one.
    hosts: Sequence[str] = ()
    #: The native module's own object, for faces that make ordinary calls on it; None if there is
    #: none. `work_of` and `explain` do for such calls what the engine does for others.
    communicator: Any = None

    @classmethod
    def unavailable(cls) -> str | None:
        """Say why this engine cannot run here and how to fix that; None if it can."""
        return None

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        """The engine called `name:detail`, for an engine that has variants."""
        raise ArgumentError(f"engine {cls.name!r} has no variant {detail!r}")

    @classmethod
    @abstractmethod
    def open(cls, launch: Launch, timeout: float) -> Engine:
        """Join the world that `launch` describes."""

    @classmethod
    def beside(cls, engine: Engine, apart: str | None = None) -> Engine:
        """Make an engine of the same ranks as `engine`, which goes on; see `stands_on`.

        Called by each rank when it first needs it. The new engine is closed before the other. Calls
        of both are in one order, unless the new one gets one `apart`, by a name; then all ranks
        call this together.
        """
        raise Unsupported(f"engine {cls.name!r} cannot stand on another one")

    @abstractmethod
    def broadcast(self, call: Call) -> Work:
        """Copy the source of the root to the destination of every rank."""

    @abstractmethod
    def reduce(self, call: Call) -> Work:
        """Combine every source into the destination of the root."""

    @abstractmethod
    def all_reduce(self, call: Call) -> Work:
        """Combine every source into the destination of every rank."""

    @abstractmethod
    def reduce_scatter(self, call: Call) -> Work:
        """Combine every source and leave part `rank` of the result in the destination."""

    @abstractmethod
    def gather(self, call: Call) -> Work:
        """Join every source in the destination of the root."""

    @abstractmethod
    def all_gather(self, call: Call) -> Work:
        """Join every source in the destination of every rank."""

    @abstractmethod
    def scatter(self, call: Call) -> Work:
        """Distribute the source of the root."""

    @abstractmethod
    def all_to_all(self, call: Call) -> Work:
        """Send part j of the source to rank j, and receive part i of the destination from i."""

    @abstractmethod
    def send(self, call: Call) -> Work:
        """Send the source to the peer; ends when the source may be written again."""

    @abstractmethod
    def recv(self, call: Call) -> Work:
        """Receive from the peer, or from any rank; `work.source` says from whom."""

    @abstractmethod
    def barrier(self, call: Call) -> Work:
        """End when every rank has called it."""

    def repeat(self, call: Call) -> Callable[[Sequence[Any], int], bool] | None:
        """A short way to make a blocking call again that has just ended; None if there is none.

        It takes tensors with the same memory, which it keeps as long as they are used, and the
        number of the call; and tells whether it has made it.
        """
        return None

    @abstractmethod
    def split(self, ranks: Sequence[int], key: str) -> Engine:
        """Make the engine of the subgroup `ranks`; called by its members only.

        `key` is the same on all members and new for this world.
        """

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[Engine, tuple[int, ...]]:
        """Make the engine of the ranks that are alive and not excluded; called by all of these.

        Returns it with the ranks of this group that are in it. Afterwards this engine can only be
        closed, and not before the new one is.
        """
        raise Unsupported(
            f"engine {self.name!r} cannot shrink a group; engines 'shm' and 'threads' can"
        )

    def local_ranks(self) -> Sequence[int]:
        """The ranks of this group that run on this host, in rising order."""
        identities = [host.split()[0] for host in self.hosts]
        return [
            rank
            for rank in range(self.size)
            if not identities or identities[rank] == identities[self.rank]
        ]

    def visible_gpus(self) -> Sequence[str]:
        """The GPUs that this rank may use, each by a name that is the same in every process."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Leave the group; closing twice is allowed."""

    def attach(self, group: Group) -> None:  # noqa: B027 - most engines need not do anything
        """Learn whose engine this is; called once, when the group is made."""

    def fast_calls(self) -> int:
        """How many collectives were called past `dispatch`, see `core.fast`."""
        return 0

    def work_of(self, pending: Any) -> Work:
        """The work of a call that was started past `dispatch`."""
        raise Unsupported(f"engine {self.name!r} has no native calls")

    def explain(self, error: UnisonoError) -> None:  # noqa: B027 - most engines keep no records
        """Add to an error what all ranks called last."""

    def shared_arrays(self, minimum: int) -> AbstractContextManager[None]:
        """A context in which NumPy puts arrays of `minimum` bytes where peers read them.

        Engines whose peers cannot do that leave NumPy as it is.
        """
        return nullcontext()

    def exit(self) -> None:  # noqa: B027 - most engines need not do anything
        """Note that this process is about to end, before `close`: peers may ask how it ended."""

    def records(self) -> list[RankReport]:
        """What each rank of the job called last; empty on engines that keep no records."""
        return []
