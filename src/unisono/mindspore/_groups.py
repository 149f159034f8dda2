"""Groups as this dialect passes them: by name, None for the world, and ranks of the world."""

from __future__ import annotations

from unisono.core import groups
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._arguments import check_integer

__all__ = [
    "HCCL_WORLD_COMM_GROUP",
    "MCCL_WORLD_COMM_GROUP",
    "NCCL_WORLD_COMM_GROUP",
    "UnknownName",
    "check_group",
    "is_world",
    "resolve_group",
    "resolve_root",
    "root_in_group",
    "world_rank_of",
]

# What MindSpore calls the world, by device; here all of them mean the same group.
HCCL_WORLD_COMM_GROUP = "hccl_world_group"
NCCL_WORLD_COMM_GROUP = "nccl_world_group"
MCCL_WORLD_COMM_GROUP = "mccl_world_group"
_WORLD_NAMES = (HCCL_WORLD_COMM_GROUP, NCCL_WORLD_COMM_GROUP, MCCL_WORLD_COMM_GROUP)
groups.add_world_names(*_WORLD_NAMES)


class UnknownName(ArgumentError, KeyError):
    """A group, or a rank of a group, that does not exist.

    MindSpore raises KeyError, RuntimeError or ValueError for this, depending on the function. This
    is all three.
    """

    def __str__(self) -> str:
        return RuntimeError.__str__(self)  # KeyError would show the text in quotes


def check_group(group: object) -> None:
    """Refuse what cannot be a group, whether it exists or not."""
    if group is not None and not isinstance(group, str | Group):
        raise ArgumentTypeError(f"group must be a name, got {group!r}")


def is_world(group: object) -> bool:
    """Tell whether this means the world, even where there is none yet."""
    return group is None or (isinstance(group, str) and group in (groups.WORLD_NAME, *_WORLD_NAMES))


def resolve_group(group: str | Group | None) -> Group:
    """The group behind a name, an object of the PyTorch face, or None for the world."""
    check_group(group)
    try:
        return groups.resolve(group)
    except ArgumentError as error:
        raise UnknownName(str(error)) from None


def root_in_group(group: Group, world_rank: int, name: str) -> int:
    """The rank in the group of a rank of the world that the caller passed as `name`."""
    check_integer(world_rank, name)
    try:
        return group.ranks.index(world_rank)
    except ValueError:
        raise UnknownName(
            f"{name} {world_rank} is not in group {group.name!r}; "
            f"its world ranks are {list(group.ranks)}"
        ) from None


def resolve_root(group: str | Group | None, world_rank: int, name: str) -> tuple[Group, int]:
    """A group, and the rank in it of a rank of the world that the caller passed as `name`."""
    check_integer(world_rank, name)  # even where there is no world yet
    members = resolve_group(group)
    return members, root_in_group(members, world_rank, name)


def world_rank_of(group: str | Group | None, group_rank: int, name: str) -> int:
    """The world rank of a rank of the group that the caller passed as `name`."""
    check_integer(group_rank, name)
    members = resolve_group(group)
    if group_rank < 0:
        raise ArgumentTypeError(f"{name} must be 0 or more, got {group_rank}")
    if group_rank >= members.size:
        raise ArgumentError(
            f"{name} {group_rank} is out of range: group {members.name!r} has {members.size} ranks"
        )
    return members.ranks[group_rank]
