"""This process's GPU: its driver, the memory it shares, and streams and events to use again."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Protocol

from unisono.engines.cuda.gpu import driver
from unisono.engines.cuda.gpu.driver import PER_THREAD, Driver
from unisono.engines.cuda.gpu.sharing import Exports, Imports
from unisono.errors import UnisonoError, Unsupported

__all__ = ["Device", "End", "Moment", "Waiting", "device_at"]


class End(Protocol):
    """The end of what a call does in a stream."""

    #: Why what the call has written is not what it should be; set before it comes.
    failure: UnisonoError | None

    def has_come(self) -> bool:
        """Whether the stream has got there; it does not come back from there."""

    def delay(self, stream: int) -> None:
        """Let another stream go on only after it; from any thread."""


class Moment:
    """A point in a stream, which streams wait for and the host asks about."""

    def __init__(self, device: Device, stream: int) -> None:
        self._device = device
        self._event = device.take_event()  # its own, as long as it lives
        self.stream = stream
        #: Why what the stream did before it is not what it should be; set before it comes.
        self.failure: UnisonoError | None = None
        device.driver.record(self._event, stream)

    def has_come(self) -> bool:
        """Whether the stream has got there; it does not come back from there."""
        return self._device.driver.has_happened(self._event)

    def delay(self, stream: int) -> None:
        """Let another stream go on only after it; from any thread."""
        if stream != self.stream or stream == PER_THREAD:
            with self._device.entered():
                self._device.driver.wait_event(stream, self._event)

    def __del__(self) -> None:
        self._device.give_event(self._event)


class _Entered:
    """A GPU is that of a thread, which has another one again afterwards, or none, as before."""

    __slots__ = ("_before", "_driver")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        self._before = self._driver.enter()

    def __exit__(self, *error: object) -> None:
        self._driver.leave(self._before)


class Waiting:
    """That a stream waits for the other ranks of a group."""

    def __init__(self, stream: int | None) -> None:
        self.stream = stream  # the caller's; None for one of ours
        #: What it waits for, as soon as that is known.
        self.end: End | None = None
        self.is_void = False

    def serves(self, stream: int | None) -> bool:
        """Whether the next call in this stream can use it again."""
        return stream is not None and self.stream == stream and not self.is_void

    def fail(self) -> None:
        """Note that there is no such call; the stream may still wait for the one before."""
        self.is_void = self.end is None

    def is_over(self) -> bool:
        """Whether it does not wait any more."""
        return self.is_void or (self.end is not None and self.end.has_come())


class Device:
    """One GPU; all groups of the process use it."""

    def __init__(self, made: Driver) -> None:
        self.driver = made
        self.exports = Exports(made)
        self.imports = Imports(made, self.exports)
        self._events: deque[int] = deque()  # to use again; appending and popping are atomic
        self._streams: list[tuple[int, End]] = []
        self._lock = threading.Lock()
        self._waiting: dict[object, Waiting] = {}  # the last of each group
        self._receives = 0  # under way, and not in a stream yet
        self._probe = 0  # an event that has happened

    def failure(self) -> UnisonoError | None:
        """What every call of the driver fails with after a kernel has spoiled the context.

        No stream goes on then, and no word of the host's memory says so.
        """
        try:
            with self.entered():
                self._probe = self._probe or self.driver.create_event()
                self.driver.has_happened(self._probe)
        except UnisonoError as error:
            return error
        return None

    def entered(self) -> _Entered:
        """Let this be the GPU of a thread of the caller meanwhile."""
        return _Entered(self.driver)

    def check_stream(self, stream: int) -> None:
        """Raise an error if the stream only notes what it is told."""
        if self.driver.is_capturing(stream):
            raise Unsupported(
                "a CUDA graph is being captured, and engine 'cuda' has no part in one: hosts take "
                "part in each call; capture what is between the calls"
            )

    def may_wait(self, group: object, stream: int | None) -> Waiting | None:
        """Let a stream wait for other ranks of a group, or None: then the host has to.

        The GPU has few queues, and streams share them: one that waits can hold up another one. If
        two groups had such streams, in another order on another rank, none would ever go on. And
        the sender of a message waits until this rank has copied it.
        """
        if self._receives:
            return None
        known = self._waiting.get(group)
        if known is not None and known.serves(stream) and len(self._waiting) == 1:
            return known  # its end is that of the last call
        with self._lock:
            for other, waiting in list(self._waiting.items()):
                if waiting.is_over():
                    del self._waiting[other]
                elif other is not group and (stream is None or waiting.stream != stream):
                    return None
            made = self._waiting[group] = Waiting(stream)
        return made

    def count_receives(self, change: int) -> None:
        """Note that a message is to be received, or that its copy is in a stream."""
        with self._lock:
            self._receives += change

    def is_receiving(self) -> bool:
        """Whether a message is to be received that is not in a stream yet."""
        return self._receives > 0

    def forget(self, group: object) -> None:
        """No stream waits for a group that is over."""
        with self._lock:
            self._waiting.pop(group, None)

    def take_event(self) -> int:
        """An event for a `Moment`."""
        try:
            return self._events.pop()
        except IndexError:
            return self.driver.create_event()

    def give_event(self, event: int) -> None:
        """Keep an event for later."""
        self._events.append(event)

    def take_stream(self) -> int:
        """A stream that has nothing to do, for one call."""
        with self._lock:
            for index, (stream, last) in enumerate(self._streams):
                if last.has_come():
                    del self._streams[index]
                    return stream
        return self.driver.create_stream()

    def give_stream(self, stream: int, last: End | None) -> None:
        """Keep a stream, which is free once `last` has come; without one, at the end of it all."""
        if last is None:
            last = Moment(self, stream)
        with self._lock:
            self._streams.append((stream, last))


_devices: dict[int, Device] = {}
_lock = threading.Lock()


def device_at(ordinal: int) -> Device:
    """The GPU of this number."""
    with _lock:
        found = _devices.get(ordinal)
        if found is None:
            found = _devices[ordinal] = Device(driver.CudaDriver(ordinal))
    return found


# CUDA does not work in a forked child, which has no world either.
os.register_at_fork(after_in_child=_devices.clear)
