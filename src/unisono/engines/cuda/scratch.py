"""Device memory of one rank in one group, for tensors whose own memory the leader cannot reach.

A place is free again when the call that used it has passed, and the calls of a group follow one
another in its streams, so there is one place for sources and one for results.
"""

from __future__ import annotations

from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.sharing import Export

__all__ = ["Scratch"]

_SMALLEST = 1 << 20


class Scratch:
    """One place, which grows."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._address = 0
        self._nbytes = 0
        self._outgrown: list[int] = []  # calls under way may still use them

    def take(self, nbytes: int) -> tuple[int, Export]:
        """Memory for one call, and what the leader opens it by."""
        if self._nbytes < nbytes:
            if self._address:
                self._outgrown.append(self._address)
            self._nbytes = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
            self._address = self._device.driver.allocate(self._nbytes)
        export = self._device.exports.find(self._address)
        assert export is not None  # what we allocate can be shared
        return self._address, export

    def close(self) -> None:
        """Free the memory; no stream uses it any more."""
        for address in (*self._outgrown, self._address):
            if address:
                self._device.driver.free(address)
        self._outgrown.clear()
        self._address = self._nbytes = 0
