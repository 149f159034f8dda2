"""The collectives on one GPU: what the leader launches, which works on the memory of all ranks.

A GPU that several processes share runs the kernels of one process at a time, and to go from one to
another takes it longer than most collectives; without MPS, which joins them. Words of the host's
memory are no kernels and need no such turn. So one rank does the work of all, and the others only
say that they are ready and wait: whether MPS runs or not, there is one launch for a call.

Bytes that it moves, for n ranks and a vector of B bytes: all_reduce reads n B and writes n B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from unisono.core.call import Call
from unisono.engines.common.reductions import Array
from unisono.engines.cuda.gpu.driver import Driver
from unisono.engines.cuda.gpu.kernels import MAX_MOVES
from unisono.engines.cuda.gpu.prepared import Move, Permit, PreparedLaunch

__all__ = ["Places", "Reduction", "launches", "work"]


class Places(NamedTuple):
    """Where the leader finds the memory of one rank; 0 for none."""

    source: int
    destination: int


class Reduction(NamedTuple):
    """A part of every source that is combined, in the order of ranks, and stored in each target."""

    targets: Sequence[int]
    sources: Sequence[int]
    length: int  # in elements


class _Layout:
    """Where the parts of a call are, for all ranks."""

    def __init__(self, call: Call, places: Sequence[Places], sends: Array | None) -> None:
        assert call.dtype is not None
        self.call = call
        self.places = places
        self.size = len(places)
        self.item = call.dtype.itemsize
        self._sends = sends

    def nbytes(self, sender: int, receiver: int) -> int:
        """How much one rank sends another."""
        if self._sends is None:
            return self.call.share * self.item
        return int(self._sends[sender, receiver]) * self.item

    def given(self, sender: int, receiver: int) -> int:
        """Where in a source, made of a part for each rank, the part for one begins."""
        before = sum(self.nbytes(sender, other) for other in range(receiver))
        return self.places[sender].source + before

    def got(self, sender: int, receiver: int) -> int:
        """Where in a destination, made of a part from each rank, the part from one goes."""
        before = sum(self.nbytes(other, receiver) for other in range(sender))
        return self.places[receiver].destination + before

    @property
    def sources(self) -> list[int]:
        """Where each source begins."""
        return [place.source for place in self.places]


_Work = Iterator[Reduction | Move]


def work(call: Call, places: Sequence[Places], sends: Array | None) -> _Work:
    """What there is to do in a call; `sends` says what each rank sends each, if that differs."""
    return _VERBS[call.verb](_Layout(call, places, sends))


def launches(driver: Driver, call: Call, todo: _Work, permit: Permit) -> list[PreparedLaunch]:
    """Make the launches ready that do it, as few as there can be."""
    every = list(todo)
    reductions = [one for one in every if isinstance(one, Reduction) and one.length]
    moves = [one for one in every if isinstance(one, Move) and one.nbytes and one.to != one.source]
    pieces = [moves[first : first + MAX_MOVES] for first in range(0, len(moves), MAX_MOVES)]
    # No verb has both.
    permits = [permit._replace(done=())] * (len(reductions) + len(pieces) - 1) + [permit]
    if reductions:
        assert call.dtype is not None
        dtype, op = call.dtype, call.operator
        pairs = zip(reductions, permits, strict=True)
        return [driver.reduction(dtype, op, *one, given) for one, given in pairs]
    return [
        driver.moves(piece, given) for piece, given in zip(pieces, permits, strict=bool(pieces))
    ]


# ---- the verbs -----------------------------------------------------------------------------------


def _broadcast(all_: _Layout) -> _Work:
    root = _root(all_)
    for place in all_.places:
        yield Move(place.destination, all_.places[root].source, all_.call.share * all_.item)


def _reduce(all_: _Layout) -> _Work:
    yield Reduction([all_.places[_root(all_)].destination], all_.sources, all_.call.share)


def _all_reduce(all_: _Layout) -> _Work:
    targets = [place.destination for place in all_.places]
    yield Reduction(targets, all_.sources, all_.call.share)


def _reduce_scatter(all_: _Layout) -> _Work:
    for rank, place in enumerate(all_.places):
        parts = [all_.given(sender, rank) for sender in range(all_.size)]
        yield Reduction([place.destination], parts, all_.nbytes(0, rank) // all_.item)


def _gather(all_: _Layout) -> _Work:
    yield from _collect(all_, _root(all_))


def _all_gather(all_: _Layout) -> _Work:
    for rank in range(all_.size):
        yield from _collect(all_, rank)


def _collect(all_: _Layout, receiver: int) -> _Work:
    for sender, place in enumerate(all_.places):
        yield Move(all_.got(sender, receiver), place.source, all_.nbytes(sender, receiver))


def _scatter(all_: _Layout) -> _Work:
    root = _root(all_)
    for rank, place in enumerate(all_.places):
        yield Move(place.destination, all_.given(root, rank), all_.nbytes(root, rank))


def _all_to_all(all_: _Layout) -> _Work:
    for sender in range(all_.size):
        for receiver in range(all_.size):
            yield Move(
                all_.got(sender, receiver),
                all_.given(sender, receiver),
                all_.nbytes(sender, receiver),
            )


def _root(all_: _Layout) -> int:
    assert all_.call.root is not None
    return all_.call.root


_VERBS: dict[str, Callable[[_Layout], _Work]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
