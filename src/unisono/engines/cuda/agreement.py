"""What the hosts tell each other before each call: what they call, and the memory that they lend.

Ranks compare their calls, so that all get an error or none does. This takes most of the time of a
short call. So what was encoded or decoded once is remembered, and one exchange of shared memory has
everything: the description of the call, the exports of source and result, and blocks that were
freed since.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.engines.common import consistency
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.common.reductions import Array
from unisono.engines.cuda.collectives import Lending
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.sharing import EXPORT_BYTES
from unisono.engines.shm.engine import ShmEngine

__all__ = ["Agreement"]

_FREED = struct.Struct("<4Q")  # numbers of blocks; 0 for none
_NONE_FREED = bytes(_FREED.size)
_REMEMBERED = 1024  # of each kind

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Agreement:
    """One rank's side, in one group."""

    def __init__(self, host: ShmEngine, device: Device, processes: Sequence[int]) -> None:
        self._host = host
        self._device = device
        self._processes = processes
        self._told = 0  # how many of the freed blocks the others know of
        self._descriptions: dict[tuple[object, ...], bytes] = {}
        self._lendings: dict[bytes, Lending] = {}
        described = consistency.Descriptor("", "", "", 0, False, "").encoded()
        self._compared = len(described) - consistency.SITE_BYTES
        self._edges = np.cumsum([len(described), 2 * EXPORT_BYTES, _FREED.size]).tolist()
        # The memory of the exchange, the same each time.
        self._own = np.empty(self._edges[-1], np.uint8)
        self._all = np.empty((host.size, self._edges[-1]), np.uint8)
        self._views = view(self._own), view(self._all.reshape(-1))

    def reach(self, call: Call, lending: Lending) -> tuple[list[Lending], Array | None]:
        """What all ranks lend, and how much each sends to each if that differs.

        Raises a mismatch, on all ranks, if they do not call the same.
        """
        mine = self._description(call) + lending.encoded() + self._freed()
        self._own[:] = np.frombuffer(mine, np.uint8)
        caller = inner_caller(self._host, call.timeout, site=call.site)
        self._host.all_gather(Call.all_gather(caller, *self._views))
        rows = [row.tobytes() for row in self._all]
        counts = self._compare(call, mine, rows)
        start, middle, end = self._edges
        for process, row in zip(self._processes, rows, strict=True):
            if row[middle:end] != _NONE_FREED:
                for number in _FREED.unpack(row[middle:end]):
                    self._device.imports.close(process, number)
        return [self._lending(row[start:middle]) for row in rows], counts

    def _compare(self, call: Call, mine: bytes, rows: list[bytes]) -> Array | None:
        length = self._compared
        if not call.uneven and all(row[:length] == mine[:length] for row in rows):
            return None  # the ordinary case
        table: Array | None = None

        def counts() -> Array:
            nonlocal table
            table = self._all_counts(call)
            return table

        end = self._edges[0]
        descriptors = [
            consistency.Descriptor.decoded(np.frombuffer(row[:end], np.uint8)) for row in rows
        ]
        consistency.compare(call.number, descriptors, counts if call.sends else None)
        return None if table is None else table[:, 0]

    def _all_counts(self, call: Call) -> Array:
        own = np.array([call.sends, call.receives], np.int64)
        table = np.empty((self._host.size, *own.shape), np.int64)
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
            call.site,
        )
        return _remembered(
            self._descriptions, key, lambda: consistency.Descriptor.of(call).encoded().tobytes()
        )

    def _lending(self, data: bytes) -> Lending:
        return _remembered(self._lendings, data, lambda: Lending.decoded(data))

    def _freed(self) -> bytes:
        """The next blocks to tell the others of."""
        freed = self._device.exports.freed
        if self._told == len(freed):
            return _NONE_FREED
        numbers = freed[self._told : self._told + 4]
        self._told += len(numbers)
        return _FREED.pack(*numbers, *[0] * (4 - len(numbers)))


def _remembered(known: dict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    found = known.get(key)
    if found is None:
        if len(known) >= _REMEMBERED:
            known.clear()
        found = known[key] = make()
    return found
