"""The collectives of ranks that are threads: one thread sees the memory of all, and does the work.

Each function takes the calls of all ranks, in rank order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unisono.core.call import Call
from unisono.engines.common.reductions import Array, combine

__all__ = ["COLLECTIVES"]


def _parts(array: Array, counts: Sequence[int]) -> list[Array]:
    ends = np.cumsum(counts)
    return [array[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _store(call: Call, result: Array) -> None:
    if call.destination is not None:  # only the root of a reduce or gather has one
        call.destination.array[:] = result


def _root(calls: Sequence[Call]) -> Call:
    root = calls[0].root
    assert root is not None
    return calls[root]


def _combined(calls: Sequence[Call]) -> Array:
    return combine(calls[0].operator, [call.src.array for call in calls])


def _broadcast(calls: Sequence[Call]) -> None:
    data = _root(calls).src.array.copy()
    for call in calls:
        _store(call, data)


def _reduce(calls: Sequence[Call]) -> None:
    result = _combined(calls)
    for call in calls:
        _store(call, result)


def _reduce_scatter(calls: Sequence[Call]) -> None:
    for call, part in zip(calls, _parts(_combined(calls), calls[0].sends), strict=True):
        _store(call, part)


def _gather(calls: Sequence[Call]) -> None:
    joined = np.concatenate([call.src.array for call in calls])
    for call in calls:
        _store(call, joined)


def _scatter(calls: Sequence[Call]) -> None:
    root = _root(calls)
    for call, part in zip(calls, _parts(root.src.array.copy(), root.sends), strict=True):
        _store(call, part)


def _all_to_all(calls: Sequence[Call]) -> None:
    rows = [_parts(call.src.array.copy(), call.sends) for call in calls]
    for receiver, call in enumerate(calls):
        _store(call, np.concatenate([row[receiver] for row in rows]))


def _barrier(calls: Sequence[Call]) -> None:
    return None


COLLECTIVES: dict[str, Callable[[Sequence[Call]], None]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "all_gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
