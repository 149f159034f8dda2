"""Shows calls to torch's profiler, where the user has imported torch and profiles.

A call is a span `unisono:all_reduce`, with its bytes, group, rank and dtype, and the shape of its
tensor if the profiler records shapes. A call that goes on after it has returned is shown twice, as
torch's own backends do: `unisono:all_reduce` lasts until it has ended, and in its first moment
there is `unisono:all_reduce.start`, which alone can have the details.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from unisono.core import fast

if TYPE_CHECKING:
    from unisono.core.call import Call
    from unisono.core.engine import Work
    from unisono.core.groups import Group

__all__ = ["Span", "is_on", "span"]


def _is_on() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.autograd._profiler_enabled())


#: Tells whether torch's profiler watches this thread.
is_on: Callable[[], bool] = getattr(fast.native, "is_profiled", _is_on)


class Span:
    """What the profiler shows of one call; `outer` lasts until a call that goes on has ended."""

    def __init__(self, outer: Any) -> None:
        self._outer = outer
        self._ended: Any = None

    def follow(self, work: Work) -> None:
        """Let the span of a call that goes on end with it."""
        if self._outer is not None:
            self._ended = sys.modules["torch"].futures.Future()
            self._outer._call_end_callbacks_on_future(self._ended)
            self._outer = None
            with _lock:
                _open.add(self)
            work.at_end(self._end)

    def _end(self) -> None:
        with _lock:
            if self in _open:
                _open.remove(self)
                self._ended.set_result(None)

    def give_up(self) -> None:
        """End the span of a call that could not be started."""
        if self._outer is not None:
            self._outer.__exit__(None, None, None)


_lock = threading.Lock()
_open: set[Span] = set()  # of calls that go on
_unfinished: list[Span] = []  # when their profiler stopped; kept, because to be freed is to end


@functools.cache
def _keep_unfinished(module: Any) -> None:
    """Never end a span after its profiler has stopped: torch would write into freed memory."""
    disable = module._disable_profiler

    @functools.wraps(disable)
    def forget_and_disable() -> Any:
        with _lock:
            _unfinished.extend(_open)
            _open.clear()
        return disable()

    module._disable_profiler = forget_and_disable


@contextlib.contextmanager
def span(call: Call, group: Group) -> Iterator[Span]:
    """Show a call while it is made."""
    torch = sys.modules["torch"]
    name, outer = f"unisono:{call.verb}", None
    if not call.blocking:
        _keep_unfinished(torch.autograd.profiler)
        outer = torch.autograd.profiler.record_function(name)
        outer.__enter__()
        name += ".start"
    made = Span(outer)
    try:
        with torch._C._profiler._RecordFunctionFast(name, *_details(torch, call, group)):
            yield made
    finally:
        made.give_up()


def _details(torch: Any, call: Call, group: Group) -> tuple[list[Any], dict[str, Any]]:
    """The tensor of a call, if it has one that torch can show, and facts about the call."""
    facts: dict[str, Any] = {
        "scope": "user_scope",  # as torch's own backends; otherwise it would count as an operator
        "collective": call.verb,
        "group": group.name,
        "rank": group.rank,
        "size": group.size,
    }
    data = call.source or call.destination
    if data is None:
        return [], facts
    facts |= {"bytes": data.nbytes, "dtype": data.dtype.name}
    return [data.owner] if isinstance(data.owner, torch.Tensor) else [], facts
