"""What a call needs of its memory, its counts and its ranks.

An error here comes before anything moves, and names arguments as the caller's function does.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.core.arguments import as_int
from unisono.core.buffers import Buffer, check_writable, overlap
from unisono.core.call import Counts
from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported

__all__ = [
    "Names",
    "check_count",
    "check_counts",
    "check_exchange",
    "check_operator",
    "check_pair",
    "check_parts",
    "check_rank",
    "check_reduction",
    "check_tag",
    "need",
]

#: What the caller calls source and destination.
Names = tuple[str, str]


def need(buffer: Buffer | None, name: str) -> Buffer:
    """The buffer of a root, which has to be there."""
    if buffer is None:
        raise ArgumentError(f"{name} on the root is missing")
    return buffer


def check_reduction(source: Buffer, destination: Buffer, op: ReduceOp, names: Names) -> None:
    """Both sides of a reduction have one length and dtype, and the operator suits it."""
    if type(op) is not ReduceOp or op.name not in source.dtype.operators:
        check_operator(source, op, names[0])
    if source is not destination:
        check_pair(source, destination, names)
        check_count(destination.count, source.count, names[1])
    if not destination.writable:
        check_writable(destination, names[1])


def check_operator(source: Buffer, op: ReduceOp, name: str) -> None:
    """Elements of this dtype can be reduced with the operator."""
    if not isinstance(op, ReduceOp):
        raise ArgumentTypeError(f"op must be a ReduceOp, got {op!r}")
    if op.name not in source.dtype.operators:
        able = ", ".join(sorted(source.dtype.operators)) or "none: it can only be moved"
        raise Unsupported(
            f"{name} is {source.dtype.name}, which cannot be reduced with {op.name}; it has {able}"
        )


def check_rank(group: Group, rank: int, name: str) -> None:
    """A root or a peer is a rank of the group."""
    if not hasattr(rank, "__index__"):
        raise ArgumentTypeError(f"{name} must be a rank of the group, got {rank!r}")
    if not 0 <= rank < group.size:
        last = group.size - 1
        raise ArgumentError(f"{name} {rank} is out of range: the group has ranks 0 to {last}")


def check_tag(tag: int) -> None:
    """The tag of a message has at most 64 bits."""
    if not -(1 << 63) <= as_int(tag, "tag") < 1 << 63:
        raise ArgumentError(f"tag {tag} has more than 64 bits")


def check_pair(source: Buffer, destination: Buffer, names: Names) -> None:
    """Same dtype, and memory that is either the same or apart; in either order."""
    first, second = names
    if source.dtype is not destination.dtype:
        dtypes = f"{source.dtype.name} and {destination.dtype.name}"
        raise ArgumentTypeError(f"{first} and {second} must have one dtype, not {dtypes}")
    if not overlap(source, destination):
        return
    if source.address == destination.address and source.count == destination.count:
        return
    raise ArgumentError(
        f"{first} and {second} overlap without being the same memory; pass a copy of one of them"
    )


def check_count(count: int, expected: int, name: str) -> None:
    """A buffer has as many elements as the call needs."""
    if count != expected:
        raise ArgumentError(f"{name} has {count} elements where {expected} are needed")


def check_parts(group: Group, counts: Counts, whole: Buffer, part: Buffer, names: Names) -> None:
    """`part` is as long as this rank's part of `whole`; it may be that very memory, or apart."""
    if counts is None:
        check_count(whole.count, part.count * group.size, names[0])
        start = part.count * group.rank
    else:
        check_counts(group, counts, whole.count, names[0])
        check_count(part.count, counts[group.rank], names[1])
        start = sum(counts[: group.rank])
    in_place = part.address == whole.address + start * whole.dtype.itemsize
    if not in_place or part.dtype is not whole.dtype:
        check_pair(whole, part, names)


def check_exchange(
    group: Group,
    source: Buffer,
    destination: Buffer,
    sends: Counts,
    receives: Counts,
    names: Names,
) -> None:
    """Counts of an all_to_all fit both buffers, which are apart or the same."""
    if (sends is None) != (receives is None):
        raise ArgumentError(f"give counts of both {names[0]} and {names[1]}, or of neither")
    if sends is None or receives is None:
        if source.count % group.size:
            raise ArgumentError(
                f"{names[0]} has {source.count} elements, not a multiple of the {group.size} ranks"
            )
        check_count(destination.count, source.count, names[1])
    else:
        check_counts(group, sends, source.count, names[0])
        check_counts(group, receives, destination.count, names[1])
    check_pair(source, destination, names)
    check_writable(destination, names[1])


def check_counts(group: Group, counts: Sequence[int], total: int, name: str) -> None:
    """One count for each rank, none negative, that add up to `total`."""
    if len(counts) != group.size:
        raise ArgumentError(f"{len(counts)} counts of {name} for a group of {group.size} ranks")
    if any(count < 0 for count in counts):
        raise ArgumentError(f"counts of {name} cannot be negative: {list(counts)}")
    if sum(counts) != total:
        added = f"the counts {list(counts)} add up to {sum(counts)}"
        raise ArgumentError(f"{added}, but {name} has {total} elements")
