"""The MindSpore face: init, ranks and groups. Groups are names; collectives are in `comm_func`."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.core import groups
from unisono.mindspore.communication import comm_func
from unisono.mindspore.communication.comm_func import GlobalComm

__all__ = [
    "GlobalComm",
    "comm_func",
    "create_group",
    "destroy_group",
    "get_group_size",
    "get_rank",
    "init",
    "release",
]


def init(backend_name: str | None = None) -> None:
    """Join the world; the names that MindSpore knows (hccl, nccl, mccl) mean what runs here."""
    groups.init(None if backend_name in ("hccl", "nccl", "mccl") else backend_name)


def release() -> None:
    """Leave the world and all its groups."""
    groups.close()


def get_rank(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """This rank's place in the group."""
    return groups.find(group).rank


def get_group_size(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """How many ranks the group has."""
    return groups.find(group).size


def create_group(group: str, rank_ids: Sequence[int]) -> None:
    """Make a group of these world ranks under a name; only its members call this."""
    groups.world().split(rank_ids, group)


def destroy_group(group: str) -> None:
    """Leave the group and forget its name."""
    groups.find(group).close()
