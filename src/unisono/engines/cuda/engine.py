"""Ranks are processes of one host that share a GPU; calls on the CPU's memory are engine `shm`'s.

The hosts compare each call over shared memory and tell each other where their tensors are. What
follows runs in streams: one rank works in the device memory of all, which CUDA shares between
processes, and streams wait for each other by words that the host can write as well. So no host
waits for a GPU, and no GPU waits for a rank that is gone.

Where each rank has a GPU of its own, nccl does their calls, see own_gpus.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from unisono.core import trace
from unisono.core.buffers import Buffer, devices
from unisono.core.call import Call
from unisono.core.engine import DONE, DRAIN_SECONDS, Engine, Work
from unisono.core.environment import Launch
from unisono.core.groups import Group
from unisono.core.trace import RankReport
from unisono.engines.common.executor import SerialExecutor
from unisono.engines.cuda.announcements import Announcement
from unisono.engines.cuda.connection import Connection
from unisono.engines.cuda.gpu import driver
from unisono.engines.cuda.gpu.device import Device, End, Moment, Waiting, device_at
from unisono.engines.cuda.meeting import Meeting
from unisono.engines.cuda.messages import Messages
from unisono.engines.cuda.own_gpus import OwnGpus
from unisono.engines.cuda.watchdog import Watchdog
from unisono.engines.cuda.works import CudaWork
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import NotReady, UnisonoError

__all__ = ["CudaEngine"]


class CudaEngine(Engine):
    """One rank's handle on a group whose tensors are on a GPU, or on the CPU."""

    name = "cuda"
    stands_on = "shm"
    devices = frozenset(["cpu", "cuda"])
    finds_call_sites = True  # when ranks disagree

    def __init__(self, host: ShmEngine, *, owns_host: bool, shares_order: bool = True) -> None:
        self._host = host
        self._owns_host = owns_host
        self._shares_order = shares_order  # with calls on the CPU
        self.rank = host.rank
        self.size = host.size
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._order = threading.Lock()  # of calls that the other ranks hear of, and that run apart
        self._meeting: Meeting | None = None
        self._messages = Messages(host, self._watchdog)
        self._watchdogs: dict[Device, Watchdog] = {}
        self._executor = SerialExecutor(f"{self.name}, rank {self.rank} of {self.size}")

    @classmethod
    def unavailable(cls) -> str | None:
        return ShmEngine.unavailable() or driver.missing()

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> CudaEngine:
        return cls(ShmEngine.open(launch, timeout), owns_host=True)

    @classmethod
    def beside(cls, engine: Engine, apart: str | None = None) -> CudaEngine:
        assert isinstance(engine, ShmEngine)
        if apart is None:
            return cls(engine, owns_host=False)
        return cls(engine.split(range(engine.size), apart), owns_host=True, shares_order=False)

    # ---- the verbs ----

    def broadcast(self, call: Call) -> Work:
        return self._collective(call, self._host.broadcast)

    def reduce(self, call: Call) -> Work:
        return self._collective(call, self._host.reduce)

    def all_reduce(self, call: Call) -> Work:
        return self._collective(call, self._host.all_reduce)

    def reduce_scatter(self, call: Call) -> Work:
        return self._collective(call, self._host.reduce_scatter)

    def gather(self, call: Call) -> Work:
        return self._collective(call, self._host.gather)

    def all_gather(self, call: Call) -> Work:
        return self._collective(call, self._host.all_gather)

    def scatter(self, call: Call) -> Work:
        return self._collective(call, self._host.scatter)

    def all_to_all(self, call: Call) -> Work:
        return self._collective(call, self._host.all_to_all)

    def barrier(self, call: Call) -> Work:
        return self._host.barrier(call)

    def send(self, call: Call) -> Work:
        return self._message(call, call.src, self._host.send, self._messages.send)

    def recv(self, call: Call) -> Work:
        return self._message(call, call.dst, self._host.recv, self._messages.recv)

    def _collective(self, call: Call, on_host: Callable[[Call], Work]) -> Work:
        buffer = call.destination or call.src
        if buffer.device == "cpu":
            return on_host(call)
        self._check_process()
        device = device_at(devices.device_index(buffer))
        with device.entered():
            return self._on_gpu(call, device, buffer)

    def _on_gpu(self, call: Call, device: Device, buffer: Buffer) -> Work:
        stream = devices.current_stream(buffer)
        device.check_stream(stream)
        meeting = self._meeting or self._meet(device)
        meeting.check_device(device)
        in_main = threading.current_thread() is _main
        # The caller's stream may be another one in another thread, under the same number.
        if call.blocking and in_main and self._executor.begin():
            try:
                waiting = device.may_wait(self, stream)
                announcement = _announce(meeting, call, waiting)
                _run(meeting, device, stream, None, waiting, announcement)
            finally:
                self._executor.end()
            return DONE
        after = Moment(device, stream)
        # Other threads make calls on several groups in any order, and most often in one stream. If
        # each call held that up, ranks could wait for each other; so there the host waits.
        waiting = None if call.blocking and not in_main else device.may_wait(self, None)
        call = call._replace(site=trace.call_site() or "")  # not found in the other thread
        work = CudaWork(device, lambda: devices.current_stream(buffer))

        def task(announcement: Announcement) -> None:
            own, end = device.take_stream(), None
            try:
                end = _run(meeting, device, own, after, waiting, announcement)
            finally:
                device.give_stream(own, end)
            work.has_begun(end)

        work.meeting = self._submit(meeting, device, call, waiting, task)
        if call.blocking:
            work.wait()
        return work

    def _submit(
        self,
        meeting: Meeting,
        device: Device,
        call: Call,
        waiting: Waiting | None,
        run: Callable[[Announcement], object],
    ) -> Work:
        """Run a call in this thread if that may be, else in another one.

        Either way the others hear of it before they hear of any call that this rank makes later.
        If no call on the CPU can come between, it is enough that they hear when the call runs.
        """
        if call.blocking and self._executor.begin():
            try:
                run(_announce(meeting, call, waiting))
            finally:
                self._executor.end()
            return DONE
        announcement = _announce(meeting, call, waiting)

        def run_apart() -> None:
            device.driver.enter_apart()
            run(announcement)

        with self._order:
            if self._shares_order:
                announcement.begin()
            work = self._executor.submit(run_apart, blocking=False)
        if call.blocking:
            work.wait()
        return work

    def _meet(self, device: Device) -> Meeting:
        with self._lock:
            if self._meeting is None:
                watchdog = self._watchdog(device)
                self._meeting = Meeting(self._host, device, watchdog)
            return self._meeting

    def _message(
        self,
        call: Call,
        buffer: Buffer,
        on_host: Callable[[Call], Work],
        on_gpu: Callable[..., Work],
    ) -> Work:
        if buffer.device == "cpu":
            return on_host(call)
        self._check_process()
        if self._meeting is not None and isinstance(self._meeting.joined, OwnGpus):
            return self._meeting.joined.message(call)
        device = device_at(devices.device_index(buffer))

        def current() -> int:
            return devices.current_stream(buffer)

        with device.entered():
            device.check_stream(current())
            return on_gpu(device, call, current(), current)

    def _check_process(self) -> None:
        """Raise an error in a forked child: the group that it would change is its parent's."""
        if os.getpid() != self._process:
            raise NotReady(
                "this process was forked after init and is not a rank of the job; start ranks with "
                "`unisono run` or unisono.spawn instead"
            )

    def _watchdog(self, device: Device) -> Watchdog:
        return self._watchdogs.setdefault(device, Watchdog(device))

    def repeat(self, call: Call) -> Callable[[Sequence[Any], int], bool] | None:
        buffer = call.destination or call.source
        connection = None if self._meeting is None else self._meeting.joined
        if not isinstance(connection, Connection) or buffer is None or buffer.device == "cpu":
            return None
        agreed = connection.last(call)
        if agreed is None:
            return None
        device = device_at(devices.device_index(buffer))
        timeout = self.timeout
        if call.timeout != timeout:
            return None  # the caller wanted another one for this call alone

        def again(tensors: Sequence[Any], number: int) -> bool:
            self._check_process()
            if self.timeout != timeout:
                return False  # the next such call is remembered with the new one
            if threading.get_ident() != _main.ident or not self._executor.begin():
                return False
            waiting = None
            try:
                stream = devices.current_stream_of(tensors[0])
                waiting = device.may_wait(self, stream)
                if waiting is None:
                    return False
                with device.entered():
                    device.check_stream(stream)
                    step = connection.run_again(agreed, stream, tensors, number)
                waiting.end = step or waiting.end
                return step is not None
            finally:
                if waiting is not None and waiting.end is None:
                    waiting.is_void = True
                self._executor.end()

        return again

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> CudaEngine:
        return CudaEngine(self._host.split(ranks, key), owns_host=True)

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[Engine, tuple[int, ...]]:
        self._leave_gpu()
        host, members = self._host.shrink(exclude)
        return CudaEngine(host, owns_host=True), members

    def close(self) -> None:
        self._leave_gpu()
        if self._owns_host:
            self._host.close()

    def _leave_gpu(self) -> None:
        self._executor.close(DRAIN_SECONDS)
        with self._lock:
            meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()
        for device in self._watchdogs:
            device.forget(self)
        self._messages.close()

    # ---- what the host's engine does ----

    @property
    def timeout(self) -> float:
        """Seconds that calls wait for other ranks unless they say otherwise."""
        return self._host.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._host.timeout = seconds

    @property
    def communicator(self) -> Any:
        """The native object, for ordinary calls on the CPU's memory."""
        return self._host.communicator

    def visible_gpus(self) -> Sequence[str]:
        return driver.visible_gpus()

    def attach(self, group: Group) -> None:
        self._host.attach(group)

    def fast_calls(self) -> int:
        return self._host.fast_calls()

    def work_of(self, pending: Any) -> Work:
        return self._host.work_of(pending)

    def explain(self, error: UnisonoError) -> None:
        self._host.explain(error)

    def shared_arrays(self, minimum: int) -> AbstractContextManager[None]:
        return self._host.shared_arrays(minimum)

    def exit(self) -> None:
        self._host.exit()

    def records(self) -> list[RankReport]:
        return self._host.records()


_main = threading.main_thread()


def _announce(meeting: Meeting, call: Call, waiting: Waiting | None) -> Announcement:
    try:
        return meeting.announce(call)
    except BaseException:
        if waiting is not None:
            waiting.fail()
        raise


def _run(
    meeting: Meeting,
    device: Device,
    stream: int,
    after: Moment | None,
    waiting: Waiting | None,
    announcement: Announcement,
) -> End:
    try:
        connection = meeting.connection(announcement)
        end = connection.run(announcement, stream, after, in_stream=waiting is not None)
    except BaseException:
        if waiting is not None:
            waiting.fail()
        raise
    if waiting is not None:
        waiting.end = end
    return end
