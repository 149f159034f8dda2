"""The only caller of engines: checks arguments, numbers calls, runs them, explains errors.

A face calls `start(verb, group, blocking, ...)`; with `blocking` the work that comes back has
ended. Bad input is an error here, before anything moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unisono.core import buffers, environment
from unisono.core.arguments import whole_number
from unisono.core.buffers import Buffer
from unisono.core.engine import DONE, Counts, Engine, ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, UnisonoError, Unsupported

__all__ = ["deadline", "start"]

_MESSAGES = ("send", "recv")  # only those who send and receive count them


def start(verb: str, group: Group, blocking: bool, *arguments: Any) -> Work:
    """Check one call of `verb`, hand it to the group's engine and return its work.

    The arguments are those of the method of the same name of `Engine`.
    """
    engine = group.engine
    try:
        if engine is None:
            raise _no_engine(group)
        if buffers.seen_elsewhere:
            _check_devices(engine, arguments)
        destination = _CHECKS[verb](group, *arguments)
        if verb not in _MESSAGES:
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


@contextmanager
def deadline(group: Group, seconds: float | None) -> Iterator[None]:
    """Let the calls that start in this block wait `seconds` for others; None changes nothing."""
    engine = group.engine
    if engine is None or seconds is None:
        yield
        return
    before, engine.timeout = engine.timeout, environment.timeout(seconds)
    try:
        yield
    finally:
        engine.timeout = before


def _where(verb: str, group: Group) -> str:
    if group.rank < 0:
        return f"in {verb} on group {group.name!r}, by a rank that is not in it"
    number = "" if verb in _MESSAGES else f" (call {group.calls})"
    return f"in {verb}{number} on group {group.name!r}, rank {group.rank} of {group.size}"


def _no_engine(group: Group) -> NotReady:
    if group.rank < 0:
        return NotReady(
            f"this rank is not in group {group.name!r} (world ranks {list(group.ranks)}); "
            "only members may call its collectives"
        )
    return NotReady(f"group {group.name!r} is closed; make a new one")


def _check_devices(engine: Engine, arguments: Sequence[Any]) -> None:
    """All buffers of a call are in one memory, which the engine reaches."""
    devices = {argument.device for argument in arguments if isinstance(argument, Buffer)}
    if len(devices) > 1:
        raise ArgumentError(f"one call has tensors on {' and '.join(sorted(devices))}")
    if not devices <= engine.devices:
        reached = " and ".join(sorted(engine.devices))
        raise Unsupported(
            f"engine {engine.name!r} reaches memory of {reached} only, and this tensor is on "
            f"{devices.pop()}; move it to the CPU, or use engine 'torch:nccl'"
        )


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
    _check_parts(group, counts, src, "src", dst, "dst")
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
    _check_parts(group, counts, dst, "dst", src, "src")
    buffers.check_writable(dst)
    return dst


def _scatter(group: Group, src: Buffer | None, dst: Buffer, root: int, counts: Counts) -> Buffer:
    _check_root(group, root)
    if group.rank == root:
        src = _need(src, "src on the root")
        _check_parts(group, counts, src, "src", dst, "dst")
    buffers.check_writable(dst)
    return dst


def _all_to_all(group: Group, src: Buffer, dst: Buffer, sends: Counts, receives: Counts) -> Buffer:
    if (sends is None) != (receives is None):
        raise ArgumentError("give both counts, of what is sent and of what is received, or neither")
    if sends is None or receives is None:
        if src.count % group.size:
            raise ArgumentError(
                f"src has {src.count} elements, not a multiple of the {group.size} ranks"
            )
        _check_count(dst.count, src.count, "dst")
    else:
        _check_counts(group, sends, src.count, "src")
        _check_counts(group, receives, dst.count, "dst")
    _check_pair(src, dst)
    buffers.check_writable(dst)
    return dst


def _send(group: Group, src: Buffer, peer: int, tag: int) -> None:
    _check_rank(group, peer, "peer")
    _check_tag(tag)


def _recv(group: Group, dst: Buffer, peer: int | None, tag: int) -> Buffer:
    if peer is not None:
        _check_rank(group, peer, "peer")
    _check_tag(tag)
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


def _check_tag(tag: int) -> None:
    if not -(1 << 63) <= whole_number(tag, "tag") < 1 << 63:
        raise ArgumentError(f"tag {tag} has more than 64 bits")


def _check_pair(src: Buffer, dst: Buffer) -> None:
    """Same dtype, and memory that is either the same or apart; in either order."""
    if src.dtype is not dst.dtype:
        names = f"{src.dtype.name} and {dst.dtype.name}"
        raise ArgumentTypeError(f"src and dst must have one dtype, not {names}")
    if not buffers.overlap(src, dst):
        return
    if src.address == dst.address and src.count == dst.count:
        return
    raise ArgumentError(
        "src and dst overlap without being the same memory; pass a copy of one of them"
    )


def _check_count(count: int, expected: int, name: str) -> None:
    if count != expected:
        raise ArgumentError(f"{name} has {count} elements where {expected} are needed")


def _check_parts(
    group: Group, counts: Counts, whole: Buffer, whole_name: str, part: Buffer, part_name: str
) -> None:
    """`part` is as long as this rank's part of `whole`; it may be that very memory, or apart."""
    if counts is None:
        _check_count(whole.count, part.count * group.size, whole_name)
        start = part.count * group.rank
    else:
        _check_counts(group, counts, whole.count, whole_name)
        _check_count(part.count, counts[group.rank], part_name)
        start = sum(counts[: group.rank])
    in_place = part.address == whole.address + start * whole.dtype.itemsize
    if not in_place or part.dtype is not whole.dtype:
        _check_pair(whole, part)


def _check_counts(group: Group, counts: Sequence[int], total: int, name: str) -> None:
    """One count for each rank, none negative, that add up to `total`."""
    if len(counts) != group.size:
        raise ArgumentError(f"{len(counts)} counts for a group of {group.size} ranks")
    if any(count < 0 for count in counts):
        raise ArgumentError(f"counts cannot be negative: {list(counts)}")
    if sum(counts) != total:
        added = f"the counts {list(counts)} add up to {sum(counts)}"
        raise ArgumentError(f"{added}, but {name} has {total} elements")
