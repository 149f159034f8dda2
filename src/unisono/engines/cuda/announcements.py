"""What a rank tells the others of its call on the GPU: what it calls, and where its memory is.

Ranks compare their calls, so that all get an error or none does. This takes most of the time of a
short call. So one exchange of shared memory has everything: engine `shm` compares the description
of the call, and the bytes that go with it say which GPU the rank is on, what else has to be the
same on all ranks, where the memory is, and which blocks were freed since.

A rank tells of its calls at once and in the order in which it makes them, between the group's calls
on the CPU. So a call on the GPU where another rank makes one on the CPU is a mismatch.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from typing import NamedTuple

import numpy as np

from unisono.core.buffers import Buffer, view
from unisono.core.call import Call
from unisono.core.engine import Work
from unisono.engines.cuda.collectives import Places
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.sharing import EXPORT_BYTES, NOTHING, Export
from unisono.engines.cuda.scratch import Scratch
from unisono.engines.cuda.signals import BLOCK_BYTES, LEADER
from unisono.engines.shm.engine import Described, ShmEngine, described
from unisono.errors import ArgumentError, MismatchError

__all__ = ["Announcement", "Announcer", "Exchange", "Lending", "Telling", "Told"]

_COUNTS = struct.Struct("<qq")  # the share, and whether the caller gave counts
_GREETING = struct.Struct("<32sQQ")  # the GPU, the process, the place of its block of words
_FREED = struct.Struct("<4Q")  # numbers of blocks; 0 for none
_NONE_FREED = bytes(_FREED.size)
_NO_EXPORT = NOTHING.encoded()
_EDGES = np.cumsum(
    [_COUNTS.size, _GREETING.size, EXPORT_BYTES, EXPORT_BYTES, _FREED.size], dtype=int
).tolist()


class Lending(NamedTuple):
    """The memory of one rank in a call: where it has it itself, and what the leader opens."""

    places: Places
    source: Export | None
    destination: Export | None


class Told(NamedTuple):
    """What one rank has told."""

    share: int
    uneven: bool
    gpu: bytes
    process: int
    #: Where its block of words is.
    place: int
    source: Export
    destination: Export
    freed: list[int]

    @classmethod
    def every(cls, table: bytes) -> list[Told]:
        """What all ranks have encoded, the first one first."""
        length = _EDGES[-1]
        return [cls.decoded(table[at : at + length]) for at in range(0, len(table), length)]

    @classmethod
    def decoded(cls, data: bytes) -> Told:
        """What another rank has encoded."""
        counts, greeting, source, destination, end = _EDGES
        share, uneven = _COUNTS.unpack(data[:counts])
        given, taken = map(Export.decoded, (data[greeting:source], data[source:destination]))
        freed = [number for number in _FREED.unpack(data[destination:end]) if number]
        gpu, process, place = _GREETING.unpack(data[counts:greeting])
        return cls(share, bool(uneven), gpu, process, place, given, taken, freed)


class Telling(NamedTuple):
    """What one rank tells."""

    described: Described
    data: bytes


class Exchange:
    """Memory in which ranks tell each other of one call at a time."""

    def __init__(self, host: ShmEngine) -> None:
        self._own = np.zeros(_EDGES[-1], np.uint8)
        self._every = np.empty((host.size, _EDGES[-1]), np.uint8)
        self._data = b""
        self._tell = host.teller(view(self._own), view(self._every.reshape(-1)))

    def begin(self, telling: Telling, timeout: float, blocking: bool) -> Work:
        """Tell the others, and wait for them if the call is `blocking`."""
        if telling.data is not self._data:
            self._own[:] = np.frombuffer(telling.data, np.uint8)
            self._data = telling.data
        return self._tell(telling.described, timeout, blocking)

    def table(self) -> bytes:
        """What all ranks have told, the first one first."""
        return self._every.tobytes()


class Announcement:
    """A call that this rank has told of, or tells of as soon as somebody asks what all have."""

    def __init__(
        self, announcer: Announcer, call: Call, lending: Lending, telling: Telling
    ) -> None:
        self._announcer = announcer
        self.call = call
        self.lending = lending
        self.telling = telling
        self._exchange: Exchange | None = None
        self._work: Work | None = None
        self._table = b""

    def begin(self) -> None:
        """Tell of it, and do not wait for the others."""
        self._exchange = self._announcer.take_exchange()
        self._work = self._exchange.begin(self.telling, self.call.timeout, blocking=False)

    def table(self) -> bytes:
        """What all ranks have told, the first one first; raises a mismatch on all of them."""
        if not self._table:
            announcer = self._announcer
            try:
                if self._exchange is None or self._work is None:
                    self._table = announcer.tell(self.telling, self.call.timeout)
                else:
                    self._work.wait()
                    self._table = self._exchange.table()
                    announcer.give_exchange(self._exchange)
            except MismatchError:
                announcer.tell_again(Told.decoded(self.telling.data).freed)
                raise
        return self._table


class Announcer:
    """One rank's side, in one group."""

    def __init__(self, host: ShmEngine, device: Device) -> None:
        self._host = host
        self._is_leader = host.rank == LEADER
        self._device = device
        #: Whether the others have to know where memory is.
        self.lends = True
        self._lock = threading.Lock()
        self._sources, self._results = Scratch(device), Scratch(device)
        self._here = Exchange(host)
        self._spare: deque[Exchange] = deque()  # appending and popping are atomic
        self._told = 0  # how many of the freed blocks the others know of
        self._untold: list[int] = []  # some of them that they do not know of all the same
        place = host.allocate_block(BLOCK_BYTES)
        gpu = device.driver.identity.encode()
        self._greeting = _GREETING.pack(gpu, device.exports.process, place)

    def announce(self, call: Call) -> Announcement:
        """Make ready what others have to know of a call."""
        with self._lock:
            lending = self._lend(call) if self.lends else Lending(Places(0, 0), None, None)
            exports = [_NO_EXPORT if one is None else one.encoded() for one in lending[1:]]
            freed = self._next_freed()
        told = _FREED.pack(*freed, *[0] * (4 - len(freed))) if freed else _NONE_FREED
        counts = _COUNTS.pack(call.share, call.uneven)
        data = b"".join((counts, self._greeting, *exports, told))
        return Announcement(self, call, lending, Telling(described(call), data))

    def tell(self, telling: Telling, timeout: float) -> bytes:
        """What all ranks tell; not for two threads at a time."""
        self._here.begin(telling, timeout, blocking=True)
        return self._here.table()

    def take_exchange(self) -> Exchange:
        """One for a call for which no thread waits."""
        try:
            return self._spare.pop()
        except IndexError:
            return Exchange(self._host)

    def give_exchange(self, exchange: Exchange) -> None:
        """Keep one for later."""
        self._spare.append(exchange)

    def has_news(self, lending: Lending) -> bool:
        """Whether there is more to tell than was told with this memory."""
        exports = self._device.exports
        return not (
            self._told == len(exports.freed)
            and not self._untold
            and (lending[1] is None or exports.find(lending.places.source) is lending[1])
            and (lending[2] is None or exports.find(lending.places.destination) is lending[2])
        )

    def tell_again(self, freed: list[int]) -> None:
        """Tell of these blocks once more: the call that told of them was a mismatch."""
        with self._lock:
            self._untold += freed

    def close(self) -> None:
        """Free the memory that was lent; no stream uses it any more."""
        self._sources.close()
        self._results.close()

    def _next_freed(self) -> list[int]:
        """The next blocks to tell the others of."""
        again, self._untold = self._untold[:4], self._untold[4:]
        new = self._device.exports.freed[self._told : self._told + 4 - len(again)]
        self._told += len(new)
        return again + new

    def _lend(self, call: Call) -> Lending:
        """Say where the leader finds this rank's memory: where the caller has it, or in scratch."""
        source, destination = call.source, call.destination
        if call.op is not None:
            for buffer in (source, destination):
                _check_alignment(buffer)
        in_place = source and destination and source.address == destination.address
        # Parts move within the memory then; elsewhere each is read where its result goes.
        aside = bool(in_place) and call.verb == "all_to_all"
        start, given = self._place(source, self._sources, aside)
        if in_place and not aside and call.src.nbytes == call.dst.nbytes:
            return Lending(Places(start, start), given, given)
        to, taken = self._place(destination, self._results)
        return Lending(Places(start, to), given, taken)

    def _place(
        self, buffer: Buffer | None, scratch: Scratch, aside: bool = False
    ) -> tuple[int, Export | None]:
        """Where the memory of a buffer is for the leader, which needs no export of its own."""
        if buffer is None or not buffer.nbytes:
            return 0, None
        if not aside:
            if self._is_leader:
                return buffer.address, None
            export = self._device.exports.find(buffer.address)
            if export is not None:
                return buffer.address, export
        address, export = scratch.take(buffer.nbytes)
        return address, None if self._is_leader else export


def _check_alignment(buffer: Buffer | None) -> None:
    """Raise an error if a kernel could not read the elements: it would be the end of the leader."""
    if buffer is not None and buffer.count:
        dtype = buffer.dtype
        parts = 2 if dtype.kind == "complex" else 1
        if buffer.address % (dtype.itemsize // parts):
            raise ArgumentError(
                f"elements of {dtype.name} at address {buffer.address:#x} are not aligned, and a "
                "GPU cannot compute with them; pass a copy"
            )
