"""Collectives and messages of Python objects, as mint and ops.communication have them.

Every `src` and `dst` is a rank of the world; `device` is accepted and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import objects
from unisono.core.arguments import check_length, check_list
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._arguments import check_integer
from unisono.mindspore._groups import resolve_group, resolve_root
from unisono.mindspore._point_to_point import peer_to_send_to

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def all_gather_object(object_list: list[Any], obj: Any, group: str | None = None) -> None:
    """Collect every rank's object in `object_list`, on every rank.

    >>> def everyone():
    ...     found = [None, None]
    ...     mint.all_gather_object(found, {"rank": mint.get_rank()})
    ...     return found
    >>> unisono.spawn(everyone, 2)[0]
    [{'rank': 0}, {'rank': 1}]
    """
    check_list(object_list, "object_list")
    members = resolve_group(group)
    _check_objects(object_list, "object_list", members.size)
    object_list[:] = objects.all_gather(members, obj)


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: str | None = None, device: Any = None
) -> None:
    """Copy the objects in the list of world rank `src` into the list of every rank.

    >>> def settings():
    ...     found = [{"rate": 0.1}] if mint.get_rank() == 0 else [None]
    ...     mint.broadcast_object_list(found, src=0)
    ...     return found
    >>> unisono.spawn(settings, 2)
    [[{'rate': 0.1}], [{'rate': 0.1}]]
    """
    _check_objects(object_list, "object_list")
    members, root = resolve_root(group, src, "src")
    _fill(object_list, objects.broadcast(members, list(object_list), root))


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: str | None = None
) -> None:
    """Collect every rank's object in `object_gather_list` of world rank `dst`.

    >>> def on_rank_0():
    ...     found = [None, None]
    ...     mint.gather_object(f"of {mint.get_rank()}", found, dst=0)
    ...     return found
    >>> unisono.spawn(on_rank_0, 2)
    [['of 0', 'of 1'], [None, None]]
    """
    members, root = resolve_root(group, dst, "dst")
    if members.rank == root:
        _check_objects(object_gather_list, "object_gather_list", members.size)
    gathered = objects.gather(members, obj, root)
    if gathered is not None and object_gather_list is not None:
        object_gather_list[:] = gathered


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None,
    src: int = 0,
    group: str | None = None,
) -> None:
    """Distribute the list of world rank `src`; each rank's object is first in its output list.

    >>> def part():
    ...     found = [None]
    ...     mint.scatter_object_list(found, ["a", "b"], src=0)
    ...     return found
    >>> unisono.spawn(part, 2)
    [['a'], ['b']]
    """
    _check_objects(scatter_object_output_list, "scatter_object_output_list")
    members, root = resolve_root(group, src, "src")
    if members.rank == root:
        _check_objects(scatter_object_input_list, "scatter_object_input_list", members.size)
    scatter_object_output_list[0] = objects.scatter(members, scatter_object_input_list, root)


def send_object_list(
    object_list: list[Any], dst: int, group: str | None = None, device: Any = None
) -> None:
    """Send the objects in a list to world rank `dst`.

    >>> def message():
    ...     found = [mint.get_rank()]
    ...     if mint.get_rank() == 0:
    ...         mint.send_object_list(["hello"], dst=1)
    ...     else:
    ...         mint.recv_object_list(found, src=0)
    ...     return found
    >>> unisono.spawn(message, 2)
    [[0], ['hello']]
    """
    _check_objects(object_list, "object_list")
    check_integer(dst, "dst")
    members = resolve_group(group)
    peer = peer_to_send_to(members, dst)
    objects.send(members, list(object_list), peer)


def recv_object_list(
    object_list: list[Any], src: int = 0, group: str | None = None, device: Any = None
) -> int:
    """Receive as many objects as the list has entries from world rank `src`; returns 0.

    >>> def message():
    ...     found = [mint.get_rank()]
    ...     if mint.get_rank() == 0:
    ...         mint.send_object_list(["hello"], dst=1)
    ...     else:
    ...         mint.recv_object_list(found, src=0)
    ...     return found
    >>> unisono.spawn(message, 2)
    [[0], ['hello']]
    """
    _check_objects(object_list, "object_list")
    members, peer = resolve_root(group, src, "src")
    received, _ = objects.recv(members, peer)
    _fill(object_list, received)
    return 0


def _check_objects(entries: Any, name: str, size: int | None = None) -> None:
    check_list(entries, name)
    check_length(entries, name, size, ArgumentTypeError)


def _fill(entries: list[Any], received: Sequence[Any]) -> None:
    if len(received) != len(entries):
        raise ArgumentError(
            f"{len(received)} objects were sent for a list of {len(entries)} entries; the lists of "
            "both sides must be equally long"
        )
    entries[:] = received
