"""What the leader launches for a call that all ranks have told of.

What ranks have agreed on once is remembered, with what the leader launches for it: if all say the
same again, that is all there is to do. Counts have no room in what ranks tell, so ranks that have
some exchange them in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.trace import call_site
from unisono.engines.common import consistency
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.common.reductions import Array
from unisono.engines.cuda.announcements import Announcement, Announcer, Lending, Telling, Told
from unisono.engines.cuda.collectives import Places, launches, work
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.prepared import PreparedLaunch
from unisono.engines.cuda.gpu.sharing import Export
from unisono.engines.cuda.signals import LEADER, Signals
from unisono.engines.shm.engine import ShmEngine

__all__ = ["Agreed", "Agreement", "compare_counts"]

_REMEMBERED = 1024


class Agreed(NamedTuple):
    """What ranks have agreed on in one call, and what they said for it."""

    #: Without its memory, which may go.
    call: Call
    lending: Lending
    telling: Telling
    table: bytes
    launches: list[PreparedLaunch]


class Agreement:
    """One rank's side, in one group."""

    def __init__(
        self, host: ShmEngine, device: Device, signals: Signals, announcer: Announcer
    ) -> None:
        self._host = host
        self._device = device
        self._signals = signals
        self._announcer = announcer
        self._agreed: dict[tuple[object, ...], list[PreparedLaunch]] = {}
        # The last call, by verb and number, unless there was more to tell than what is called.
        self._last: tuple[str, int, Lending, Telling, bytes, list[PreparedLaunch]] | None = None

    def reach(self, announcement: Announcement) -> list[PreparedLaunch]:
        """What to launch, if this is the leader.

        Raises a mismatch, on all ranks, if they do not call the same.
        """
        self._last = None
        table = announcement.table()
        return self._conclude(announcement.call, announcement.lending, announcement.telling, table)

    def last(self, call: Call) -> Agreed | None:
        """What was agreed on for this call, if it was the last one."""
        if self._last is None or self._last[:2] != (call.verb, call.number):
            return None
        return Agreed(call._replace(source=None, destination=None), *self._last[2:])

    def may_reach_again(self, agreed: Agreed) -> bool:
        """Whether there is nothing to tell but what was told before."""
        return not self._announcer.has_news(agreed.lending)

    def reach_again(self, agreed: Agreed, number: int) -> list[PreparedLaunch]:
        """The same as `reach`, for a call of this number."""
        call, lending, telling, before, launches = agreed
        table = self._announcer.tell(telling, call.timeout)
        if table == before:
            return launches
        return self._conclude(call._replace(number=number), lending, telling, table)

    def _conclude(
        self, call: Call, lending: Lending, telling: Telling, table: bytes
    ) -> list[PreparedLaunch]:
        key = telling.described, table, lending.places
        todo = self._agreed.get(key)
        if todo is None:
            rows = Told.every(table)
            try:
                counts = compare_counts(self._host, call, rows)
            finally:  # each block is told of once, be the call a mismatch or not
                for row in rows:
                    for number in row.freed:
                        self._device.imports.close(row.process, number)
            todo = self._prepare(call, lending, rows, counts)
            # No rank may take from memory what another one asks all for, and each remembers others:
            # the leader's memory is not in the table.
            if counts is not None or any(row.freed for row in rows):
                return todo
            if len(self._agreed) >= _REMEMBERED:
                self._agreed.clear()
            self._agreed[key] = todo
        self._last = call.verb, call.number, lending, telling, table, todo
        return todo

    def _prepare(
        self, call: Call, lending: Lending, rows: Sequence[Told], counts: Array | None
    ) -> list[PreparedLaunch]:
        if self._host.rank != LEADER:
            return []
        places = [Places(self._open(row.source), self._open(row.destination)) for row in rows]
        places[LEADER] = lending.places
        moves = work(call, places, None if counts is None else counts[:, 0])
        return launches(self._device.driver, call, moves, self._signals.permit)

    def _open(self, export: Export) -> int:
        """Where the memory of another rank is here."""
        return self._device.imports.open(export) if export.process else 0


def compare_counts(host: ShmEngine, call: Call, rows: Sequence[Told]) -> Array | None:
    """What each rank sends to and receives from each, `[rank, 0 or 1, peer]`; None if all the same.

    All ranks make the same call, but for its counts.
    """
    if not any(row.uneven for row in rows) and len({row.share for row in rows}) == 1:
        return None  # the ordinary case
    table = _all_of(host, call, np.array([call.sends, call.receives], np.int64))
    if not np.array_equal(table[:, 0], table[:, 1].T):
        # Where each call is, is only asked now.
        described = consistency.Descriptor.of(call._replace(site=call.site or call_site() or ""))
        encoded = _all_of(host, call, described.encoded())
        descriptors = [consistency.Descriptor.decoded(row) for row in encoded]
        consistency.compare(call.number, descriptors, lambda: table)
    return table


def _all_of(host: ShmEngine, call: Call, own: Array) -> Array:
    """What all ranks give."""
    table = np.empty((host.size, *own.shape), own.dtype)
    caller = inner_caller(host, call.timeout, site=call.site)
    parts = view(own.reshape(-1)), view(table.reshape(-1))
    host.all_gather(Call.all_gather(caller, *parts))
    return table
