"""The only caller of engines: checks arguments, numbers calls, runs them, explains errors.

A face calls `start(verb, group, blocking, ...)`; with `blocking` the work that comes back has
ended. Bad input is an error here, before anything moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unisono.core import buffers
from unisono.core.buffers import Buffer
from unisono.core.engine import DONE, Counts, ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, UnisonoError, Unsupported

__all__ = ["start"]


def start(verb: str, group: Group, blocking: bool, *arguments: Any) -> Work:
    """Check one call of `verb`, hand it to the group's engine and return its work.

    The arguments are those of the method of the same name of `Engine`.
    """
    engine = group.engine
    try:
        if engine is None:
            raise _no_engine(group)
        destination = _CHECKS[verb](group, *arguments)
        group.calls += 1
        work: Work = getattr(engine, verb)(*arguments, blocking)
        if destination is not None and destination.copy_back is not None:
            work.then(destination.copy_back)
        if blocking and work is not DONE:
            work.wait()  # it has ended; this notes its outcome and copies its result back
    except UnisonoError as error:
        error.add_note(_where(verb, group))
        raise
    if not blocking:
        work.where = _where(verb, group)
    return work


def _where(verb: str, group: Group) -> str:
    if group.rank < 0:
        return f"in {verb} on group {group.name!r}, by a rank that is not in it"
    call = f"in {verb} (call {group.calls}) on group {group.name!r}"
    return f"{call}, rank {group.rank} of {group.size}"


def _no_engine(group: Group) -> NotReady:
    if group.rank < 0:
        return NotReady(
            f"this rank is not in group {group.name!r} (world ranks {list(group.ranks)}); "
            "only members may call its collectives"
        )
    return NotReady(f"group {group.name!r} is closed; make a new one")


# ---- checks: each takes the arguments of its verb and returns the destination, if it has one -----


def _broadcast(group: Group, src: Buffer | None, dst: Buffer, root: int) -> Buffer:
    _check_root(group, root)
    if group.rank == root:
        src = _need(src, "src on the root")
        _check_pair(src, dst)
        _check_count(dst.count, src.count, "dst")
    buffers.check_writable(dst)
    return dst


def _reduce(
    group: Group, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int
) -> Buffer | None:
    _check_root(group, root)
    _check_operator(src, op)
    if group.rank != root:
        return None
    return _all_reduce(group, src, _need(dst, "dst on the root"), op)


def _all_reduce(group: Group, src: Buffer, dst: Buffer, op: ReduceOp) -> Buffer:
    if type(op) is not ReduceOp or op.name not in src.dtype.operators:
        _check_operator(src, op)
    if src is not dst:
        _check_pair(src, dst)
        _check_count(dst.count, src.count, "dst")
    if not dst.writable:
        buffers.check_writable(dst)
    return dst


def _reduce_scatter(group: Group, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts) -> Buffer:
    _check_operator(src, op)
    shares = _check_counts(group, counts, src.count, dst.count, "src")
    _check_pair(src, dst, part=src.part(sum(shares[: group.rank]), shares[group.rank]))
    _check_count(dst.count, shares[group.rank], "dst")
    buffers.check_writable(dst)
    return dst


def _gather(
    group: Group, src: Buffer, dst: Buffer | None, root: int, counts: Counts
) -> Buffer | None:
    _check_root(group, root)
    if group.rank != root:
        return None
    return _all_gather(group, src, _need(dst, "dst on the root"), counts)


def _all_gather(group: Group, src: Buffer, dst: Buffer, counts: Counts) -> Buffer:
    shares = _check_counts(group, counts, dst.count, src.count, "dst")
    _check_pair(src, dst, part=dst.part(sum(shares[: group.rank]), shares[group.rank]))
    _check_count(src.count, shares[group.rank], "src")
    buffers.check_writable(dst)
    return dst


def _scatter(group: Group, src: Buffer | None, dst: Buffer, root: int, counts: Counts) -> Buffer:
    _check_root(group, root)
    if group.rank == root:
        src = _need(src, "src on the root")
        shares = _check_counts(group, counts, src.count, dst.count, "src")
        _check_pair(src, dst, part=src.part(sum(shares[:root]), shares[root]))
        _check_count(dst.count, shares[root], "dst")
    buffers.check_writable(dst)
    return dst


def _all_to_all(group: Group, src: Buffer, dst: Buffer, sends: Counts, receives: Counts) -> Buffer:
    if (sends is None) != (receives is None):
        raise ArgumentError("give both counts, of what is sent and of what is received, or neither")
    for counts, buffer, name in ((sends, src, "src"), (receives, dst, "dst")):
        if counts is None and buffer.count % group.size:
            raise ArgumentError(
                f"{name} has {buffer.count} elements, not a multiple of the {group.size} ranks"
            )
        _check_counts(group, counts, buffer.count, buffer.count // group.size, name)
    if sends is None:
        _check_count(dst.count, src.count, "dst")
    _check_pair(src, dst)
    buffers.check_writable(dst)
    return dst


def _send(group: Group, src: Buffer, peer: int, tag: int) -> None:
    _check_rank(group, peer, "peer")


def _recv(group: Group, dst: Buffer, peer: int | None, tag: int) -> Buffer:
    if peer is not None:
        _check_rank(group, peer, "peer")
    buffers.check_writable(dst)
    return dst


def _barrier(group: Group) -> None:
    return None


_CHECKS: dict[str, Callable[..., Buffer | None]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "send": _send,
    "recv": _recv,
    "barrier": _barrier,
}


def _need(buffer: Buffer | None, name: str) -> Buffer:
    if buffer is None:
        raise ArgumentError(f"{name} is missing")
    return buffer


def _check_operator(src: Buffer, op: ReduceOp) -> None:
    if not isinstance(op, ReduceOp):
        raise ArgumentTypeError(f"expected a ReduceOp, got {op!r}")
    if op.name not in src.dtype.operators:
        able = ", ".join(sorted(src.dtype.operators)) or "none: it can only be moved"
        raise Unsupported(f"{src.dtype.name} cannot be reduced with {op.name}; it has {able}")


def _check_root(group: Group, root: int) -> None:
    _check_rank(group, root, "root")


def _check_rank(group: Group, rank: int, name: str) -> None:
    if not hasattr(rank, "__index__"):
        raise ArgumentTypeError(f"{name} must be a rank of the group, got {rank!r}")
    if not 0 <= rank < group.size:
        last = group.size - 1
        raise ArgumentError(f"{name} {rank} is out of range: the group has ranks 0 to {last}")


def _check_pair(src: Buffer, dst: Buffer, part: Buffer | None = None) -> None:
    """Same dtype, and memory that is the same, apart, or exactly `part` of the larger buffer."""
    if src.dtype is not dst.dtype:
        names = f"src is {src.dtype.name}, dst is {dst.dtype.name}"
        raise ArgumentTypeError(f"{names}; they must agree")
    if not buffers.overlap(src, dst):
        return
    if src.address == dst.address and src.count == dst.count:
        return
    if part is not None:
        smaller = src if src.count < dst.count else dst
        if smaller.address == part.address and smaller.count == part.count:
            return
    raise ArgumentError(
        "src and dst overlap without being the same memory; pass a copy of one of them"
    )


def _check_count(count: int, expected: int, name: str) -> None:
    if count != expected:
        raise ArgumentError(f"{name} has {count} elements where {expected} are needed")


def _check_counts(group: Group, counts: Counts, total: int, share: int, name: str) -> Sequence[int]:
    """One count for each rank, none negative, that add up to `total`; returns them in full."""
    if counts is None:
        _check_count(total, share * group.size, name)
        return (share,) * group.size
    if len(counts) != group.size:
        raise ArgumentError(f"{len(counts)} counts for a group of {group.size} ranks")
    if any(count < 0 for count in counts):
        raise ArgumentError(f"counts cannot be negative: {list(counts)}")
    if sum(counts) != total:
        added = f"the counts {list(counts)} add up to {sum(counts)}"
        raise ArgumentError(f"{added}, but {name} has {total} elements")
    return counts
