"""Messages between ranks on one GPU.

The sender tells the receiver, by a message over engine `shm`, where its memory is and which slot of
its words belongs to this message. The receiver's stream waits until the slot says that the data are
ready, copies them, and writes that they are taken. Short messages are copied aside first, so that
the sender goes on at once: two ranks that first send and then receive do not wait for each other.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from unisono.core import dtypes
from unisono.core.buffers import Buffer, view
from unisono.core.call import Call
from unisono.core.engine import DONE, DRAIN_SECONDS, Work
from unisono.engines.common.executor import DeferredWork
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.engines.cuda.gpu.sharing import EXPORT_BYTES, NOTHING, Export
from unisono.engines.cuda.outbox import READY, REFUSED, TAKEN, Outbox, Signal
from unisono.engines.cuda.signals import BLOCK_BYTES, Block
from unisono.engines.cuda.watchdog import Followed, Watchdog
from unisono.engines.cuda.works import CudaWork
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError, Unsupported

__all__ = ["Messages"]

#: Up to so many bytes are copied aside.
_SHORT = 1 << 20
_RECORD = struct.Struct(f"<32sQIIiQ{EXPORT_BYTES}s")
#: A dtype that nobody sends: a receive into memory of the CPU is then a mismatch.
_RARE = np.dtype(ml_dtypes.float8_e8m0fnu)


class _Record(NamedTuple):
    gpu: bytes
    place: int  # of the sender's block
    slot: int
    number: int
    dtype: int
    elements: int
    export: bytes


class _Sent(Work):
    """A long message: its memory is free when it was taken."""

    def __init__(self, told: Work, signal: Signal, call: Call, delay: Callable[[], None]) -> None:
        super().__init__()
        self._told = told
        self._signal = signal
        self._call = call  # keeps its memory
        self._delay = delay

    def _poll(self) -> bool:
        return self._told.is_completed() and self._signal.has(TAKEN)

    def _block(self, timeout: float | None) -> None:
        self._told.wait(timeout)
        if self._signal.is_refused():
            raise _refusal(self._call)
        self._delay()


class Messages:
    """The messages of one rank in one group."""

    def __init__(self, host: ShmEngine, watchdogs: Callable[[Device], Watchdog]) -> None:
        self._host = host
        self._watchdogs = watchdogs
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._blocks: dict[int, Block] = {}  # of other ranks, by their places
        self._senders: dict[int, Device] = {}  # processes, and where their memory is open
        self._copies: list[Moment] = []  # from there, perhaps under way

    def close(self) -> None:
        """Leave the group; what was not received by now, or in a moment, never is."""
        if self._outbox is not None:
            self._outbox.close(DRAIN_SECONDS)
            self._outbox = None
        self._leave_senders()
        for block in self._blocks.values():
            block.close()
        self._blocks.clear()

    def _leave_senders(self) -> None:
        """Let their memory be closed, unless a stream still copies from there."""
        until = time.monotonic() + DRAIN_SECONDS
        while not all(map(Moment.has_come, self._copies)):
            if time.monotonic() > until:
                return
            time.sleep(1e-3)
        for process, device in self._senders.items():
            with device.entered():
                device.imports.leave(process)
        self._senders.clear()

    # ---- sending ----

    def send(self, device: Device, call: Call, stream: int, current: Callable[[], int]) -> Work:
        """Send, as soon as the stream is here."""
        source = call.src
        with self._lock:
            if self._outbox is None:
                self._outbox = Outbox(self._host, device)
            outbox = self._outbox
        lent = device.exports.find(source.address) if source.nbytes > _SHORT else None
        slot = outbox.take(0 if lent is not None else source.nbytes)
        signal = Signal(outbox.block, slot.index, slot.number)
        aside = lent is None
        if lent is None and source.nbytes:
            device.driver.copy(slot.address, source.address, source.nbytes, stream)
            lent = device.exports.find(slot.address)
        signal.write_later(stream, READY)
        record = _Record(
            device.driver.identity.encode(),
            outbox.place,
            slot.index,
            slot.number,
            source.dtype.code,
            source.count,
            (lent or NOTHING).encoded(),
        )
        told = self._tell(call, record)
        if not aside and not call.blocking:
            return _Sent(
                told, signal, call, lambda: self._await_taken(device, call, signal, current())
            )
        if call.blocking:
            told.wait()
        if aside:
            self._follow(device, Moment(device, stream), call, signal, TAKEN)
        else:
            self._await_taken(device, call, signal, stream)
        return DONE if call.blocking else told

    def _await_taken(self, device: Device, call: Call, signal: Signal, stream: int) -> None:
        """Let a stream wait until a message was taken."""
        # It could hold up the copy of one that we receive; the peer may wait for that first.
        self._await(signal, TAKEN, call, device.is_receiving)
        with device.entered():  # in whichever thread waits
            signal.delay(stream, TAKEN)
            self._follow(device, Moment(device, stream), call, signal, TAKEN)

    def _tell(self, call: Call, record: _Record) -> Work:
        caller = inner_caller(self._host, call.timeout, blocking=False, site=call.site)
        assert call.peer is not None
        return self._host.send(
            Call.send(caller, _as_rare(_RECORD.pack(*record)), call.peer, call.tag)
        )

    # ---- receiving ----

    def recv(self, device: Device, call: Call, stream: int, current: Callable[[], int]) -> Work:
        """Receive, as soon as the sender has told where its data are and the stream is here."""
        room = _as_rare(bytes(_RECORD.size))
        caller = inner_caller(self._host, call.timeout, blocking=False, site=call.site)
        told = self._host.recv(Call.recv(caller, room, call.peer, call.tag))
        if call.blocking:
            source, _ = self._take(device, call, told, room, stream, in_stream=True)
            done = _Received()
            done.source = source
            return done
        work = CudaWork(device, current)
        after = Moment(device, stream)

        def receive() -> None:
            own, end = None, None
            try:
                device.driver.enter_apart()
                own = device.take_stream()
                after.delay(own)
                # The GPU has few queues, see Device.may_wait: streams that wait could hold up those
                # by which this rank sends.
                work.source, end = self._take(device, call, told, room, own, in_stream=False)
            finally:
                device.count_receives(-1)
                if own is not None:
                    device.give_stream(own, end)
            work.has_begun(end)

        device.count_receives(1)
        work.meeting = deferred = DeferredWork(receive)
        threading.Thread(target=deferred.run, name="unisono message", daemon=True).start()
        return work

    def _take(
        self,
        device: Device,
        call: Call,
        told: Work,
        room: Buffer,
        stream: int,
        in_stream: bool,
    ) -> tuple[int, Moment]:
        told.wait()
        record = _Record(*_RECORD.unpack(room.array.tobytes()))
        sender = told.source if call.peer is None else call.peer
        assert sender is not None
        signal = Signal(self._block(device, record.place), record.slot, record.number)
        destination = call.dst
        if record.gpu != device.driver.identity.encode():
            _refuse(signal)
            raise Unsupported(
                f"rank {sender} sends from another GPU; nccl carries messages between GPUs, from "
                "the end of the group's first collective there: make one before"
            )
        if (record.dtype, record.elements) != (destination.dtype.code, destination.count):
            _refuse(signal)
            raise _mismatch(sender, record, destination)
        call = call._replace(peer=sender)
        if in_stream:
            signal.delay(stream, READY)
        else:
            self._await(signal, READY, call)
        if destination.count:
            source = self._address(device, Export.decoded(record.export))
            device.driver.copy(destination.address, source, destination.nbytes, stream)
        signal.write_later(stream, TAKEN)
        end = Moment(device, stream)
        with self._lock:
            self._copies = [copy for copy in self._copies if not copy.has_come()] + [end]
        self._follow(device, end, call, signal, READY)
        return sender, end

    def _await(
        self, signal: Signal, place: int, call: Call, needed: Callable[[], bool] = lambda: True
    ) -> None:
        """Let the host wait until a message has come so far, as long as that is needed."""
        until = time.monotonic() + call.timeout
        pause = 1e-5
        while needed() and not signal.has(place):
            time.sleep(pause)
            pause = min(1.5 * pause, 1e-3)
            fault = self._find_fault(signal, call)
            if fault is None and time.monotonic() > until:
                what = "sent" if place == READY else "taken"
                fault = CommTimeout(f"the GPU of rank {call.peer} has not {what} the message")
            if fault is not None:
                raise fault

    def _block(self, device: Device, place: int) -> Block:
        with self._lock:
            if self._outbox is not None and place == self._outbox.place:
                return self._outbox.block  # a message to itself
            if place not in self._blocks:
                memory = self._host.map_block(place, BLOCK_BYTES)
                self._blocks[place] = Block(device.driver, memory)
            return self._blocks[place]

    def _address(self, device: Device, export: Export) -> int:
        if export.process == device.exports.process:
            return device.exports.address_of(export)
        with self._lock:
            if export.process not in self._senders:
                # Another group with this process may end while the message is under way.
                self._senders[export.process] = device
                device.imports.join(export.process)
        return device.imports.open(export)

    # ---- faults ----

    def _follow(
        self, device: Device, end: Moment, call: Call, signal: Signal, awaited: int
    ) -> None:
        def release(error: UnisonoError) -> None:
            signal.release(awaited)

        self._watchdogs(device).follow(
            Followed(end, call, lambda: self._find_fault(signal, call), release)
        )

    def _find_fault(self, signal: Signal, call: Call) -> UnisonoError | None:
        peer = call.peer
        assert peer is not None
        if signal.is_refused():
            return _refusal(call)
        reason = self._host.lost_ranks().get(peer)
        return None if reason is None else PeerLost(f"rank {peer} {reason}", [peer])


class _Received(Work):
    """A message that is in the caller's stream."""

    def _poll(self) -> bool:
        return True

    def _block(self, timeout: float | None) -> None:
        return None


def _as_rare(data: bytes) -> Buffer:
    return view(np.frombuffer(bytearray(data), np.uint8).view(_RARE))


def _refuse(signal: Signal) -> None:
    """Tell the sender that its message does not fit, and let its stream go on."""
    signal.release(REFUSED)
    signal.release(TAKEN)


def _refusal(call: Call) -> MismatchError:
    assert call.peer is not None
    return MismatchError(f"rank {call.peer} expected another message than {call}", (call.peer,))


def _mismatch(sender: int, record: _Record, destination: Buffer) -> MismatchError:
    name = next(each.name for each in dtypes.DTYPES if each.code == record.dtype)
    return MismatchError(
        f"rank {sender} sent {name} x {record.elements}, but this rank receives "
        f"{destination.dtype.name} x {destination.count}",
        (sender,),
    )
