"""The world and its groups, as this face takes them: by object, by name, None for the world."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.core import groups
from unisono.core.arguments import as_int
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady
from unisono.jax import failures

__all__ = ["close", "get_rank", "get_world_size", "init", "members", "new_group", "rank_in_group"]


def init(engine: str | None = None, timeout: float | None = None) -> Group:
    """Join the world that the launcher described; groups of the other faces work here as well."""
    return groups.init(engine, timeout)


def close() -> None:
    """Wait for the programs of this thread that are still running, then leave the world."""
    try:
        failures.wait_for_programs()
    finally:
        groups.close()


def get_rank(group: Group | str | None = None) -> int:
    """This rank's number in the group; -1 if it is not a member."""
    return _resolve(group).rank()


def get_world_size(group: Group | str | None = None) -> int:
    """How many ranks the group has."""
    return _resolve(group).size()


def new_group(ranks: Sequence[int]) -> Group:
    """Make a group of these ranks of the world, in the given order; all ranks must call it."""
    return groups.world().split(ranks)


def members(group: Group | str | None, verb: str) -> Group:
    """The group of a collective, if this rank is in it and it is open."""
    found = _resolve(group)
    if found.rank < 0:
        raise NotReady(
            f"{verb}: this rank is not in group {found.name!r} (world ranks {list(found.ranks)}); "
            "only members may call its collectives"
        )
    if found.engine is None:
        raise NotReady(f"{verb}: group {found.name!r} is closed; make a new one")
    return found


def rank_in_group(group: Group, world_rank: int, name: str) -> int:
    """The rank in the group of a rank of the world that the caller passed as `name`."""
    rank = as_int(world_rank, name)
    if rank not in group.ranks:
        raise ArgumentError(
            f"{name} {rank} is not in group {group.name!r} of world ranks {list(group.ranks)}"
        )
    return group.ranks.index(rank)


def _resolve(group: Group | str | None) -> Group:
    if group is not None and not isinstance(group, Group | str):
        raise ArgumentTypeError(
            f"group must be a group of unisono, its name, or None for the world, got {group!r}"
        )
    return groups.resolve(group)
