"""What the hosts tell each other before each call: what they call, and where their memory is.

Ranks compare their calls, so that all get an error or none does. This takes most of the time of a
short call. So one exchange of shared memory has everything: the description of the call, the
exports of source and destination, and blocks that were freed since. And what ranks have agreed on
once is remembered, with what the leader launches for it: if all say the same again, that is all
there is to do. Counts have no room there: ranks that have some exchange them in each call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.trace import call_site
from unisono.engines.common import consistency
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.common.reductions import Array
from unisono.engines.cuda.collectives import Places, launches, work
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.prepared import PreparedLaunch
from unisono.engines.cuda.gpu.sharing import EXPORT_BYTES, NOTHING, Export
from unisono.engines.cuda.signals import LEADER, Signals
from unisono.engines.shm.engine import ShmEngine

__all__ = ["Agreed", "Agreement", "Lending"]

_FREED = struct.Struct("<4Q")  # numbers of blocks; 0 for none
_NONE_FREED = bytes(_FREED.size)
_NO_EXPORT = NOTHING.encoded()
_REMEMBERED = 1024  # of each kind


class Lending(NamedTuple):
    """The memory of one rank in a call: where it has it itself, and what the leader opens."""

    places: Places
    source: Export | None
    destination: Export | None


class Agreed(NamedTuple):
    """What ranks have agreed on in one call, and what they said for it."""

    #: Without its memory, which may go.
    call: Call
    lending: Lending
    mine: bytes
    table: bytes
    launches: list[PreparedLaunch]


class Agreement:
    """One rank's side, in one group."""

    def __init__(
        self, host: ShmEngine, device: Device, signals: Signals, processes: Sequence[int]
    ) -> None:
        self._host = host
        self._device = device
        self._signals = signals
        self._processes = processes
        self._told = 0  # how many of the freed blocks the others know of
        self._descriptions: dict[tuple[object, ...], bytes] = {}
        self._agreed: dict[tuple[bytes, Places], list[PreparedLaunch]] = {}
        # The last call, by verb and number, unless there was more to tell than what is called.
        self._last: tuple[str, int, Lending, bytes, bytes, list[PreparedLaunch]] | None = None
        described = consistency.Descriptor("", "", "", 0, False, "").encoded()
        self._described = len(described) - consistency.SITE_BYTES
        lengths = [self._described, 2 * EXPORT_BYTES, _FREED.size]
        self._edges = np.cumsum(lengths).tolist()
        # The memory of the exchange, the same each time.
        self._own = np.zeros(self._edges[-1], np.uint8)
        self._all = np.empty((host.size, self._edges[-1]), np.uint8)
        self._exchange = host.exchange_of(view(self._own), view(self._all.reshape(-1)))
        self._mine = b""

    def reach(self, call: Call, lending: Lending) -> list[PreparedLaunch]:
        """What to launch, if this is the leader.

        Raises a mismatch, on all ranks, if they do not call the same.
        """
        exports = [_NO_EXPORT if one is None else one.encoded() for one in lending[1:]]
        mine = b"".join((self._description(call), *exports, self._freed()))
        return self._conclude(call, lending, mine, self._tell(mine, call.timeout))

    def last(self, call: Call) -> Agreed | None:
        """What was agreed on for this call, if it was the last one."""
        if self._last is None or self._last[:2] != (call.verb, call.number):
            return None
        return Agreed(call._replace(source=None, destination=None), *self._last[2:])

    def may_reach_again(self, agreed: Agreed) -> bool:
        """Whether there is nothing to tell but what was told before."""
        exports = self._device.exports
        lending = agreed.lending
        return (
            self._told == len(exports.freed)
            and (lending[1] is None or exports.find(lending.places.source) is lending[1])
            and (lending[2] is None or exports.find(lending.places.destination) is lending[2])
        )

    def reach_again(self, agreed: Agreed, number: int) -> list[PreparedLaunch]:
        """The same as `reach`, for a call of this number."""
        call, lending, mine, before, launches = agreed
        table = self._tell(mine, call.timeout)
        if table == before:
            return launches
        return self._conclude(call._replace(number=number), lending, mine, table)

    def _tell(self, mine: bytes, timeout: float) -> bytes:
        """What all ranks tell."""
        if mine != self._mine:
            self._own[:] = np.frombuffer(mine, np.uint8)
            self._mine = mine
        self._exchange(timeout)
        return self._all.tobytes()

    def _conclude(
        self, call: Call, lending: Lending, mine: bytes, table: bytes
    ) -> list[PreparedLaunch]:
        key = table, lending.places
        agreed = self._agreed.get(key)
        if agreed is not None:
            self._last = call.verb, call.number, lending, mine, table, agreed
            return agreed
        self._last = None
        rows = [row.tobytes() for row in self._all]
        start, middle, end = self._edges
        try:
            counts = self._compare(call, mine, rows)
        finally:  # each block is told of once, be the call a mismatch or not
            for process, row in zip(self._processes, rows, strict=True):
                if row[middle:end] != _NONE_FREED:
                    for number in _FREED.unpack(row[middle:end]):
                        self._device.imports.close(process, number)
        todo: list[PreparedLaunch] = []
        if self._host.rank == LEADER:
            places = [self._open(row[start:middle]) for row in rows]
            places[LEADER] = lending.places
            sends = None if counts is None else counts[:, 0]
            moves = work(call, places, sends)
            todo = launches(self._device.driver, call, moves, self._signals.permit)
        # No rank may take from memory what another one asks all for, and each remembers others: the
        # leader's memory is not in the table.
        if counts is None and all(row[middle:end] == _NONE_FREED for row in rows):
            if len(self._agreed) >= _REMEMBERED:
                self._agreed.clear()
            self._agreed[key] = todo
            self._last = call.verb, call.number, lending, mine, table, todo
        return todo

    def _open(self, data: bytes) -> Places:
        """Where the memory of another rank is here."""
        exports = Export.decoded(data[:EXPORT_BYTES]), Export.decoded(data[EXPORT_BYTES:])
        return Places(*(self._device.imports.open(one) if one.process else 0 for one in exports))

    def _compare(self, call: Call, mine: bytes, rows: list[bytes]) -> Array | None:
        length = self._described
        table: Array | None = None

        def counts() -> Array:
            nonlocal table
            table = self._all_of(call, np.array([call.sends, call.receives], np.int64))
            return table

        if all(row[:length] == mine[:length] for row in rows):
            if not call.uneven:
                return None  # the ordinary case
            table = counts()
            if np.array_equal(table[:, 0], table[:, 1].T):
                return table
        # Where each call is, is only asked now.
        described = consistency.Descriptor.of(call._replace(site=call.site or call_site() or ""))
        encoded = self._all_of(call, described.encoded())
        descriptors = [consistency.Descriptor.decoded(row) for row in encoded]
        consistency.compare(call.number, descriptors, counts if call.sends else None)
        return table

    def _all_of(self, call: Call, own: Array) -> Array:
        """What all ranks give."""
        table = np.empty((self._host.size, *own.shape), own.dtype)
        caller = inner_caller(self._host, call.timeout, site=call.site)
        parts = view(own.reshape(-1)), view(table.reshape(-1))
        self._host.all_gather(Call.all_gather(caller, *parts))
        return table

    def _description(self, call: Call) -> bytes:
        op = call.op
        key = (
            call.verb,
            call.dtype,
            call.share,
            None if op is None else (op.code, op.factor),
            call.root,
            call.uneven,
            call.backward,
        )
        found = self._descriptions.get(key)
        if found is None:
            if len(self._descriptions) >= _REMEMBERED:
                self._descriptions.clear()
            encoded = consistency.Descriptor.of(call).encoded()
            found = self._descriptions[key] = encoded.tobytes()[: self._described]
        return found

    def _freed(self) -> bytes:
        """The next blocks to tell the others of."""
        freed = self._device.exports.freed
        if self._told == len(freed):
            return _NONE_FREED
        numbers = freed[self._told : self._told + 4]
        self._told += len(numbers)
        return _FREED.pack(*numbers, *[0] * (4 - len(numbers)))
