"""One call of any collective: what each rank puts in, and what it must find afterwards.

A `Case` is the same on all ranks. `start` makes this rank's memory, starts the call and returns a
`Running`; `Running.check` compares everything that the call may and may not have written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from tests.helpers import oracle
from tests.helpers.device_memory import HostMemory, memory_of
from unisono.core import dispatch
from unisono.core.buffers import Buffer
from unisono.core.dtypes import ReduceOp
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.engines import gaps

MOVES = ("broadcast", "gather", "all_gather", "scatter", "all_to_all")
REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
COUNTED = ("reduce_scatter", "gather", "all_gather", "scatter", "all_to_all")

_GUARD = 64  # bytes on either side of a destination that nobody may touch
_FILL = 0xA5

Pairs = list[tuple[np.ndarray, np.ndarray]]  # memory, and what must be in it at the end


@dataclass(frozen=True)
class Case:
    """One collective call. `count` is the share of a rank; `counts` makes the shares uneven."""

    verb: str
    dtype: str
    count: int
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    counts: tuple[int, ...] | None = None
    in_place: bool = False
    salt: int = 0


@dataclass
class Running:
    """A call under way: its work, and all that the call may and may not have written."""

    label: str
    work: Work
    any_nan: bool
    rounded_by: ReduceOp | None = None  # if the engine does not combine in rank order
    pairs: Pairs = field(default_factory=list)
    guarded: list[np.ndarray] = field(default_factory=list)
    memory: HostMemory = field(default_factory=HostMemory)  # where the call has all this

    def check(self) -> None:
        """Compare what is there with what must be there."""
        self.memory.fetch()
        for actual, expected in self.pairs:
            if self.rounded_by is None:
                oracle.check_same(actual, expected, self.label, any_nan=self.any_nan)
            else:
                oracle.check_close(actual, expected, self.label, self.rounded_by)
        for memory in self.guarded:
            edges = np.concatenate([memory[:_GUARD], memory[-_GUARD:]])
            if (edges != _FILL).any():
                raise AssertionError(f"{self.label}: wrote outside its destination")


def run(group: Group, case: Case) -> None:
    """Make the call, wait for it and compare."""
    start(group, case, blocking=True).check()


def start(group: Group, case: Case, blocking: bool) -> Running:
    """Start the call on this rank, with memory of its own."""
    if case.verb == "barrier":
        return Running(str(case), dispatch.barrier(group, blocking=blocking), False)
    rank, size = group.rank, group.size
    source, result, offset = _PARTS[case.verb](case, rank, size)
    label = f"{case} on rank {rank} of {size}"
    pairs: Pairs = []
    guarded: list[np.ndarray] = []
    if case.in_place and source is not None and result is not None:
        src, dst = _shared(pairs, guarded, source, result, offset)
    else:
        src, dst = _apart(pairs, guarded, source, result)
    memory = memory_of(group)
    arguments = _arguments(case, rank, size, src, dst, memory.view)
    work = getattr(dispatch, case.verb)(group, *arguments, blocking=blocking)
    reduces = case.verb in REDUCTIONS
    rounds = reduces and gaps.has(group.engine.name, "rank order")
    return Running(label, work, reduces, case.op if rounds else None, pairs, guarded, memory)


def _memory(guarded: list[np.ndarray], name: str, count: int) -> np.ndarray:
    """A destination full of rubbish between two guards."""
    dtype = oracle.numpy_dtype(name)
    whole = np.full(count * dtype.itemsize + 2 * _GUARD, _FILL, np.uint8)
    guarded.append(whole)
    return whole[_GUARD : whole.size - _GUARD].view(dtype)


def _apart(
    pairs: Pairs,
    guarded: list[np.ndarray],
    source: np.ndarray | None,
    result: np.ndarray | None,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    dst = None
    if source is not None:
        pairs.append((source, source.copy()))  # a source is left as it was
    if result is not None:
        dst = _memory(guarded, result.dtype.name, result.size)
        pairs.append((dst, result))
    return source, dst


def _shared(
    pairs: Pairs,
    guarded: list[np.ndarray],
    source: np.ndarray,
    result: np.ndarray,
    offset: int,
) -> tuple[np.ndarray, np.ndarray]:
    """In place: the smaller of the two is a stretch of the larger one, at `offset`."""
    whole = _memory(guarded, source.dtype.name, max(source.size, result.size))
    if source.size >= result.size:
        src, dst = whole, whole[offset : offset + result.size]
        expected = source.copy()
        expected[offset : offset + result.size] = result
    else:
        src, dst = whole[offset : offset + source.size], whole
        expected = result
    src[:] = source
    pairs.append((whole, expected))
    return src, dst


def _arguments(
    case: Case,
    rank: int,
    size: int,
    src: np.ndarray | None,
    dst: np.ndarray | None,
    view: Callable[[np.ndarray], Buffer],
) -> tuple:
    source = None if src is None else view(src)
    target = source if src is dst else None if dst is None else view(dst)
    counts = case.counts if case.verb not in ("gather", "scatter") or rank == case.root else None
    match case.verb:
        case "broadcast":
            return source, target, case.root
        case "reduce":
            return source, target, case.op, case.root
        case "all_reduce":
            return source, target, case.op
        case "reduce_scatter":
            return source, target, case.op, counts
        case "all_gather":
            return source, target, counts
        case "all_to_all":
            if counts is None:
                return source, target, None, None
            matrix = _matrix(case, size)
            return source, target, matrix[rank], [row[rank] for row in matrix]
        case _:
            return source, target, case.root, counts


# ---- each verb: this rank's source, its result, and where the smaller lies in the larger -------


def _shares(case: Case, size: int) -> tuple[int, ...]:
    return case.counts if case.counts is not None else (case.count,) * size


def _offset(shares: tuple[int, ...], rank: int) -> int:
    return [0, *accumulate(shares)][rank]


def _matrix(case: Case, size: int) -> list[list[int]]:
    """How much rank i sends to rank j; not symmetric, so that a transposed one shows."""
    shares = _shares(case, size)
    return [[shares[(i + 2 * j) % size] for j in range(size)] for i in range(size)]


def _given(case: Case, rank: int, count: int) -> np.ndarray:
    return oracle.values(case.dtype, rank, count, case.salt)


def _broadcast(case: Case, rank: int, size: int) -> tuple:
    data = _given(case, case.root, case.count)
    return (data if rank == case.root else None), data.copy(), 0


def _reduce(case: Case, rank: int, size: int) -> tuple:
    source, result, offset = _all_reduce(case, rank, size)
    return source, (result if rank == case.root else None), offset


def _all_reduce(case: Case, rank: int, size: int) -> tuple:
    total = oracle.reduced(case.op, case.dtype, size, case.count, case.salt)
    return _given(case, rank, case.count), total, 0


def _reduce_scatter(case: Case, rank: int, size: int) -> tuple:
    shares = _shares(case, size)
    offset, whole = _offset(shares, rank), sum(shares)
    total = oracle.reduced(case.op, case.dtype, size, whole, case.salt)
    return _given(case, rank, whole), total[offset : offset + shares[rank]], offset


def _all_gather(case: Case, rank: int, size: int) -> tuple:
    shares = _shares(case, size)
    pieces = [_given(case, other, shares[other]) for other in range(size)]
    return pieces[rank], np.concatenate(pieces), _offset(shares, rank)


def _gather(case: Case, rank: int, size: int) -> tuple:
    source, result, offset = _all_gather(case, rank, size)
    return source, (result if rank == case.root else None), offset


def _scatter(case: Case, rank: int, size: int) -> tuple:
    shares = _shares(case, size)
    offset = _offset(shares, rank)
    whole = _given(case, case.root, sum(shares))
    return (
        (whole if rank == case.root else None),
        whole[offset : offset + shares[rank]].copy(),
        offset,
    )


def _all_to_all(case: Case, rank: int, size: int) -> tuple:
    matrix = _matrix(case, size)
    pieces = []
    for other, row in enumerate(matrix):
        start = sum(row[:rank])
        pieces.append(_given(case, other, sum(row))[start : start + row[rank]])
    return _given(case, rank, sum(matrix[rank])), np.concatenate(pieces), 0


_PARTS = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
}
