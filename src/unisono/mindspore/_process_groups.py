"""Joining the world and making groups, as mint and ops.communication have it.

Groups are names here. Only the members call `new_group`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from datetime import timedelta
from types import NoneType
from typing import Any

from unisono.core import environment, groups
from unisono.errors import ArgumentError, ArgumentTypeError, LaunchError, UnisonoError
from unisono.mindspore._arguments import check_integer, check_type, engine_for
from unisono.mindspore._groups import (
    HCCL_WORLD_COMM_GROUP,
    is_world,
    resolve_root,
    world_rank_of,
)
from unisono.mindspore._patch import take_over
from unisono.mindspore._store import TCPStore
from unisono.mindspore.communication import management

__all__ = [
    "destroy_process_group",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
]

#: Upstream's backends; all of them mean the engine that fits.
_BACKENDS = ("hccl", "nccl", "mccl", "unisono")
#: What a launcher may say besides: how many ranks this host has.
_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")


def is_available() -> bool:
    """Tell whether this module can be used: always.

    >>> mint.is_available()
    True
    """
    return True


def is_initialized() -> bool:
    """Tell whether this rank has joined the world.

    >>> mint.is_initialized(), unisono.spawn(mint.is_initialized, 2)
    (False, [True, True])
    """
    return groups.is_initialized()


def init_process_group(
    backend: str = "hccl",
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: TCPStore | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Join the world; a second call does nothing.

    `backend` is one of upstream's or the name of an engine. With `init_method="tcp://host:port"` or
    a `store`, the caller gives `world_size` and `rank`; otherwise the launcher does.

    >>> mint.init_process_group(init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)
    >>> mint.get_rank(), mint.get_world_size()
    (0, 1)
    >>> mint.destroy_process_group()
    """
    for value, name, kind in (
        (init_method, "init_method", str),
        (timeout, "timeout", timedelta),
        (store, "store", TCPStore),
        (group_name, "group_name", str),
    ):
        check_type(value, name, kind, NoneType)
    check_integer(world_size, "world_size")
    check_integer(rank, "rank")
    engine = engine_for(backend, _BACKENDS, "backend")
    if init_method is not None and store is not None:
        raise ArgumentError("give init_method or store, not both")
    seconds = None if timeout is None else timeout.total_seconds()
    address = None
    if init_method is not None or store is not None:
        address = _address(init_method, store, rank, world_size)
    take_over()
    if not groups.is_initialized():
        launch = None if address is None else _launch(*address, rank, world_size)
        # Not claimed, so that the PyTorch face may init in the same process.
        groups.init(engine, seconds, claimed=False, launch=launch)
    size = groups.world().size
    if world_size not in (-1, size):
        raise ArgumentError(f"world_size is {world_size}, but the world has {size} ranks")


def destroy_process_group(group: str | None = None) -> None:
    """Leave a group and forget its name, or leave the world and all its groups.

    >>> def leave():
    ...     mint.destroy_process_group()
    ...     return mint.is_initialized()
    >>> unisono.spawn(leave, 2)
    [False, False]
    """
    if is_world(group):
        management.release()
    else:
        management.destroy_group(group)


def get_rank(group: str | None = None) -> int:
    """This rank in the group; -1 if there is no such group or this rank is not in it.

    >>> unisono.spawn(mint.get_rank, 3)
    [0, 1, 2]
    """
    return _or_minus_one(management.get_rank, group)


def get_world_size(group: str | None = None) -> int:
    """How many ranks the group has; -1 if there is no such group.

    >>> unisono.spawn(mint.get_world_size, 3)
    [3, 3, 3]
    """
    return _or_minus_one(management.get_group_size, group)


def new_group(
    ranks: list[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
) -> str:
    """Make a group of these world ranks, in rising order, and return its name.

    The same ranks give the same group. A rank that is not in the list gets "".

    >>> def total():
    ...     pair = mint.new_group([0, 2])
    ...     x = np.array([mint.get_rank()])
    ...     if pair:
    ...         mint.all_reduce(x, group=pair)
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[2], [1], [2]]
    """
    if ranks is None:
        return HCCL_WORLD_COMM_GROUP
    if not isinstance(ranks, list):
        raise ArgumentTypeError(f"ranks must be a list, got {type(ranks).__name__}")
    for rank in ranks:
        check_integer(rank, "each of ranks")
    if not (backend is None or (isinstance(backend, str) and backend in ("hccl", "mccl"))):
        raise ArgumentTypeError(f"backend must be hccl, mccl or None, got {backend!r}")
    if pg_options is not None and type(pg_options).__name__ != "GroupOptions":
        raise ArgumentTypeError(f"pg_options must be GroupOptions or None, got {pg_options!r}")
    chosen = sorted(ranks)
    digest = hashlib.sha1("_".join(map(str, chosen)).encode(), usedforsecurity=False).hexdigest()
    name = f"{backend or 'hccl'}_{len(chosen)}_{digest}"
    world = groups.world()
    if chosen and world.rank not in chosen and set(chosen) <= set(world.ranks):
        return ""
    try:
        groups.find(name)
    except ArgumentError:
        world.split(chosen, name)
    return name


def get_backend(group: str | None = None) -> str:
    """The name of the backend, which upstream reads from the name of the group.

    >>> mint.get_backend()
    'hccl'
    """
    check_type(group, "group", str, NoneType)
    return "mccl" if group is not None and "mccl" in group else "hccl"


def get_global_rank(group: str | None, group_rank: int) -> int:
    """The world rank of a rank of the group.

    >>> def in_world():
    ...     pair = mint.new_group([1, 3])
    ...     return mint.get_global_rank(pair, 0) if pair else None
    >>> unisono.spawn(in_world, 4)
    [None, 1, None, 1]
    """
    return world_rank_of(group, group_rank, "group_rank")


def get_group_rank(group: str | None, global_rank: int) -> int:
    """The rank in the group of a rank of the world.

    >>> def in_pair():
    ...     pair = mint.new_group([1, 3])
    ...     return mint.get_group_rank(pair, 3) if pair else None
    >>> unisono.spawn(in_pair, 4)
    [None, 1, None, 1]
    """
    return resolve_root(group, global_rank, "global_rank")[1]


def get_process_group_ranks(group: str | None = None) -> list[int]:
    """The world ranks of the group, in its order.

    >>> unisono.spawn(mint.get_process_group_ranks, 2)
    [[0, 1], [0, 1]]
    """
    return management.get_process_group_ranks(group)


def _or_minus_one(ask: Callable[[str | None], int], group: str | None) -> int:
    """Upstream returns -1 for an unknown group, but refuses what cannot be a group at all."""
    try:
        return ask(group)
    except ArgumentTypeError:
        raise
    except UnisonoError:
        return -1


def _address(
    init_method: str | None, store: TCPStore | None, rank: int, size: int
) -> tuple[str, int]:
    """Where ranks meet that are not described by a launcher."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        raise SystemExit(0)  # msrun runs the script once more as its scheduler, which is no rank
    if size <= 0:
        raise ArgumentError(f"world_size is {size}; with init_method or store, give it")
    if rank < 0:
        raise ArgumentError(f"rank is {rank}; with init_method or store, give it")
    if store is not None:
        return store.host, store.port
    match = re.fullmatch(r"tcp://([^:/]+):(\d{1,5})", init_method or "")
    if match is None:
        raise LaunchError(
            f"init_method is {init_method!r}; it must look like tcp://127.0.0.1:29500"
        )
    return match[1], int(match[2])


def _launch(host: str, port: int, rank: int, size: int) -> environment.Launch:
    """A job that meets at an address, described with the variables that torchrun sets."""
    local = {name: os.environ[name] for name in _LOCAL if name in os.environ}
    return environment.find(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            **local,
        }
    )
