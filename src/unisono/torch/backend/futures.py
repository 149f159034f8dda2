"""Futures of calls under way, and the thread that completes them and runs their callbacks.

A callback may start calls itself (PowerSGD does), in a thread that races with the one that trains.
To give all ranks one order nevertheless, each group has one `CallbackThread`, which completes
futures and runs callbacks strictly in the order in which they were asked for, on every rank alike.
Calls that callbacks start have their own order (see `ProcessGroupBase.group_for_this_thread`).
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import FunctionType
from typing import Any

import torch

from unisono.core.engine import Work
from unisono.errors import UnisonoError, remember
from unisono.torch.backend.direct import native

__all__ = [
    "CallbackThread",
    "NativeFuture",
    "Run",
    "WorkFuture",
    "current_callback_thread",
    "keep_interrupts",
    "run_in_new_thread",
]

#: Runs a job, now or later; the flag says whether the job can run without any job before it.
Run = Callable[[Callable[[], None], bool], None]

#: The callback threads of this process, by thread id.
_threads: dict[int, CallbackThread] = {}


class CallbackThread:
    """A thread that runs one job after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._torch_threads = torch.get_num_threads()
        # A daemon: a thread that waits for other ranks must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._serve, name=f"unisono {name}", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], None], ready: bool) -> None:
        """Run `job` after all jobs before it; a `ready` job of a callback runs immediately.

        Otherwise a callback that waits for such a job would wait forever.
        """
        if not (ready and current_callback_thread() is self):
            with self._closing:
                if not self._closed:
                    self._jobs.put(job)
                    return
        job()  # the thread of a closed group ends, and so have all calls of that group

    def close(self, seconds: float) -> None:
        """End after the jobs so far, and wait up to `seconds` for that."""
        with self._closing:
            self._closed = True
            self._jobs.put(None)
        if current_callback_thread() is not self:
            self._thread.join(seconds)

    def _serve(self) -> None:
        number = threading.get_ident()
        _threads[number] = self
        if native is not None:
            native.set_callback_thread(True)  # its calls have a group of their own
        torch.set_num_threads(self._torch_threads)  # OpenMP keeps the number for each thread
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds tensors, and the next one may come much later
        del _threads[number]


def current_callback_thread() -> CallbackThread | None:
    """The callback thread that this code runs in; None in all other threads."""
    return _threads.get(threading.get_ident()) if _threads else None


def run_in_new_thread(job: Callable[[], None], ready: bool) -> None:
    """Run `job` in a thread of its own: messages end in any order, so none waits for another."""
    threading.Thread(target=job, name="unisono message", daemon=True).start()


class _Failure:
    """What a future holds instead of a value, because torch cannot set an error from Python.

    Python code gets the error itself, by `unwrap`. C++ does not unwrap: it shows the value's text,
    or looks for tensors in it, which raises the error there too (see `keep_interrupts`).
    """

    def __init__(self, error: BaseException) -> None:
        if isinstance(error, UnisonoError):
            remember(error)
        self.error = error
        self.text = "".join(traceback.format_exception_only(error)).strip()  # with its notes

    def __str__(self) -> str:
        return "".join(traceback.format_exception(self.error)).strip()

    def __reduce__(self) -> Any:
        raise self.error

    @staticmethod
    def unwrap(value: Any) -> Any:
        """Raise the error; torch calls this with the value of a future that has failed."""
        raise value.error


def keep_interrupts(communicator: Any) -> None:
    """Let a Ctrl-C that comes while DDP waits for a future in C++ be a KeyboardInterrupt.

    There C++ asks a Python function of torch which tensors the value of the future holds, by
    pickling the value. A Ctrl-C that is pending would be raised in that function, and C++ makes a
    RuntimeError of whatever it raises. So a native function takes its place, which keeps a Ctrl-C
    for later; it also saves the pickling.
    """
    module: Any = torch._jit_internal
    theirs = getattr(module, "_extract_tensors", None)
    if isinstance(theirs, FunctionType):  # not yet replaced, and still there in this torch
        module._extract_tensors = communicator.tensor_extractor(torch.Tensor, _Failure, theirs)


class WorkFuture(torch.futures.Future):  # type: ignore[misc]
    """The future of a call; `run` says where callbacks run.

    torch's own future runs a callback in the thread that attaches it or in the one that completes
    the future, whichever comes last: that may differ between ranks.
    """

    _devices: Sequence[torch.device] = ()  # GPUs that the result is on

    def __init__(self, run: Run, devices: Sequence[torch.device] = ()) -> None:
        torch._C.Future.__init__(self, list(devices))
        self._run = run
        self._devices = devices
        self._complete = threading.Event()

    @classmethod
    def of(cls, work: Work, run: Run) -> WorkFuture:
        """The future of the result of a call."""
        future = cls(run, sorted({one.device for one in work.value or () if one.is_cuda}, key=str))
        if work.is_completed():
            future._fill(work.result)  # at once, as in torch: callbacks are run in order anyway
        else:
            run(lambda: future._fill(work.result), True)
        return future

    def wait(self) -> Any:
        """Return its value, or raise its error; Ctrl-C interrupts it, unlike torch's own."""
        self._complete.wait()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> WorkFuture:
        """A future of what `callback` returns, which gets this one when it is complete."""
        child = WorkFuture(self._run, self._devices)

        def answer() -> Any:
            if self._devices:
                with contextlib.suppress(Exception):  # the callback gets it from this future
                    torch._C.Future.wait(self)  # the stream of the callback, not the host
            return callback(self)

        def run_callback() -> None:
            self._wait_for_end()
            child._fill(answer)

        self._run(run_callback, self._has_ended())
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run `callback` with this future when it is complete; its errors are lost, as in torch."""
        self.then(callback)

    def _wait_for_end(self) -> None:
        self._complete.wait()

    def _has_ended(self) -> bool:
        return self._complete.is_set()

    def _fill(self, make: Callable[[], Any]) -> None:
        """Complete it with what `make` returns or raises.

        A result on a GPU is complete when a stream has come so far, which is one of its own here:
        whoever waits for the future lets a stream wait for that one.
        """
        with contextlib.ExitStack() as streams:
            for device in self._devices:
                streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
            self._complete_with(make)
        self._complete.set()

    def _complete_with(self, make: Callable[[], Any]) -> None:
        try:
            value = make()
        except BaseException as error:  # those who wait must also learn of a SystemExit
            self._set_unwrap_func(_Failure.unwrap)
            value = _Failure(error)
        torch._C.Future.set_result(self, value)


class NativeFuture(WorkFuture):
    """The future of a call in the native module, which completes it from its own thread.

    That is for C++ alone, for example DDP, which waits in C++. Python code gets its answers from
    the work.
    """

    def __init__(self, work: Any, run: Run) -> None:
        torch._C.Future.__init__(self, [])
        self._run = run
        self._work = work

    def complete(self) -> None:
        """Tell C++ of the outcome; the native module calls this when the call has ended."""
        self._complete_with(self._work.result)

    def done(self) -> bool:
        """Tell whether the call has ended."""
        ended: bool = self._work.is_completed()
        return ended

    def wait(self) -> Any:
        """Return its value, or raise its error; Ctrl-C interrupts it, unlike torch's own."""
        return self._work.result()

    def value(self) -> Any:
        """Return its value, or raise its error; only for a call that has ended."""
        return self._work.result() if self._work.is_completed() else super().value()

    def _wait_for_end(self) -> None:
        with contextlib.suppress(Exception):  # the callback gets it from the future
            self._work.wait()

    def _has_ended(self) -> bool:
        return self.done()
