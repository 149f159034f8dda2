"""What callers pass, turned into what the core takes; errors have the types of torch.

The checks that are torch's own rules are used by the backend too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from unisono.core import buffers, environment, groups
from unisono.core.arguments import as_int, check_length, check_list, check_shape
from unisono.core.buffers import Buffer
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, CommTimeout

__all__ = [
    "NON_GROUP_MEMBER",
    "blocking",
    "check_entries",
    "check_given_on_root",
    "check_operator",
    "flag",
    "group_of",
    "handle",
    "is_member",
    "factor_of",
    "members",
    "operator",
    "root",
    "root_or_first",
    "seconds",
    "timeout_of_world",
    "view",
    "views",
    "warn_of_old_name",
]

#: What torch gives for a group to a rank that is not in it.
NON_GROUP_MEMBER = -100

#: Operators that complex numbers do not have.
_UNORDERED = frozenset(["min", "max", "band", "bor", "bxor"])


# ---- groups --------------------------------------------------------------------------------------


def group_of(group: Any) -> Group:
    """A group from an object, from its name in the MindSpore face, or None for the world."""
    if group is None or isinstance(group, (Group, str)):
        return groups.resolve(group)
    if _is_non_member(group):
        raise ArgumentError("this rank is not in the group, so it knows nothing about it")
    raise ArgumentError(  # a ValueError, as in torch
        f"expected a group of unisono, got {type(group).__name__}; make it with new_group of "
        "unisono.torch.distributed"
    )


def is_member(group: Any) -> bool:
    """Tell whether this rank is in the group."""
    return not _is_non_member(group) and group_of(group).rank >= 0


def _is_non_member(group: Any) -> bool:
    return isinstance(group, int) and group == NON_GROUP_MEMBER


def members(group: Any, verb: str) -> Group | None:
    """The group; None, with torch's warning, on a rank that is not in it."""
    if group is None:
        return groups.world()
    if not _is_non_member(group):
        found = group_of(group)
        if found.rank >= 0:
            return found
    warnings.warn(
        f"Running {verb} on global rank {groups.world().rank} which does not belong to the given "
        "group.",
        stacklevel=3,
    )
    return None


# ---- ranks ---------------------------------------------------------------------------------------


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


def root_or_first(group: Group, world_rank: int | None, group_rank: int | None, name: str) -> int:
    """The root where torch has a default: rank 0 of the world, which must be in the group."""
    if world_rank is None and group_rank is None:
        world_rank = 0
    return root(group, world_rank, group_rank, name)


# ---- tensors -------------------------------------------------------------------------------------


def view(tensor: Any, name: str) -> Buffer:
    """The memory of one tensor; the error names the parameter."""
    try:
        return buffers.view(tensor)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"parameter {name}: {error}") from None


def views(tensors: Any, name: str) -> list[Buffer]:
    """The memory of each tensor of a list that is not empty."""
    check_list(tensors, f"parameter {name}")
    check_length(tensors, f"parameter {name}")
    return [view(tensor, name) for tensor in tensors]


def check_entries(group: Group, parts: Sequence[Buffer], own: Buffer, name: str) -> None:
    """Refuse a list unless it has one entry for each rank, this rank's shaped like its tensor."""
    check_length(parts, f"parameter {name}", group.size)
    check_shape(parts[group.rank].shape, own.shape, f"parameter {name}: the entry of this rank")


def check_given_on_root(group: Group, root: int, tensors: Any, name: str) -> None:
    """Refuse a list that is missing on the root, or that another rank gives."""
    if group.rank == root and not tensors:
        raise ArgumentError(f"parameter {name} must be given on the root, rank {root} of the group")
    if group.rank != root and tensors:
        raise ArgumentError(f"parameter {name} must not be given on other ranks than the root")


# ---- operators -----------------------------------------------------------------------------------


def operator(op: Any, data: Buffer) -> ReduceOp:
    """The operator, ours or real torch's, if numbers of this dtype can be combined with it."""
    known = op if type(op) is ReduceOp else _from_torch(op)
    check_operator(known, data)
    return known


def check_operator(op: ReduceOp, data: Buffer) -> None:
    """Refuse to order complex numbers; it is a ValueError, as in torch."""
    if data.dtype.kind == "complex" and op.name in _UNORDERED:
        raise ArgumentError(f"complex numbers cannot be reduced with {op!r}")


def _from_torch(op: Any) -> ReduceOp:
    """Real torch has the names as members of an enum, and objects that hold one as `op`."""
    kind = getattr(op, "op", op)
    name = str(getattr(kind, "name", ""))
    if not getattr(type(kind), "__module__", "").startswith("torch") or not hasattr(ReduceOp, name):
        raise ArgumentTypeError(f"expected a ReduceOp, got {op!r}")
    if name == "PREMUL_SUM":
        return ReduceOp.premul_sum(factor_of(op))
    found: ReduceOp = getattr(ReduceOp, name)
    return found


def factor_of(op: Any) -> Any:
    """What real torch's PREMUL_SUM multiplies by; the bare name multiplies by one."""
    # Newer torch has it as an attribute, too.
    return op.__getstate__()[1] if hasattr(op, "op") else 1.0


# ---- names ---------------------------------------------------------------------------------------


def warn_of_old_name(name: str, instead: str) -> None:
    """Warn the caller of a function of the face, as torch does."""
    warnings.warn(
        f"`torch.distributed.{name}` is a private name, which torch will give up; use `{instead}`, "
        "which does the same",
        FutureWarning,
        stacklevel=3,
    )


# ---- how long a call waits, and what it returns --------------------------------------------------


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


def timeout_of_world(error: CommTimeout, group: Group, timeout: float | None) -> CommTimeout:
    """The error of a monitored barrier: it names the missing ranks by their world ranks."""
    late = [group.ranks[rank] for rank in error.ranks]
    after = "in time" if timeout is None else f"within {timeout:g} s"
    return CommTimeout(f"monitored_barrier: ranks {late} did not come {after}: {error}", late)


def handle(work: Work, async_op: bool, tensors: list[Any]) -> Work | None:
    """What a call returns: nothing, or the work, whose result is these tensors."""
    return work.with_value(tensors) if async_op else None
