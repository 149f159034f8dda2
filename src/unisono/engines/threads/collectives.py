"""The verbs of ranks that are threads: all sources and all destinations are here, so just do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unisono.engines.common.reductions import Array, combine

if TYPE_CHECKING:
    from unisono.engines.threads.hub import Ticket

__all__ = ["VERBS"]


def _source(ticket: Ticket) -> Array:
    assert ticket.src is not None
    return ticket.src.array


def _parts(array: Array, counts: Sequence[int]) -> list[Array]:
    ends = np.cumsum(counts)
    return [array[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _store(ticket: Ticket, result: Array) -> None:
    assert ticket.dst is not None
    ticket.dst.array[:] = result


def _do_broadcast(tickets: list[Ticket]) -> None:
    root = tickets[0].call.root
    assert root is not None
    data = _source(tickets[root]).copy()
    for ticket in tickets:
        _store(ticket, data)


def _do_reduce(tickets: list[Ticket]) -> None:
    op = tickets[0].call.op
    assert op is not None
    result = combine(op, [_source(ticket) for ticket in tickets])
    for ticket in tickets:
        if ticket.dst is not None:
            _store(ticket, result)


def _do_reduce_scatter(tickets: list[Ticket]) -> None:
    op = tickets[0].call.op
    assert op is not None
    result = combine(op, [_source(ticket) for ticket in tickets])
    for ticket, part in zip(tickets, _parts(result, tickets[0].call.sends), strict=True):
        _store(ticket, part)


def _do_gather(tickets: list[Ticket]) -> None:
    joined = np.concatenate([_source(ticket) for ticket in tickets])
    for ticket in tickets:
        if ticket.dst is not None:
            _store(ticket, joined)


def _do_scatter(tickets: list[Ticket]) -> None:
    root = tickets[0].call.root
    assert root is not None
    data = _source(tickets[root]).copy()
    for ticket, part in zip(tickets, _parts(data, tickets[root].call.sends), strict=True):
        _store(ticket, part)


def _do_all_to_all(tickets: list[Ticket]) -> None:
    parts = [_parts(_source(ticket).copy(), ticket.call.sends) for ticket in tickets]
    for ticket in tickets:
        _store(ticket, np.concatenate([row[ticket.rank] for row in parts]))


def _do_barrier(tickets: list[Ticket]) -> None:
    return None


#: What each verb does with the tickets of all ranks, in rank order.
VERBS: dict[str, Callable[[list[Ticket]], None]] = {
    "broadcast": _do_broadcast,
    "reduce": _do_reduce,
    "all_reduce": _do_reduce,
    "reduce_scatter": _do_reduce_scatter,
    "gather": _do_gather,
    "all_gather": _do_gather,
    "scatter": _do_scatter,
    "all_to_all": _do_all_to_all,
    "barrier": _do_barrier,
}
