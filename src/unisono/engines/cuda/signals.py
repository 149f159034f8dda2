"""Words by which the streams of ranks wait for each other.

Each rank has a block of words in the memory of the host that all ranks share. A stream of one rank
waits for a word of its own block only, and the streams of the others write it. So a rank whose peer
is gone writes the word itself, and its stream goes on: CUDA's own events, which are shared between
processes, cannot be made to happen by anybody but their owner. Nothing on the GPU spins meanwhile.

Calls of a group have steps, which count up. Within a step each rank says that it is ready, and the
leader, rank 0, that it has begun and then that all is done:

    leader's stream                           stream of another rank
    wait until all are READY                  write READY, in the leader's block
    launch: write BEGUN,                      wait until its DONE
        work on the memory of all ranks,
        write DONE, in the block of each rank
        and its own PASSED                    write PASSED

A rank that gives the group up sets CANCELLED in the leader's block, where each launch looks after
it has written BEGUN and before it writes anything else. If BEGUN is not there then, no launch of
this step writes any more; else the rank waits for DONE before its memory is used again.

Words wrap around: one has reached a value if it is that value or up to 2^31 past it, for the driver
as for us. A block, in words of 32 bits:

    0 .. 63      READY of each rank, in the block of the leader
    64           GIVEN_UP: not 0 if this rank has given the group up
    65           DONE
    66           PASSED: the stream of this rank needs nothing of the step any more
    67 .. 69     BEGUN, CANCELLED and SKIPPED, in the block of the leader; see reduce.cu
    128 ..       slots for messages that this rank has sent, see messages.py: ready, taken, refused
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unisono.engines.cuda.gpu.driver import Driver
from unisono.engines.cuda.gpu.kernels import MAX_RANKS
from unisono.engines.cuda.gpu.prepared import STATE_BYTES, Batch, Operation, Permit

if TYPE_CHECKING:
    from unisono._native import SharedBlock

__all__ = ["BLOCK_BYTES", "LEADER", "SLOTS", "Block", "Signals", "slot_word"]

#: The rank that works for all.
LEADER = 0

BLOCK_BYTES = 16384
_GIVEN_UP, _DONE, _PASSED, _BEGUN, _CANCELLED, _SKIPPED = range(MAX_RANKS, MAX_RANKS + 6)
_FIRST_SLOT = 2 * MAX_RANKS
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
        self._on_device = 0  # not yet
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let streams forget it; from any thread."""
        if self._on_device:
            before = self._driver.enter()
            self._driver.unregister_host(self._memory.address)
            self._driver.leave(before)
            self._on_device = 0

    def address_of(self, word: int) -> int:
        """Where streams and kernels find a word."""
        if not self._on_device:
            with self._lock:  # several messages may be received at once, and CUDA registers it once
                if not self._on_device:
                    self._on_device = self._driver.register_host(self._memory.address, BLOCK_BYTES)
        return self._on_device + 4 * word

    def write_later(self, stream: int, word: int, value: int) -> None:
        """Let a stream write a word."""
        self._driver.write_word(stream, self.address_of(word), value % _WRAP)

    def delay(self, stream: int, word: int, value: int) -> None:
        """Let a stream wait until a word has reached a value."""
        self._driver.wait_word(stream, self.address_of(word), value % _WRAP)

    def reached(self, word: int, value: int) -> bool:
        """Whether a word has reached a value."""
        return (self.words[word] - value) % _WRAP < _WRAP // 2

    def release(self, word: int, value: int) -> None:
        """Let no stream wait any longer for this value."""
        if not self.reached(word, value):
            self.words[word] = value % _WRAP


class Signals:
    """The words of one group, as this rank uses them."""

    def __init__(self, driver: Driver, blocks: Sequence[Block], rank: int) -> None:
        self._blocks = blocks
        self._rank = rank
        self._own, self._leader = blocks[rank], blocks[LEADER]
        self._words = self._own.words
        self._others = [other for other in range(len(blocks)) if other != rank]

        def wait(word: int, late: int = 0) -> Operation:
            return Operation(True, self._own.address_of(word), -late)

        def write(block: Block, word: int) -> Operation:
            return Operation(False, block.address_of(word), 0)

        # A call may be in another stream than the one before.
        in_turn = wait(_PASSED, late=1)
        self._driver = driver
        self._state = 0
        passed = write(self._own, _PASSED)
        if rank == LEADER:
            done = [write(blocks[other], _DONE) for other in self._others] + [passed]
            self.wait_ready = driver.batch([in_turn, *(wait(other) for other in self._others)])
            self.tell_done = driver.batch(done)
            self._state = driver.allocate(STATE_BYTES)
            driver.clear(self._state, STATE_BYTES)
            at = self._own.address_of
            self.permit = Permit(
                at(_CANCELLED),
                at(_SKIPPED),
                at(_BEGUN),
                self._state,
                [one.address for one in done],
            )
        else:
            ready = write(self._leader, rank)
            self.tell_ready = driver.batch([in_turn, ready])
            self.wait_done = driver.batch([in_turn, ready, wait(_DONE)])
            self.tell_passed = driver.batch([passed])
            self.take_part = driver.batch([in_turn, ready, wait(_DONE), passed])

    def close(self) -> None:
        """Let streams forget the words."""
        for block in self._blocks:
            block.close()
        if self._state:
            self._driver.free(self._state)
            self._state = 0

    #: What streams of the leader do in a step.
    wait_ready: Batch
    tell_done: Batch
    permit: Permit
    #: What streams of the others do; the second and the last say that they are ready as well.
    tell_ready: Batch
    wait_done: Batch
    tell_passed: Batch
    take_part: Batch

    def delay(self, stream: int, step: int) -> None:
        """Let another stream of this rank wait until a step has passed."""
        self._own.delay(stream, _PASSED, step)

    # ---- what hosts ask and do ----

    def has_passed(self, step: int) -> bool:
        """Whether this rank's streams need nothing of a step any more."""
        return (self._words[_PASSED] - step) % _WRAP < _WRAP // 2  # asked in every call

    def first_not_passed(self, last: int) -> int:
        """The first step that this rank's streams may need; one past the last if there is none."""
        return last + 1 - (last - self._words[_PASSED]) % _WRAP

    def was_skipped(self, step: int) -> bool:
        """Whether the leader has not worked in this step, because the group was given up."""
        first = self._leader.words[_SKIPPED]
        return first != 0 and self.has_passed(step) and (step - first) % _WRAP < _WRAP // 2

    def are_ready(self, step: int) -> bool:
        """Whether all other ranks are ready; asked by the leader."""
        return all(self._own.reached(rank, step) for rank in self._others)

    def is_done(self, step: int) -> bool:
        """Whether a step is done for this rank, which is not the leader."""
        return self._own.reached(_DONE, step)

    def is_worked_on(self) -> bool:
        """Whether the leader may be working on a step that is not done for this rank."""
        begun, done = self._leader.words[_BEGUN], self._own.words[_DONE]
        return 0 < (begun - done) % _WRAP < _WRAP // 2

    def give_up(self) -> None:
        """Tell all that this rank does not go on in this group; no launch writes any more."""
        self._leader.words[_CANCELLED] = 1
        self._own.words[_GIVEN_UP] = 1

    def given_up(self) -> list[int]:
        """The other ranks that have given the group up."""
        return [rank for rank in self._others if self._blocks[rank].words[_GIVEN_UP]]

    def release(self, step: int) -> None:
        """Let no stream of this rank wait any longer for others, up to this step."""
        if self._rank == LEADER:
            for rank in self._others:
                self._own.release(rank, step)
        else:
            self._own.release(_DONE, step)


def slot_word(slot: int, place: int) -> int:
    """Which word of a block is one of the words of a message."""
    return _FIRST_SLOT + slot * _SLOT_WORDS + place
