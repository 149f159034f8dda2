"""What callers pass, turned into what the core takes; errors have the types of torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from unisono.core import buffers, environment, groups
from unisono.core.arguments import as_int
from unisono.core.buffers import Buffer
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError

__all__ = [
    "NON_GROUP_MEMBER",
    "blocking",
    "flag",
    "group_of",
    "handle",
    "is_member",
    "members",
    "one_dtype",
    "operator",
    "root",
    "same_shape",
    "seconds",
    "shape_of",
    "view",
    "views",
]

#: What torch gives for a group to a rank that is not in it.
NON_GROUP_MEMBER = -100

_UNORDERED = frozenset(["min", "max", "band", "bor", "bxor"])  # not for complex numbers


def group_of(group: Any) -> Group:
    """A group from an object, from its name in the MindSpore face, or None for the world."""
    if group is None or isinstance(group, (Group, str)):
        return groups.resolve(group)
    if isinstance(group, int) and group == NON_GROUP_MEMBER:
        raise ArgumentError("this rank is not in the group, so it knows nothing about it")
    raise ArgumentError(  # a ValueError, as in torch
        f"expected a group of unisono, got {type(group).__name__}; make it with new_group of "
        "unisono.torch.distributed"
    )


def is_member(group: Any) -> bool:
    """Tell whether this rank is in the group."""
    if isinstance(group, int) and group == NON_GROUP_MEMBER:
        return False
    return group_of(group).rank >= 0


def members(group: Any, verb: str) -> Group | None:
    """The group; None, with torch's warning, on a rank that is not in it."""
    if group is None:
        return groups.world()
    if is_member(group):
        return group_of(group)
    warnings.warn(
        f"Running {verb} on global rank {groups.world().rank} which does not belong to the given "
        "group.",
        stacklevel=3,
    )
    return None


def root(group: Group, world_rank: int | None, group_rank: int | None, name: str) -> int:
    """A rank of the group: given as such, or as a rank of the world."""
    if (world_rank is None) == (group_rank is None):
        raise ArgumentError(
            f"give either {name}, a rank of the world, or group_{name}, a rank of the group"
        )
    if group_rank is not None:
        rank = as_int(group_rank, f"group_{name}")
        if not 0 <= rank < group.size:
            raise ArgumentError(
                f"group_{name} {rank} is not in group {group.name!r} of {group.size} ranks"
            )
        return rank
    rank = as_int(world_rank, name)
    if rank not in group.ranks:
        raise ArgumentError(
            f"{name} {rank} is not in group {group.name!r} of world ranks {list(group.ranks)}"
        )
    return group.ranks.index(rank)


def view(tensor: Any, name: str) -> Buffer:
    """The memory of one tensor; the error names the parameter."""
    try:
        return buffers.view(tensor)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"parameter {name}: {error}") from None


def views(tensors: Any, name: str) -> list[Buffer]:
    """The memory of each tensor of a list that is not empty."""
    if not isinstance(tensors, list):
        raise ArgumentTypeError(
            f"parameter {name}: expected a list of tensors, got {type(tensors).__name__}"
        )
    if not tensors:
        raise ArgumentError(f"parameter {name}: the list of tensors is empty")
    return [view(tensor, name) for tensor in tensors]


def one_dtype(parts: Sequence[Buffer]) -> None:
    """Refuse tensors of different dtypes, with a ValueError as in torch."""
    first = parts[0].dtype
    for part in parts:
        if part.dtype is not first:
            raise ArgumentError(
                f"the tensors of one call must have one dtype, not {first.name} and "
                f"{part.dtype.name}"
            )


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The lengths of its dimensions; plain buffers have them as well, but do not say so."""
    try:
        shape: Any = getattr(tensor, "shape", None)
        lengths: Any = memoryview(tensor).shape if shape is None else shape
        return tuple(lengths)
    except (RuntimeError, TypeError):  # a nested tensor, or a thing with a shape of another kind
        raise ArgumentTypeError(f"{type(tensor).__name__} without a plain shape") from None


def same_shape(entry: Any, tensor: Any, name: str) -> None:
    """Refuse a list whose entry for this rank is shaped otherwise than this rank's tensor."""
    ours, theirs = shape_of(tensor), shape_of(entry)
    if ours != theirs:
        raise ArgumentError(
            f"parameter {name}: the entry of this rank has shape {theirs}, its tensor {ours}"
        )


def operator(op: Any, data: Buffer) -> ReduceOp:
    """The operator, ours or real torch's, if numbers of this dtype can be combined with it."""
    known = op if type(op) is ReduceOp else _from_torch(op)
    if data.dtype.kind == "complex" and known.name in _UNORDERED:
        raise ArgumentError(f"complex numbers cannot be reduced with {known!r}")
    return known


def _from_torch(op: Any) -> ReduceOp:
    """Real torch has the names as members of an enum, and objects that hold one as `op`."""
    kind = getattr(op, "op", op)
    name = str(getattr(kind, "name", ""))
    if not getattr(type(kind), "__module__", "").startswith("torch") or not hasattr(ReduceOp, name):
        raise ArgumentTypeError(f"expected a ReduceOp, got {op!r}")
    if name == "PREMUL_SUM":
        return ReduceOp.premul_sum(getattr(op, "factor", 1.0))
    found: ReduceOp = getattr(ReduceOp, name)
    return found


def flag(value: Any, name: str) -> bool:
    """Whatever can be true or false; an array cannot."""
    try:
        return bool(value)
    except Exception as error:  # each kind of array has its own
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r}") from error


def blocking(async_op: Any) -> bool:
    """Whether the caller waits within the call."""
    return async_op is False or not flag(async_op, "async_op")


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout as the core takes it; None stays None."""
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta):
        raise ArgumentTypeError(f"expected timeout to be a datetime.timedelta, got {timeout!r}")
    return environment.timeout(timeout.total_seconds())


def handle(work: Work, async_op: bool, tensors: list[Any]) -> Work | None:
    """What a call returns: nothing, or the work, whose result is these tensors."""
    if not async_op:
        return None
    return work.with_value(tensors)
