"""Groups of ranks: making them, and the ranks in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from unisono.core import fast, groups
from unisono.core.arguments import as_int, as_ints
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, LaunchError, NotReady
from unisono.torch.distributed import arguments
from unisono.torch.distributed.startup import check_backend

__all__ = [
    "GroupMember",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "shrink_group",
    "split_group",
]


class _World(type):
    """Gives a class the world as an attribute that is looked up when it is read."""

    @property
    def WORLD(cls) -> Group | None:  # noqa: N802 - upstream's spelling
        """The group of all ranks, or None before init_process_group."""
        return groups.world() if groups.is_initialized() else None


class group(metaclass=_World):  # noqa: N801 - upstream's spelling
    """Holds the world: `group.WORLD`.

    >>> unisono.spawn(lambda: dist.get_process_group_ranks(dist.group.WORLD), 2)
    [[0, 1], [0, 1]]
    """


class GroupMember(metaclass=_World):
    """Holds the world, and what a rank gets for a group that it is not in.

    >>> def others():
    ...     made = dist.new_group([0])
    ...     return made is dist.GroupMember.NON_GROUP_MEMBER
    >>> unisono.spawn(others, 2)
    [False, True]
    """

    NON_GROUP_MEMBER = arguments.NON_GROUP_MEMBER


def get_rank(group: Group | None = None) -> int:
    """This rank's number in the group; -1 if it is not a member.

    >>> unisono.spawn(dist.get_rank, 3)
    [0, 1, 2]
    """
    known = fast.get_rank(group)
    if known is not NotImplemented:
        return known  # type: ignore[no-any-return]
    return arguments.group_of(group).rank() if arguments.is_member(group) else -1


def get_world_size(group: Group | None = None) -> int:
    """How many ranks the group has; -1 if this rank is not a member.

    >>> unisono.spawn(dist.get_world_size, 3)
    [3, 3, 3]
    """
    known = fast.get_size(group)
    if known is not NotImplemented:
        return known  # type: ignore[no-any-return]
    return arguments.group_of(group).size() if arguments.is_member(group) else -1


def get_backend(group: Group | None = None) -> str:
    """The name of the group's engine, whatever backend was asked for.

    >>> unisono.spawn(dist.get_backend, 2)
    ['threads', 'threads']
    """
    engine = arguments.group_of(group).engine
    if engine is None:
        raise NotReady("this rank is not in the group, or the group is closed")
    return engine.name


def get_group_rank(group: Group, global_rank: int) -> int:
    """The rank in the group of a rank of the world.

    >>> def in_pair():
    ...     pair = dist.new_group([1, 3])
    ...     return dist.get_group_rank(pair, 3) if dist.get_rank() in (1, 3) else None
    >>> unisono.spawn(in_pair, 4)
    [None, 1, None, 1]
    """
    members = arguments.group_of(group)
    global_rank = as_int(global_rank, "global_rank")
    if global_rank not in members.ranks:
        raise ArgumentError(f"global rank {global_rank} is not part of {members}")
    return members.ranks.index(global_rank)


def get_global_rank(group: Group, group_rank: int) -> int:
    """The rank in the world of a rank of the group.

    >>> def in_world():
    ...     pair = dist.new_group([1, 3])
    ...     return dist.get_global_rank(pair, 0) if dist.get_rank() in (1, 3) else None
    >>> unisono.spawn(in_world, 4)
    [None, 1, None, 1]
    """
    members = arguments.group_of(group)
    group_rank = as_int(group_rank, "group_rank")
    if group_rank not in range(members.size):
        raise ArgumentError(f"group rank {group_rank} is not part of {members}")
    return members.ranks[group_rank]


def get_process_group_ranks(group: Group | None) -> list[int]:
    """The ranks of the world that are in the group, in the order of their group ranks.

    >>> unisono.spawn(lambda: dist.get_process_group_ranks(None), 2)
    [[0, 1], [0, 1]]
    """
    return list(arguments.group_of(group).ranks)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This rank's number on its host, as the launcher set it.

    >>> dist.get_node_local_rank(fallback_rank=0)
    0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise LaunchError(
            "LOCAL_RANK is not set; start ranks with `unisono run`, or pass fallback_rank"
        )
    return as_int(fallback_rank, "fallback_rank")


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """Make a group of these ranks of the world, in rising order unless `sort_ranks` is false.

    Other ranks get GroupMember.NON_GROUP_MEMBER (None with `use_local_synchronization`). The group
    is on the engine of the world, whatever `backend` says.

    >>> def total():
    ...     pair = dist.new_group([0, 2])
    ...     x = np.array([dist.get_rank()])
    ...     if dist.get_rank() in (0, 2):
    ...         dist.all_reduce(x, group=pair)
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[2], [1], [2]]
    """
    check_backend(backend)
    seconds = arguments.seconds(timeout)
    local = arguments.flag(use_local_synchronization, "use_local_synchronization")
    world = groups.world()
    chosen = as_ints(range(world.size) if ranks is None else ranks, "ranks")
    made = world.split(sorted(chosen) if arguments.flag(sort_ranks, "sort_ranks") else chosen)
    if made.engine is None:
        return None if local else GroupMember.NON_GROUP_MEMBER
    if seconds is not None:
        made.engine.timeout = seconds
    return made


def new_subgroups(
    group_size: int | None = None,
    group: Group | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Cut the group into groups of `group_size` neighbours; returns this rank's, and all.

    >>> def halves():
    ...     mine, both = dist.new_subgroups(2)
    ...     return dist.get_process_group_ranks(mine), len(both)
    >>> unisono.spawn(halves, 4)
    [([0, 1], 2), ([0, 1], 2), ([2, 3], 2), ([2, 3], 2)]
    """
    if group_size is None:
        raise ArgumentError("give group_size: there is no default without GPUs")
    group_size = as_int(group_size, "group_size")
    ranks = get_process_group_ranks(group)
    if not 0 < group_size <= len(ranks) or len(ranks) % group_size:
        raise ArgumentError(f"{len(ranks)} ranks cannot be cut into groups of {group_size}")
    cuts = [ranks[start : start + group_size] for start in range(0, len(ranks), group_size)]
    return new_subgroups_by_enumeration(cuts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Make a group of each list of ranks; returns this rank's group, or None, and all of them.

    >>> def pairs():
    ...     mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    ...     return dist.get_process_group_ranks(mine)
    >>> unisono.spawn(pairs, 4)
    [[0, 2], [1, 3], [0, 2], [1, 3]]
    """
    wanted = _rank_lists(ranks_per_subgroup_list, "ranks_per_subgroup_list")
    every = [rank for ranks in wanted for rank in ranks]
    if len(set(every)) != len(every):
        raise ArgumentError(f"a rank is in two of the groups {wanted}")
    made = [new_group(ranks, timeout, backend) for ranks in wanted]
    return next((one for one in made if isinstance(one, Group)), None), made


def shrink_group(
    ranks_to_exclude: list[int],
    group: Group | None = None,
    shrink_flags: int = 0,
    pg_options: Any = None,
) -> Group:
    """Make a group of the ranks that are alive and not excluded; they all call it.

    Ranks that have ended need not be named: the list may be empty. Calls of the group that are
    under way always end, whatever `shrink_flags` says. If the group is the world, the new one takes
    its place with new rank numbers, and all other groups are closed.

    >>> def without_rank_1():
    ...     if dist.get_rank() == 1:
    ...         return None
    ...     return dist.shrink_group([1]).size
    >>> unisono.spawn(without_rank_1, 3)
    [2, None, 2]
    """
    if not isinstance(ranks_to_exclude, list | tuple):
        raise ArgumentTypeError(f"ranks_to_exclude must be a list, not {ranks_to_exclude!r}")
    excluded = as_ints(ranks_to_exclude, "ranks_to_exclude")
    if len(set(excluded)) != len(excluded):
        raise ArgumentError(f"ranks_to_exclude {excluded} names a rank twice")
    if as_int(shrink_flags, "shrink_flags") not in (0, 1):
        raise ArgumentError(f"shrink_flags is {shrink_flags!r}; give 0 (default) or 1 (abort)")
    members = arguments.group_of(group)
    return members.shrink(excluded, world=members is groups.world())


def split_group(
    parent_pg: Group | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Group | None:
    """Split the parent by lists of its ranks; returns this rank's group, None if it is in none.

    >>> def halves():
    ...     mine = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    ...     return dist.get_rank(mine)
    >>> unisono.spawn(halves, 4)
    [0, 1, 0, 1]
    """
    wanted = _rank_lists([] if split_ranks is None else split_ranks, "split_ranks")
    check_backend(backend)
    seconds = arguments.seconds(timeout)
    parent = arguments.group_of(parent_pg)
    made = [parent.split(sorted(ranks)) for ranks in wanted]
    mine = next((one for one in made if one.engine is not None), None)
    if mine is not None and mine.engine is not None and seconds is not None:
        mine.engine.timeout = seconds
    return mine


def _rank_lists(lists: Any, name: str) -> list[list[int]]:
    """Lists of ranks, at least one."""
    if not isinstance(lists, list | tuple):
        raise ArgumentTypeError(f"parameter {name}: expected a list of lists, got {lists!r}")
    if not lists:
        raise ArgumentError(f"{name} is empty")
    return [as_ints(ranks, name) for ranks in lists]
