"""Words by which the streams of ranks wait for each other.

Each rank has a block of words in the memory of the host that all ranks share. A stream of one rank
waits for a word of its own block only, and the streams of the others write it. So a rank whose peer
is gone writes the word itself, and its stream goes on: CUDA's own events, which are shared between
processes, cannot be made to happen by anybody but their owner. Nothing on the GPU spins meanwhile.

Words count up and wrap around: one has reached a value if it is that value or up to 2^31 past it,
for the driver as for us. A block, in words of 32 bits:

    0 .. 63      how far each rank is in this group
    64           not 0 if this rank has given the group up
    128 ..       slots for messages that this rank has sent, see messages.py: ready, taken, refused
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from unisono.engines.cuda.gpu.driver import Driver
from unisono.engines.cuda.gpu.kernels import MAX_SOURCES

if TYPE_CHECKING:
    from unisono._native import SharedBlock

__all__ = ["BLOCK_BYTES", "SLOTS", "Block", "Signals", "slot_word"]

BLOCK_BYTES = 16384
_GIVEN_UP = MAX_SOURCES
_FIRST_SLOT = 2 * MAX_SOURCES
_SLOT_WORDS = 4
#: Messages of one rank that may be under way.
SLOTS = (BLOCK_BYTES // 4 - _FIRST_SLOT) // _SLOT_WORDS
_WRAP = 1 << 32


class Block:
    """The words of one rank, as this process and its streams reach them."""

    def __init__(self, driver: Driver, memory: SharedBlock) -> None:
        self._driver = driver
        self._memory = memory  # keeps it mapped
        self.words = (ctypes.c_uint32 * (BLOCK_BYTES // 4)).from_address(memory.address)
        self._on_device = driver.register_host(memory.address, BLOCK_BYTES)

    def close(self) -> None:
        """Let streams forget it; from any thread."""
        self._driver.enter()
        self._driver.unregister_host(self._memory.address)

    def write_later(self, stream: int, word: int, value: int) -> None:
        """Let a stream write a word."""
        self._driver.write_word(stream, self._on_device + 4 * word, value % _WRAP)

    def delay(self, stream: int, word: int, value: int) -> None:
        """Let a stream wait until a word has reached a value."""
        self._driver.wait_word(stream, self._on_device + 4 * word, value % _WRAP)

    def reached(self, word: int, value: int) -> bool:
        """Whether a word has reached a value."""
        return (self.words[word] - value) % _WRAP < _WRAP // 2

    def release(self, word: int, value: int) -> None:
        """Let no stream wait any longer for this value."""
        if not self.reached(word, value):
            self.words[word] = value % _WRAP


class Signals:
    """The words of one group, as this rank uses them."""

    def __init__(self, blocks: Sequence[Block], rank: int) -> None:
        self._blocks = blocks
        self._rank = rank
        self._own = blocks[rank]

    def close(self) -> None:
        """Let streams forget the words."""
        for block in self._blocks:
            block.close()

    def announce(self, stream: int, ranks: Iterable[int], step: int) -> None:
        """Let the stream tell these ranks that this one has come to `step`."""
        for rank in ranks:
            self._blocks[rank].write_later(stream, self._rank, step)

    def delay(self, stream: int, ranks: Iterable[int], step: int) -> None:
        """Let the stream wait until these ranks have come to `step`."""
        for rank in ranks:
            self._own.delay(stream, rank, step)

    def release(self, step: int) -> None:
        """Let no stream of this rank wait any longer for a step up to this one."""
        for rank in range(len(self._blocks)):
            self._own.release(rank, step)

    def give_up(self) -> None:
        """Tell all that this rank does not go on in this group."""
        self._own.words[_GIVEN_UP] = 1

    def given_up(self) -> list[int]:
        """The other ranks that have given the group up."""
        return [
            rank
            for rank, block in enumerate(self._blocks)
            if rank != self._rank and block.words[_GIVEN_UP]
        ]


def slot_word(slot: int, place: int) -> int:
    """Which word of a block is one of the words of a message."""
    return _FIRST_SLOT + slot * _SLOT_WORDS + place
