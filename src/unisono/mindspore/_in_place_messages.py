"""Messages between two ranks, and collectives of objects, for mint and ops.communication.

Every `src`, `dst` and `peer` is a rank of the world. Tags are accepted and ignored, as upstream
does: messages between two ranks of a group arrive in the order in which they were sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from unisono.core import buffers, dispatch, objects
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._checks import (
    CommHandle,
    NoTags,
    check_integer,
    new_handle,
    resolve_group,
    resolve_root,
    root_in_group,
)

__all__ = [
    "P2POp",
    "all_gather_object",
    "batch_isend_irecv",
    "broadcast_object_list",
    "gather_object",
    "irecv",
    "isend",
    "recv",
    "recv_object_list",
    "scatter_object_list",
    "send",
    "send_object_list",
]


def send(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> None:
    """Send `tensor` to world rank `dst`."""
    _start_send(tensor, dst, group, blocking=True)


def isend(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """Start to send `tensor` to world rank `dst`; leave it alone until the handle has ended."""
    return new_handle(_start_send(tensor, dst, group, blocking=False), None)


def recv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> int:
    """Receive into `tensor` from world rank `src`; returns 0."""
    _start_recv(tensor, src, group, blocking=True)
    return 0


def irecv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """Start to receive into `tensor` from world rank `src`."""
    return new_handle(_start_recv(tensor, src, group, blocking=False), tensor)


class P2POp:
    """One message of a batch: "isend" or "irecv" (or those functions), a tensor and a peer."""

    def __init__(
        self,
        op: str | Callable[..., Any],
        tensor: Any,
        peer: int,
        group: str | None = None,
        tag: int = 0,
    ) -> None:
        if _name_of(op) not in ("isend", "irecv"):
            raise ArgumentTypeError(f"op must be isend or irecv, got {op!r}")
        if not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"tensor must be a tensor, got {tensor!r}")
        check_integer(peer, "peer")
        if group is not None and not isinstance(group, str | Group):
            raise ArgumentTypeError(f"group must be a name, got {group!r}")
        if not isinstance(tag, int) or tag != 0:
            raise NoTags(f"tag must be 0, got {tag!r}: batches have no tags")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[CommHandle]:
    """Start all messages of the list; returns a list with one handle for them all."""
    if not isinstance(p2p_op_list, list | tuple) or not p2p_op_list:
        raise ArgumentTypeError("p2p_op_list must be a list of at least one P2POp")
    if not all(isinstance(entry, P2POp) for entry in p2p_op_list):
        raise ArgumentTypeError("p2p_op_list must hold P2POp objects only")
    first = p2p_op_list[0].group
    if any(entry.group != first for entry in p2p_op_list):
        raise ArgumentTypeError("all messages of a batch must be in one group")
    team = resolve_group(first)
    # All arguments are checked before the first message leaves.
    ready = [
        (
            dispatch.send if _name_of(entry.op) == "isend" else dispatch.recv,
            buffers.view(entry.tensor),
            root_in_group(team, entry.peer, "peer"),
        )
        for entry in p2p_op_list
    ]
    works = [start(team, buffer, peer, blocking=False) for start, buffer, peer in ready]
    return [new_handle(_Together(works), [entry.tensor for entry in p2p_op_list])]


def all_gather_object(object_list: list[Any], obj: Any, group: str | None = None) -> None:
    """Collect every rank's object in `object_list`, on every rank."""
    team = resolve_group(group)
    _check_objects(object_list, "object_list", team.size)
    object_list[:] = objects.all_gather(team, obj)


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: str | None = None, device: Any = None
) -> None:
    """Copy the objects in the list of world rank `src` into the list of every rank."""
    team, root = resolve_root(group, src, "src")
    _check_objects(object_list, "object_list")
    given = objects.broadcast(team, list(object_list), root)
    _fill(object_list, given)


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: str | None = None
) -> None:
    """Collect every rank's object in `object_gather_list` of world rank `dst`."""
    team, root = resolve_root(group, dst, "dst")
    if team.rank == root:
        _check_objects(object_gather_list, "object_gather_list", team.size)
    gathered = objects.gather(team, obj, root)
    if gathered is not None and object_gather_list is not None:
        object_gather_list[:] = gathered


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None,
    src: int = 0,
    group: str | None = None,
) -> None:
    """Put one object of the list of world rank `src` first in each rank's output list."""
    team, root = resolve_root(group, src, "src")
    _check_objects(scatter_object_output_list, "scatter_object_output_list")
    if team.rank == root:
        _check_objects(scatter_object_input_list, "scatter_object_input_list", team.size)
    scatter_object_output_list[0] = objects.scatter(team, scatter_object_input_list, root)


def send_object_list(
    object_list: list[Any], dst: int, group: str | None = None, device: Any = None
) -> None:
    """Send the objects in a list to world rank `dst`."""
    team = resolve_group(group)
    peer = _other(team, dst)
    _check_objects(object_list, "object_list")
    objects.send(team, list(object_list), peer)


def recv_object_list(
    object_list: list[Any], src: int = 0, group: str | None = None, device: Any = None
) -> int:
    """Receive as many objects as the list is long from world rank `src`; returns 0."""
    team, peer = resolve_root(group, src, "src")
    _check_objects(object_list, "object_list")
    given, _ = objects.recv(team, peer)
    _fill(object_list, given)
    return 0


class _Together(Work):
    """Several messages as one piece of work."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works

    def _poll(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def _block(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.wait(None if until is None else max(0.0, until - time.monotonic()))


def _start_send(tensor: Any, dst: int, group: str | None, *, blocking: bool) -> Work:
    team = resolve_group(group)
    buffer = buffers.view(tensor)
    return dispatch.send(team, buffer, _other(team, dst), 0, blocking=blocking)


def _start_recv(tensor: Any, src: int, group: str | None, *, blocking: bool) -> Work:
    team, peer = resolve_root(group, src, "src")
    return dispatch.recv(team, buffers.view(tensor), peer, 0, blocking=blocking)


def _other(group: Group, dst: int) -> int:
    """A destination that is not this rank: nobody would be there to receive."""
    peer = root_in_group(group, dst, "dst")
    if peer == group.rank:
        raise ArgumentError(f"dst {dst} is this rank itself; a rank cannot send to itself")
    return peer


def _name_of(op: Any) -> str:
    return op if isinstance(op, str) else getattr(op, "__name__", "")


def _check_objects(things: Any, name: str, size: int | None = None) -> None:
    if not isinstance(things, list) or not things:
        raise ArgumentTypeError(f"{name} must be a list with at least one entry, got {things!r}")
    if size is not None and len(things) != size:
        raise ArgumentTypeError(f"{name} has {len(things)} entries for {size} ranks")


def _fill(things: list[Any], given: Sequence[Any]) -> None:
    if len(given) != len(things):
        raise ArgumentError(f"{len(given)} objects came for a list of {len(things)}")
    things[:] = given
