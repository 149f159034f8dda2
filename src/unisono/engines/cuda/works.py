"""Works of calls on a GPU: to wait for one is to let the caller's stream wait, not the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

from unisono.core.engine import Work
from unisono.engines.cuda.gpu.device import Device, End, Moment
from unisono.errors import UnisonoError

__all__ = ["CudaWork"]


class CudaWork(Work):
    """A call that the hosts compare apart, and that then runs in a stream of its own."""

    def __init__(self, device: Device, current_stream: Callable[[], int]) -> None:
        super().__init__()
        self._device = device
        self._current_stream = current_stream
        #: The part of the hosts; whoever makes this sets it.
        self.meeting: Work | None = None
        self._end: End | None = None
        #: When what follows, such as a copy back to the caller's tensor, has ended as well.
        self._followed: list[Moment] = []

    def has_begun(self, end: End) -> None:
        """Note that the call is in its stream, in which it ends at this moment."""
        self._end = end

    def then(self, callback: Callable[[], None]) -> None:
        """As of every work; who waits in another stream later waits for what this does, too."""

        def run() -> None:
            callback()
            with self._device.entered():
                self._followed.append(Moment(self._device, self._current_stream()))

        super().then(run)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Let the caller's stream wait for the result; the host only waits for the other hosts."""
        super().wait(timeout)
        self._check()  # once more: it may have failed since
        self._delay()  # and each stream has to wait
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        """The same for `await`: another thread waits for the hosts, and only for them.

        The stream that waits, and copies a result back, is the current one of this thread.
        """
        import asyncio  # few need it, and it is slow to load

        def meet() -> None:
            assert self.meeting is not None
            with contextlib.suppress(UnisonoError):  # raised below
                self.meeting.wait()

        yield from asyncio.get_running_loop().run_in_executor(None, meet).__await__()
        return self.result()

    def exception(self) -> Exception | None:
        """Return the error of a call that has ended badly, also after a wait for it."""
        failure = None if self._end is None else self._end.failure
        return failure or super().exception()

    def _poll(self) -> bool:
        if self.meeting is None or not self.meeting.is_completed():
            return False
        return self._end is None or self._end.has_come()

    def _block(self, timeout: float | None) -> None:
        assert self.meeting is not None
        self.meeting.wait(timeout)
        self._check()
        self._delay()

    def _check(self) -> None:
        if self._end is not None and self._end.failure is not None:
            raise self._end.failure

    def _delay(self) -> None:
        if self._end is not None:
            stream = self._current_stream()
            for end in (self._end, *self._followed):
                end.delay(stream)
