"""Looks after calls that streams have not come to the end of: the host has left them already.

It keeps their memory until then. If a rank is lost meanwhile, or time is over, it lets this rank's
streams go on and says why: what they then read is not the result.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.errors import CommTimeout, UnisonoError

__all__ = ["Followed", "Watchdog"]

_LOOK_SECONDS = 0.002  # between two looks at the calls
_SEARCH_SECONDS = 0.1  # between two looks at the other ranks
_IDLE_SECONDS = 1.0  # that the thread stays without calls


@dataclass(eq=False)
class Followed:
    """A call that is in a stream."""

    end: Moment
    timeout: float
    what: str
    #: The error of a call that cannot end any more.
    find_fault: Callable[[], UnisonoError | None]
    #: Lets the stream go on after such an error; called again until it has.
    release: Callable[[UnisonoError], None]
    #: The memory of the call.
    kept: object = None
    began: float = field(default_factory=time.monotonic)


class Watchdog:
    """Follows the calls of one process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._calls: list[Followed] = []
        self._watching = False

    def follow(self, call: Followed) -> None:
        """Follow a call until its end has come."""
        with self._changed:
            self._drop_ended()
            self._calls.append(call)
            self._changed.notify_all()
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="unisono cuda", daemon=True).start()

    def _drop_ended(self) -> None:
        self._calls = [call for call in self._calls if not call.end.has_come()]

    def _watch(self) -> None:
        self._device.driver.enter()
        searched = 0.0
        while True:
            with self._changed:
                self._drop_ended()
                if not self._calls and not self._changed.wait_for(
                    lambda: bool(self._calls), _IDLE_SECONDS
                ):
                    self._watching = False
                    return
                calls = list(self._calls)
            now = time.monotonic()
            search = now - searched > _SEARCH_SECONDS
            if search:
                searched = now
            for call in calls:
                if call.end.failure is not None:
                    call.release(call.end.failure)
                elif search and (fault := _fault_of(call, now)) and not call.end.has_come():
                    _report(call, fault)
                    call.release(fault)
            time.sleep(_LOOK_SECONDS)


def _fault_of(call: Followed, now: float) -> UnisonoError | None:
    fault = call.find_fault()
    if fault is None and now - call.began > call.timeout:
        fault = CommTimeout(f"the GPU has not ended the call after {call.timeout:g} s")
    return fault


def _report(call: Followed, fault: UnisonoError) -> None:
    """Note the error, and print it: perhaps nobody waits for the call."""
    fault.add_note(f"in {call.what} on the GPU; what it has written is not the result")
    call.end.failure = fault
    notes = "; ".join(fault.__notes__)
    print(f"unisono: {fault}; {notes}", file=sys.stderr, flush=True)
