"""Looks after calls that streams have not come to the end of: the host has left them already.

It keeps their memory until then. If a rank is lost meanwhile, or time is over, it lets this rank's
streams go on and says why: what they then read is not the result.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from unisono.core.call import Call
from unisono.engines.cuda.gpu.device import Device, End
from unisono.errors import CommTimeout, UnisonoError

__all__ = ["Followed", "Watchdog"]

_LOOK_SECONDS = 0.002  # between two looks at the calls
_SEARCH_SECONDS = 0.1  # between two looks at the other ranks
_IDLE_SECONDS = 1.0  # that the thread stays without calls


class Followed:
    """A call that is in a stream; keeps the memory of the call."""

    __slots__ = ("began", "call", "end", "find_fault", "is_reported", "kept", "release")

    def __init__(
        self,
        end: End,
        call: Call,
        find_fault: Callable[[], UnisonoError | None],
        release: Callable[[UnisonoError], None],
        kept: object = None,
    ) -> None:
        self.end = end
        self.call = call
        #: Other tensors with the memory of the call.
        self.kept = kept
        #: The error of a call that cannot end any more.
        self.find_fault = find_fault
        #: Lets the stream go on after such an error; called again until it has.
        self.release = release
        self.began = time.monotonic()
        self.is_reported = False


class Watchdog:
    """Follows the calls of one process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._calls: deque[Followed] = deque()
        self._watching = False

    def follow(self, call: Followed) -> None:
        """Follow a call until its end has come."""
        with self._lock:
            while self._calls and _has_come(self._calls[0]):
                self._drop(self._calls.popleft())  # soon, because it frees memory
            self._calls.append(call)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="unisono cuda", daemon=True).start()

    def _drop_ended(self) -> None:
        calls, self._calls = self._calls, deque()
        for call in calls:
            if _has_come(call):
                self._drop(call)
            else:
                self._calls.append(call)

    def _drop(self, call: Followed) -> None:
        failure = call.end.failure
        if failure is not None:
            _report(call, failure)

    def _watch(self) -> None:
        self._device.driver.enter_apart()
        searched = 0.0
        ended = time.monotonic()
        while True:
            now = time.monotonic()
            with self._lock:
                self._drop_ended()
                calls = list(self._calls)
                if calls:
                    ended = now
                elif now - ended > _IDLE_SECONDS:
                    self._watching = False
                    return
            search = now - searched > _SEARCH_SECONDS
            if search:
                searched = now
            for call in calls:
                if call.end.failure is not None:
                    _report(call, call.end.failure)
                    call.release(call.end.failure)
                elif search and (fault := _fault_of(call, now)) and not _has_come(call):
                    call.end.failure = fault
                    _report(call, fault)
                    call.release(fault)
            del calls
            time.sleep(_LOOK_SECONDS)


def _has_come(call: Followed) -> bool:
    try:
        return call.end.has_come()
    except UnisonoError:
        # The GPU has failed: other calls may end all the same, and ranks be lost.
        return False


def _fault_of(call: Followed, now: float) -> UnisonoError | None:
    fault = call.find_fault()
    if fault is None and now - call.began > call.call.timeout:
        fault = CommTimeout(f"the GPU has not ended the call after {call.call.timeout:g} s")
    return fault


_lock = threading.Lock()


def _report(followed: Followed, fault: UnisonoError) -> None:
    """Note the error, and print it: perhaps nobody waits for the call."""
    with _lock:
        if followed.is_reported:
            return
        followed.is_reported = True
        # One error may end several calls.
        if not hasattr(fault, "__notes__") or not any(_NOTE in note for note in fault.__notes__):
            fault.add_note(f"in {followed.call}{_NOTE}")
            notes = "; ".join(fault.__notes__)
            print(f"unisono: {fault}; {notes}", file=sys.stderr, flush=True)


_NOTE = " on the GPU; what it has written is not the result"
