"""The PyTorch face: `torch.distributed` in the same words, for any tensor, on any engine.

Results are written into tensors that you hand over. A call returns None, or a handle where
`async_op` is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from unisono.core import buffers, dispatch, groups, lists
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
    "reduce",
    "reduce_scatter",
]


def init_process_group(backend: str | None = None, timeout: timedelta | None = None) -> None:
    """Join the world; `backend` is the name of an engine, or "unisono" for the one that fits."""
    engine = None if backend in (None, "unisono") else backend
    groups.init(engine, timeout.total_seconds() if timeout is not None else None)


def destroy_process_group(group: Group | None = None) -> None:
    """Leave a group, or the world and all its groups."""
    if group is None:
        groups.close()
    else:
        group.close()


def is_initialized() -> bool:
    """Tell whether this rank has joined the world."""
    return groups.is_initialized()


def get_rank(group: Group | None = None) -> int:
    """This rank's place in the group; -1 if it is not a member."""
    return groups.resolve(group).rank


def get_world_size(group: Group | None = None) -> int:
    """How many ranks the group has."""
    return groups.resolve(group).size


def new_group(ranks: Sequence[int] | None = None) -> Group:
    """Make a group of these ranks of the world."""
    world = groups.world()
    return world.split(range(world.size) if ranks is None else ranks)


def barrier(group: Group | None = None, async_op: bool = False) -> Work | None:
    """Wait until every rank of the group has come here."""
    return _answer(dispatch.start("barrier", groups.resolve(group), not async_op), async_op)


def all_reduce(
    tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Combine `tensor` over the group, in place, so that every rank holds the result."""
    buffer = buffers.view(tensor)
    work = dispatch.start("all_reduce", groups.resolve(group), not async_op, buffer, buffer, op)
    return work if async_op else None


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine `tensor` over the group into the tensor of rank `dst`; others keep theirs."""
    members = groups.resolve(group)
    root = _root(members, dst, group_dst, "dst")
    buffer = buffers.view(tensor)
    target = buffer if members.rank == root else None
    work = dispatch.start("reduce", members, not async_op, buffer, target, op, root)
    return _answer(work, async_op)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the tensor of rank `src` into `tensor` of every rank."""
    members = groups.resolve(group)
    root = _root(members, src, group_src, "src")
    buffer = buffers.view(tensor)
    source = buffer if members.rank == root else None
    return _answer(
        dispatch.start("broadcast", members, not async_op, source, buffer, root), async_op
    )


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Collect every rank's tensor in `tensor_list`, on every rank."""
    landing, counts = lists.land(tensor_list)
    members = groups.resolve(group)
    source = buffers.view(tensor)
    work = dispatch.start("all_gather", members, not async_op, source, landing, counts)
    return _answer(work, async_op)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine every rank's list and leave entry `rank` of the result in `output`."""
    source, counts = lists.join(input_list)
    members = groups.resolve(group)
    target = buffers.view(output)
    work = dispatch.start("reduce_scatter", members, not async_op, source, target, op, counts)
    return _answer(work, async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send entry j of the input list to rank j, and receive entry i of the output list from i."""
    source, sends = lists.join(input_tensor_list)
    landing, receives = lists.land(output_tensor_list)
    members = groups.resolve(group)
    work = dispatch.start("all_to_all", members, not async_op, source, landing, sends, receives)
    return _answer(work, async_op)


def _answer(work: Work, async_op: bool) -> Work | None:
    return work if async_op else None


def _root(group: Group, world_rank: int | None, group_rank: int | None, name: str) -> int:
    """The root as a rank of the group: given as such, or as a rank of the world."""
    if (world_rank is None) == (group_rank is None):
        raise ArgumentError(f"give {name} (a world rank) or group_{name} (a group rank), not both")
    if group_rank is not None:
        return group_rank
    if world_rank not in group.ranks:
        raise ArgumentError(
            f"world rank {world_rank} is not in group {group.name!r} of world ranks {group.ranks}"
        )
    return group.ranks.index(world_rank)
