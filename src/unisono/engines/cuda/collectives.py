"""The collectives on one GPU: each rank reads what it needs from the memory of the others.

Everything here is put into a stream and runs later. Within a call a rank comes to three steps, and
tells those who wait for it: its source is ready; its part of a reduction is done; it has read what
it reads. A rank whose memory is read goes on when all its readers have come to the last step.

Bytes that a rank moves, for n ranks and a vector of B bytes: reductions read n sources once and
write the result once; all_reduce reduces 1/n of it (B read, B/n written) and copies the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from unisono.core.buffers import Buffer
from unisono.core.call import Call
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.sharing import EXPORT_BYTES, NOTHING, Export
from unisono.engines.cuda.scratch import Scratch
from unisono.engines.cuda.signals import Signals

__all__ = ["COLLECTIVES", "SMALL", "STEPS", "Lending", "Pass"]

#: Steps of one call.
STEPS = 3
_READY, _REDUCED, _READ = 1, 2, 3
#: Up to so many bytes each rank reduces the whole vector, from copies of all sources: then it waits
#: for others once instead of three times.
SMALL = 1 << 18
#: Parts of a vector begin where a thread of the kernel can load whole words of 16 bytes.
_ALIGNMENT = 16


class Lending(NamedTuple):
    """The memory of one rank that others read in a call."""

    source: Export = NOTHING
    #: Where its part of a reduction is, before the others copy it.
    result: Export = NOTHING

    def encoded(self) -> bytes:
        """In the bytes of two exports."""
        return self.source.encoded() + self.result.encoded()

    @classmethod
    def decoded(cls, data: bytes) -> Lending:
        """What another rank has encoded."""
        return cls(Export.decoded(data[:EXPORT_BYTES]), Export.decoded(data[EXPORT_BYTES:]))


class Pass:
    """One call of one rank, on its way through a stream."""

    def __init__(
        self,
        device: Device,
        signals: Signals,
        scratch: Scratch,
        rank: int,
        size: int,
        stream: int,
        first: int,
    ) -> None:
        self._device = device
        self._signals = signals
        self._scratch = scratch
        self.rank = rank
        self.size = size
        self.others = [(rank + away) % size for away in range(1, size)]
        self._stream = stream
        self._first = first  # the steps of this call come after it
        # What this rank lends: where, and whether it is the caller's memory.
        self._source = self._result = 0
        self._lends_callers = False
        #: What all ranks lend, and what each sends to each if that differs; see `lend`.
        self.lendings: Sequence[Lending] = ()
        self.counts: np.ndarray[tuple[int, int], np.dtype[np.int64]] | None = None

    # ---- before the ranks meet ----

    def lend(self, call: Call) -> Lending:
        """Say where others find this rank's memory: where the caller has it, or in a copy."""
        source = call.source
        if source is None or not source.nbytes:
            return Lending()
        lent = None if _is_copied(call) else self._device.exports.find(source.address)
        self._source = source.address
        if lent is None:
            self._source, lent = self._scratch.take(source.nbytes, self._stream)
            self._copy(self._source, source.address, source.nbytes)
        else:
            self._lends_callers = True
        if call.verb != "all_reduce" or source.nbytes <= SMALL:
            return Lending(lent)
        result = self._device.exports.find(call.dst.address)
        self._result = call.dst.address
        if result is None:
            self._result, result = self._scratch.take(call.dst.nbytes, self._stream)
        else:
            self._lends_callers = True
        return Lending(lent, result)

    # ---- steps ----

    def tell_ready(self, readers: Sequence[int]) -> None:
        """Tell the readers of this rank's source that it is there."""
        self._signals.announce(self._stream, readers, self._first + _READY)

    def source_of(self, rank: int) -> int:
        """The source of a rank, which is ready when the stream goes on."""
        if rank == self.rank:
            return self._source
        self._signals.delay(self._stream, [rank], self._first + _READY)
        return self._device.imports.open(self.lendings[rank].source)

    def tell_reduced(self) -> None:
        """Tell all ranks that this rank's part of the result is there."""
        self._signals.announce(self._stream, self.others, self._first + _REDUCED)

    def result_of(self, rank: int) -> int:
        """The vector of a rank in which its part of the result is."""
        if rank == self.rank:
            return self._result
        self._signals.delay(self._stream, [rank], self._first + _REDUCED)
        return self._device.imports.open(self.lendings[rank].result)

    def end(self, read_from: Sequence[int], readers: Sequence[int]) -> None:
        """Tell whom this rank has read from, and wait for those that read its memory.

        What they read in the scratch, only the scratch waits for.
        """
        last = self._first + _READ
        self._signals.announce(self._stream, read_from, last)
        self._scratch.lend(readers, last)
        if self._lends_callers:
            self._signals.delay(self._stream, readers, last)

    # ---- work ----

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        if nbytes and to != source:
            self._device.driver.copy(to, source, nbytes, self._stream)

    def copy(self, to: Buffer, start: int, source: int, source_start: int, count: int) -> None:
        """Copy elements to a place in a buffer, from a place in other memory."""
        if count:
            item = to.dtype.itemsize
            self._copy(to.address + start * item, source + source_start * item, count * item)

    def reduce(self, call: Call, to: int, sources: Sequence[int], start: int, count: int) -> None:
        """Combine a part of every source, in the order of ranks."""
        if count:
            dtype = call.src.dtype
            begin = start * dtype.itemsize
            places = [address + begin for address in sources]
            self._device.driver.reduce(dtype, call.operator, to, places, count, self._stream)


def _is_copied(call: Call) -> bool:
    """Whether others read a copy of this rank's source, which the call may then write over."""
    if call.verb == "all_reduce":
        return call.src.nbytes <= SMALL
    return call.verb == "all_to_all" and call.src.address == call.dst.address


# ---- the verbs -----------------------------------------------------------------------------------


def _broadcast(way: Pass, call: Call) -> None:
    if call.root == way.rank:
        way.tell_ready(way.others)
        way.copy(call.dst, 0, call.src.address, 0, call.dst.count)
        way.end([], way.others if call.dst.count else [])
    elif call.dst.count:
        assert call.root is not None
        way.copy(call.dst, 0, way.source_of(call.root), 0, call.dst.count)
        way.end([call.root], [])


def _reduce(way: Pass, call: Call) -> None:
    count = call.src.count
    if not count:
        return
    if call.root == way.rank:
        sources = [way.source_of(rank) for rank in range(way.size)]
        way.reduce(call, call.dst.address, sources, 0, count)
        way.end(way.others, [])
    else:
        assert call.root is not None
        way.tell_ready([call.root])
        way.end([], [call.root])


def _all_reduce(way: Pass, call: Call) -> None:
    count, item = call.src.count, call.src.dtype.itemsize
    if not count:
        return
    way.tell_ready(way.others)
    sources = [way.source_of(rank) for rank in range(way.size)]
    if call.src.nbytes <= SMALL:
        way.reduce(call, call.dst.address, sources, 0, count)
    else:
        starts = _aligned_starts(count, item, way.size)
        # This rank alone reads this part of any source, so the result may replace its own.
        own, length = starts[way.rank], starts[way.rank + 1] - starts[way.rank]
        into = way.result_of(way.rank)
        way.reduce(call, into + own * item, sources, own, length)
        way.tell_reduced()
        for rank in [way.rank, *way.others]:
            result = way.result_of(rank)
            way.copy(call.dst, starts[rank], result, starts[rank], starts[rank + 1] - starts[rank])
    way.end(way.others, way.others)


def _reduce_scatter(way: Pass, call: Call) -> None:
    starts = [0, *accumulate(call.sends)]
    if not starts[-1]:
        return
    way.tell_ready(way.others)
    sources = [way.source_of(rank) for rank in range(way.size)]
    way.reduce(call, call.dst.address, sources, starts[way.rank], call.dst.count)
    way.end(way.others, way.others)


def _gather(way: Pass, call: Call) -> None:
    assert call.root is not None
    if call.root != way.rank:
        if call.src.count:
            way.tell_ready([call.root])
            way.end([], [call.root])
        return
    _collect(way, call)
    way.end([rank for rank in way.others if call.receives[rank]], [])


def _all_gather(way: Pass, call: Call) -> None:
    readers = way.others if call.src.count else []
    way.tell_ready(readers)
    _collect(way, call)
    way.end([rank for rank in way.others if call.receives[rank]], readers)


def _collect(way: Pass, call: Call) -> None:
    """Copy the source of every rank to its part of the destination."""
    starts = [0, *accumulate(call.receives)]
    way.copy(call.dst, starts[way.rank], call.src.address, 0, call.src.count)
    for rank in way.others:
        if call.receives[rank]:
            way.copy(call.dst, starts[rank], way.source_of(rank), 0, call.receives[rank])


def _scatter(way: Pass, call: Call) -> None:
    assert call.root is not None
    if call.root == way.rank:
        starts = [0, *accumulate(call.sends)]
        readers = [rank for rank in way.others if call.sends[rank]]
        way.tell_ready(readers)
        way.copy(call.dst, 0, call.src.address, starts[way.rank], call.dst.count)
        way.end([], readers)
    elif call.dst.count:
        start = _start_in(way, call.root, call.dst.count)
        way.copy(call.dst, 0, way.source_of(call.root), start, call.dst.count)
        way.end([call.root], [])


def _all_to_all(way: Pass, call: Call) -> None:
    readers = [rank for rank in way.others if call.sends[rank]]
    way.tell_ready(readers)
    starts = [0, *accumulate(call.receives)]
    for rank in [way.rank, *way.others]:
        if call.receives[rank]:
            # Even parts are all as long as this one.
            start = _start_in(way, rank, call.receives[rank])
            way.copy(call.dst, starts[rank], way.source_of(rank), start, call.receives[rank])
    way.end([rank for rank in way.others if call.receives[rank]], readers)


def _start_in(way: Pass, rank: int, share: int) -> int:
    """Where in the source of a rank the part of this rank begins."""
    if way.counts is None:
        return share * way.rank
    return int(way.counts[rank, : way.rank].sum())


def _aligned_starts(count: int, item: int, size: int) -> list[int]:
    """Where each rank's part of a vector begins, and where the last one ends."""
    unit = max(1, _ALIGNMENT // item)
    share = -(-count // (size * unit)) * unit
    return [min(count, rank * share) for rank in range(size + 1)]


#: What each verb does, after all ranks have said what they lend.
COLLECTIVES: dict[str, Callable[[Pass, Call], None]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
