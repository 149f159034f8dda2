"""The MindSpore face: joining the world, ranks, and groups by name.

A group is a name (MindSpore has several for the world), a group object of the PyTorch face, or None
for the world.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from unisono.core import groups
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, LaunchError, NotReady
from unisono.mindspore._arguments import check_integer, engine_for
from unisono.mindspore._groups import (
    HCCL_WORLD_COMM_GROUP,
    MCCL_WORLD_COMM_GROUP,
    NCCL_WORLD_COMM_GROUP,
    UnknownName,
    check_group,
    resolve_group,
    resolve_root,
    world_rank_of,
)
from unisono.mindspore._patch import take_over

__all__ = [
    "GlobalComm",
    "HCCL_WORLD_COMM_GROUP",
    "MCCL_WORLD_COMM_GROUP",
    "NCCL_WORLD_COMM_GROUP",
    "create_group",
    "destroy_group",
    "get_comm_name",
    "get_group_rank_from_world_rank",
    "get_group_size",
    "get_local_rank",
    "get_local_rank_size",
    "get_process_group_ranks",
    "get_rank",
    "get_world_rank_from_group_rank",
    "init",
    "release",
]

_BACKENDS = {
    "hccl": HCCL_WORLD_COMM_GROUP,
    "nccl": NCCL_WORLD_COMM_GROUP,
    "mccl": MCCL_WORLD_COMM_GROUP,
}
_log = logging.getLogger("unisono")


class _Live(type):
    """Let `GlobalComm.INITED` be right for the thread that reads it."""

    @property
    def INITED(cls) -> bool:  # noqa: N802  (upstream's spelling)
        """Whether this rank has a world."""
        return groups.is_initialized()


class GlobalComm(metaclass=_Live):
    """Names of the backend and of the world, which depend on what `init` is given.

    >>> comm.GlobalComm.WORLD_COMM_GROUP.endswith("_world_group")
    True
    """

    BACKEND = "hccl"
    WORLD_COMM_GROUP = HCCL_WORLD_COMM_GROUP
    CHECK_ENVS = True


def init(backend_name: str | None = None) -> None:
    """Join the world; a second call does nothing.

    The backends of MindSpore (hccl, nccl, mccl) all mean the engine that fits; the name of an
    engine of unisono works too.

    >>> comm.init()  # ranks and sizes come from the launcher; here there is none
    >>> comm.get_rank(), comm.get_group_size()
    (0, 1)
    >>> comm.release()
    """
    if backend_name is not None and not isinstance(backend_name, str):
        raise ArgumentTypeError(f"backend_name must be a string, got {backend_name!r}")
    name = backend_name or "mccl"  # what MindSpore picks on a CPU
    engine = engine_for(name, _BACKENDS, "backend_name")
    take_over()
    if not groups.is_initialized():
        # Not claimed, so that the PyTorch face may init in the same process.
        groups.init(engine, claimed=False)
    GlobalComm.BACKEND = name if engine is None else "mccl"
    GlobalComm.WORLD_COMM_GROUP = _BACKENDS[GlobalComm.BACKEND]


def release() -> None:
    """Leave the world and all its groups.

    >>> def leave():
    ...     comm.release()
    ...     return comm.GlobalComm.INITED
    >>> unisono.spawn(leave, 2)
    [False, False]
    """
    groups.close()


def get_rank(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return this rank in the group; before `init` what the environment says, or 0.

    >>> unisono.spawn(comm.get_rank, 3)
    [0, 1, 2]
    """
    if not groups.is_initialized():
        return _from_environment(group, 0, "RANK_ID", "UNISONO_RANK")
    return _member(group).rank()


def get_local_rank(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return this rank among the members that are on this host.

    >>> unisono.spawn(comm.get_local_rank, 2)
    [0, 1]
    """
    if not groups.is_initialized():
        return _from_environment(group, 0, "LOCAL_RANK", "UNISONO_LOCAL_RANK")
    members = _member(group)
    return members.local_ranks().index(members.ranks[members.rank])


def get_group_size(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return how many ranks the group has; before `init` what the environment says, or 1.

    >>> unisono.spawn(comm.get_group_size, 3)
    [3, 3, 3]
    """
    if not groups.is_initialized():
        return _from_environment(group, 1, "RANK_SIZE", "UNISONO_SIZE")
    return resolve_group(group).size()


def get_local_rank_size(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return how many members of the group are on this host.

    >>> unisono.spawn(comm.get_local_rank_size, 2)
    [2, 2]
    """
    if not groups.is_initialized():
        return _from_environment(group, 1, "LOCAL_RANK_SIZE", "UNISONO_LOCAL_SIZE")
    return len(resolve_group(group).local_ranks())


def get_world_rank_from_group_rank(group: str | Group | None, group_rank_id: int) -> int:
    """Return the world rank of the member that has this rank in the group.

    >>> def in_world():
    ...     if comm.get_rank() == 0:
    ...         return None
    ...     comm.create_group("last", [1, 2])
    ...     return comm.get_world_rank_from_group_rank("last", 0)
    >>> unisono.spawn(in_world, 3)
    [None, 1, 1]
    """
    return world_rank_of(group, group_rank_id, "group_rank_id")


def get_group_rank_from_world_rank(world_rank_id: int, group: str | Group | None) -> int:
    """Return the rank in the group of the member that has this world rank.

    >>> def in_group():
    ...     if comm.get_rank() == 0:
    ...         return None
    ...     comm.create_group("last", [1, 2])
    ...     return comm.get_group_rank_from_world_rank(2, "last")
    >>> unisono.spawn(in_group, 3)
    [None, 1, 1]
    """
    return resolve_root(group, world_rank_id, "world_rank_id")[1]


def create_group(group: str, rank_ids: list[int], options: Any = None) -> None:
    """Make a group of these world ranks, in this order, under a name; only its members call this.

    `options` is MindSpore's GroupOptions; it is accepted and changes nothing.

    >>> def total():
    ...     x = np.array([comm.get_rank()])
    ...     if comm.get_rank() != 1:
    ...         comm.create_group("pair", [0, 2])
    ...         x, _ = comm_func.all_reduce(x, group="pair")
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[2], [1], [2]]
    """
    if not isinstance(group, str):
        raise ArgumentTypeError(f"group must be a name, got {group!r}")
    if not isinstance(rank_ids, list):
        raise ArgumentTypeError(f"rank_ids must be a list, got {rank_ids!r}")
    for rank in rank_ids:
        check_integer(rank, "each entry of rank_ids")
    if options is not None and type(options).__name__ != "GroupOptions":
        raise ArgumentTypeError(f"options must be GroupOptions, got {options!r}")
    if not rank_ids or len(set(rank_ids)) != len(rank_ids):
        raise ArgumentError(f"rank_ids must name each member once, got {rank_ids}")
    world = groups.world()
    try:
        existing = resolve_group(group)
    except UnknownName:
        pass
    else:
        if list(existing.ranks) != rank_ids:
            raise ArgumentError(
                f"group {group!r} exists with ranks {list(existing.ranks)}, not {rank_ids}; "
                "destroy it first"
            )
        _log.warning("group %r with ranks %s exists already", group, rank_ids)
        return
    if world.rank not in rank_ids:
        raise NotReady(
            f"rank {world.rank} is not among the ranks {rank_ids} of group {group!r}; "
            "only members create a group"
        )
    world.split(rank_ids, group)


def destroy_group(group: str | Group | None) -> None:
    """Leave the group and forget its name.

    >>> def leave():
    ...     comm.create_group("all", [0, 1])
    ...     comm.destroy_group("all")
    ...     comm.create_group("all", [1, 0])
    ...     return comm.get_rank("all")
    >>> unisono.spawn(leave, 2)
    [1, 0]
    """
    members = resolve_group(group)
    if members is groups.world():
        raise ArgumentError("the world cannot be destroyed; use release() to leave it")
    members.close()


def get_comm_name(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> str:
    """Return the name of HCCL's communicator; the empty string, because there is none here.

    >>> unisono.spawn(comm.get_comm_name, 1)
    ['']
    """
    resolve_group(group)
    return ""


def get_process_group_ranks(group: str | Group | None = GlobalComm.WORLD_COMM_GROUP) -> list[int]:
    """Return the world ranks of the group, in the order in which they were given.

    >>> unisono.spawn(comm.get_process_group_ranks, 2)
    [[0, 1], [0, 1]]
    """
    return list(resolve_group(group).ranks)


def _from_environment(group: object, default: int, *names: str) -> int:
    """What the launcher says; which group is asked for does not matter before there are any."""
    check_group(group)
    for name in names:
        text = os.environ.get(name)
        if text:
            try:
                return int(text)
            except ValueError:
                raise LaunchError(f"{name} is {text!r}; it must be a whole number") from None
    return default


def _member(group: str | Group | None) -> Group:
    members = resolve_group(group)
    if members.rank < 0:
        raise NotReady(
            f"this rank is not in group {members.name!r} (world ranks {list(members.ranks)})"
        )
    return members
