"""The collectives of Python objects: sent as bytes, and put into lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from unisono.core import buffers, dispatch, objects
from unisono.core.arguments import check_list
from unisono.core.groups import Group
from unisono.errors import ArgumentError, MismatchError
from unisono.torch.distributed import arguments

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


class _ListTooShort(ArgumentError, IndexError):
    """The list has no room for each rank's object; torch raises an IndexError there."""


def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Collect every rank's object in `object_list`, on every rank.

    >>> def everyone():
    ...     found = [None, None]
    ...     dist.all_gather_object(found, {"rank": dist.get_rank()})
    ...     return found
    >>> unisono.spawn(everyone, 2)[0]
    [{'rank': 0}, {'rank': 1}]
    """
    members = arguments.members(group, "all_gather_object")
    if members is None:
        return
    _check_room(members, object_list, "object_list")
    object_list[: members.size] = objects.all_gather(members, obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
) -> None:
    """Collect every rank's object in `object_gather_list` of rank `dst`.

    >>> def on_rank_0():
    ...     found = [None, None] if dist.get_rank() == 0 else None
    ...     dist.gather_object(f"of {dist.get_rank()}", found, dst=0)
    ...     return found
    >>> unisono.spawn(on_rank_0, 2)
    [['of 0', 'of 1'], None]
    """
    members = arguments.members(group, "gather_object")
    if members is None:
        return
    root = arguments.root_or_first(members, dst, group_dst, "dst")
    if object_gather_list is not None:
        check_list(object_gather_list, "object_gather_list")
    if members.rank == root:
        if not object_gather_list:
            raise ArgumentError("object_gather_list must be given on the destination rank")
        _check_room(members, object_gather_list, "object_gather_list")
        object_gather_list[: members.size] = objects.gather(members, obj, root) or []
        return
    if object_gather_list:
        raise ArgumentError("object_gather_list must not be given on other ranks than dst")
    objects.gather(members, obj, root)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Copy the objects in the list of rank `src` into the lists of all, which are as long.

    >>> def settings():
    ...     found = [{"rate": 0.1}] if dist.get_rank() == 0 else [None]
    ...     dist.broadcast_object_list(found, src=0)
    ...     return found
    >>> unisono.spawn(settings, 2)
    [[{'rate': 0.1}], [{'rate': 0.1}]]
    """
    members = arguments.members(group, "broadcast_object_list")
    if members is None:
        return
    root = arguments.root_or_first(members, src, group_src, "src")
    check_list(object_list, "object_list")
    # Lists of different lengths are a mismatch that the engine reports on every rank.
    probe = buffers.view(np.zeros(len(object_list), np.uint8))
    at_root = members.rank == root
    dispatch.broadcast(members, probe if at_root else None, probe, root)
    received = objects.broadcast(members, object_list, root)
    if not at_root:
        object_list[:] = received


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
) -> None:
    """Put object `rank` of the list of rank `src` into the first entry of the output list.

    >>> def part():
    ...     found = [None]
    ...     dist.scatter_object_list(found, ["a", "b"] if dist.get_rank() == 0 else None, src=0)
    ...     return found
    >>> unisono.spawn(part, 2)
    [['a'], ['b']]
    """
    members = arguments.members(group, "scatter_object_list")
    if members is None:
        return
    root = arguments.root_or_first(members, src, group_src, "src")
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ArgumentError("scatter_object_output_list must be a list with room for one object")
    given = scatter_object_input_list if members.rank == root else None
    if given is not None:
        check_list(given, "scatter_object_input_list")
    if members.rank == root and (given is None or len(given) != members.size):
        raise ArgumentError(
            f"scatter_object_input_list must have {members.size} objects on the source rank"
        )
    scatter_object_output_list[0] = objects.scatter(members, given, root)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send the objects of a list to rank `dst`.

    >>> def message():
    ...     found = [dist.get_rank()]
    ...     if dist.get_rank() == 0:
    ...         dist.send_object_list(["hello"], dst=1)
    ...     else:
    ...         dist.recv_object_list(found, src=0)
    ...     return found
    >>> unisono.spawn(message, 2)
    [[0], ['hello']]
    """
    members = arguments.members(group, "send_object_list")
    if members is None:
        return
    peer = arguments.root(members, dst, group_dst, "dst")
    if peer == members.rank:
        raise ArgumentError(f"rank {peer} cannot send to itself")
    check_list(object_list, "object_list")
    objects.send(members, list(object_list), peer)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive as many objects as the list is long from rank `src`; returns the sender.

    >>> def sender():
    ...     if dist.get_rank() == 1:
    ...         return dist.send_object_list(["hello"], dst=0)
    ...     return dist.recv_object_list([None])
    >>> unisono.spawn(sender, 2)
    [1, None]
    """
    members = arguments.members(group, "recv_object_list")
    if members is None:
        return -1
    peer = None
    if src is not None or group_src is not None:
        peer = arguments.root(members, src, group_src, "src")
    if peer == members.rank:
        raise ArgumentError(f"rank {peer} cannot receive from itself")
    check_list(object_list, "object_list")
    received, source = objects.recv(members, peer)
    sender = members.ranks[source]
    if len(received) != len(object_list):
        raise MismatchError(
            f"rank {sender} sent {len(received)} objects to a list of {len(object_list)}", [sender]
        )
    object_list[:] = received
    return sender


def _check_room(group: Group, things: list[Any], name: str) -> None:
    check_list(things, name)
    if len(things) < group.size:
        raise _ListTooShort(
            f"{name} has room for {len(things)} objects, but there are {group.size} ranks"
        )
