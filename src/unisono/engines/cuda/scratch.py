"""Device memory of one rank in one group, from which the others read what it has put there.

There are two places, used in turn. So the next call need not wait until everybody has read this
one's, as it would in memory of the caller's: whoever uses a place again waits for its last readers.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.sharing import Export
from unisono.engines.cuda.signals import Signals

__all__ = ["Scratch"]

_SMALLEST = 1 << 20


class _Place:
    def __init__(self) -> None:
        self.address = 0
        self.nbytes = 0
        self.export: Export | None = None
        self.readers: Sequence[int] = ()
        self.step = 0


class Scratch:
    """The places of one rank."""

    def __init__(self, device: Device, signals: Signals) -> None:
        self._device = device
        self._signals = signals
        self._places = (_Place(), _Place())
        self._turn = 0
        self._taken: list[_Place] = []
        self._outgrown: list[int] = []  # peers may still read them

    def take(self, nbytes: int, stream: int) -> tuple[int, Export]:
        """Memory to write in this stream, and what others open it by; `lend` names its readers."""
        self._turn = 1 - self._turn
        place = self._places[self._turn]
        self._signals.delay(stream, place.readers, place.step)
        place.readers = ()
        self._taken.append(place)
        if place.nbytes < nbytes:
            if place.address:
                self._outgrown.append(place.address)
            place.nbytes = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
            place.address = self._device.driver.allocate(place.nbytes)
            place.export = self._device.exports.find(place.address)
        assert place.export is not None  # what we allocate can be shared
        return place.address, place.export

    def lend(self, readers: Sequence[int], step: int) -> None:
        """Say who reads what this call has taken, and the step that each reaches afterwards."""
        for place in self._taken:
            place.readers, place.step = readers, step
        self._taken.clear()

    def await_readers(self, stream: int) -> None:
        """Let the stream wait until nobody reads here any more."""
        for place in self._places:
            self._signals.delay(stream, place.readers, place.step)

    def close(self) -> None:
        """Free the memory; the group is over."""
        for address in (*self._outgrown, *(place.address for place in self._places)):
            if address:
                self._device.driver.free(address)
        self._outgrown.clear()
        self._places = (_Place(), _Place())
