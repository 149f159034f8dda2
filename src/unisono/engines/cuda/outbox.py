"""The slots of messages: words that tell how far each is, and memory for short ones."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.signals import BLOCK_BYTES, SLOTS, Block, slot_word
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import UnisonoError

__all__ = ["READY", "REFUSED", "TAKEN", "Outbox", "Signal"]

#: The words of a slot; their values are numbers of messages.
READY, TAKEN, REFUSED = 0, 1, 2
_LOOK_SECONDS = 1e-3


class _Slot:
    """The words of one message at a time, and the memory of a short one."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.number = 0
        self.address = 0
        self.nbytes = 0


class Outbox:
    """The slots of one rank, for the messages that it sends."""

    def __init__(self, host: ShmEngine, device: Device) -> None:
        self.place = host.allocate_block(BLOCK_BYTES)
        self.block = Block(device.driver, host.map_block(self.place, BLOCK_BYTES))
        self._device = device
        self._lock = threading.Lock()
        self._slots = [_Slot(index) for index in range(SLOTS)]
        # To free memory, CUDA waits for all streams, which may wait for other ranks.
        self._outgrown: list[int] = []

    def take(self, nbytes: int) -> _Slot:
        """A slot whose last message was taken, with memory for so many bytes."""
        with self._lock:
            slot = next((slot for slot in self._slots if self._is_free(slot)), None)
            if slot is None:
                raise UnisonoError(f"{SLOTS} messages of this rank have not been received yet")
            slot.number += 1
        if nbytes > slot.nbytes:
            if slot.address:
                self._outgrown.append(slot.address)
            slot.nbytes = 1 << (nbytes - 1).bit_length()
            slot.address = self._device.driver.allocate(slot.nbytes)
        return slot

    def _is_free(self, slot: _Slot) -> bool:
        return self.block.reached(slot_word(slot.index, TAKEN), slot.number)

    def close(self, seconds: float) -> None:
        """Free the memory, when all messages were taken or this time has passed."""
        until = time.monotonic() + seconds
        while not all(map(self._is_free, self._slots)) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        with self._device.entered():
            for address in (*self._outgrown, *(slot.address for slot in self._slots)):
                if address:
                    self._device.driver.free(address)
        self.block.close()


class Signal(NamedTuple):
    """The words of one message."""

    block: Block
    slot: int
    number: int

    def write_later(self, stream: int, place: int) -> None:
        """Let a stream say that the message has come so far."""
        self.block.write_later(stream, slot_word(self.slot, place), self.number)

    def delay(self, stream: int, place: int) -> None:
        """Let a stream wait until the message has come so far."""
        self.block.delay(stream, slot_word(self.slot, place), self.number)

    def release(self, place: int) -> None:
        """Say so at once."""
        self.block.release(slot_word(self.slot, place), self.number)

    def has(self, place: int) -> bool:
        """Whether the message has come so far."""
        return self.block.reached(slot_word(self.slot, place), self.number)

    def is_refused(self) -> bool:
        """Whether the receiver expected another message."""
        return self.block.words[slot_word(self.slot, REFUSED)] == self.number
