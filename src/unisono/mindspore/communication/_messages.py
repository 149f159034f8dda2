"""The MindSpore face: messages from one rank to another.

A `tag` is accepted and ignored, as upstream ignores it: messages between two ranks keep their
order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.core import buffers, dispatch
from unisono.core.buffers import Output
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._checks import (
    CommHandle,
    NoTags,
    check_integer,
    empty_of,
    new_handle,
    resolve_root,
    shape_of,
    zeros_like,
)
from unisono.mindspore.communication.management import GlobalComm

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def send(
    tensor: Any,
    dst: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> None:
    """Send `tensor` to world rank `dst`."""
    _start_send(tensor, dst, group, blocking=True)


def recv(
    tensor: Any,
    src: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> Any:
    """Return what world rank `src` sent, as a new tensor; `tensor` only gives shape and dtype."""
    out, work = _start_recv(tensor, None, src, group, blocking=True)
    return out.finish(work)


def isend(
    tensor: Any,
    dst: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> CommHandle:
    """Begin to send `tensor` to world rank `dst`."""
    return new_handle(_start_send(tensor, dst, group, blocking=False), None)


def irecv(
    tensor: Any,
    src: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> tuple[Any, CommHandle]:
    """Begin to receive from world rank `src`; the new tensor is there after `handle.wait()`."""
    out, work = _start_recv(tensor, None, src, group, blocking=False)
    result = out.finish(work)
    return result, new_handle(work, result)


class P2POp:
    """One message of a batch: to send `tensor` to world rank `peer`, or to receive from it.

    For a receipt `tensor` may be a shape; `recv_dtype` then says of what.
    """

    def __init__(
        self,
        op: str | Callable[..., Any],
        tensor: Any,
        peer: int,
        group: str | Group | None = None,
        tag: int = 0,
        *,
        recv_dtype: Any = None,
    ) -> None:
        if not isinstance(op, str) and not callable(op):
            raise ArgumentTypeError(f"op must be isend, irecv or the name of one, got {op!r}")
        if _name(op) not in ("isend", "irecv"):
            raise ArgumentError(f"op must be isend or irecv, got {op!r}")
        if not isinstance(tensor, tuple):
            shape_of(tensor)
        check_integer(peer, "peer")
        if not isinstance(tag, int) or tag != 0:
            raise NoTags(f"tag must be 0, got {tag!r}")
        if recv_dtype is not None:
            empty_of(recv_dtype)
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.recv_dtype = recv_dtype


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> tuple[Any, ...]:
    """Send and receive all of these at once, and return a tensor for each entry.

    At a receipt's place that is what came; at the others a zero without meaning.
    """
    if not isinstance(p2p_op_list, list) or not p2p_op_list:
        raise ArgumentTypeError("p2p_op_list must be a list of at least one P2POp")
    for entry in p2p_op_list:
        if not isinstance(entry, P2POp):
            raise ArgumentTypeError(f"p2p_op_list must hold P2POp only, got {entry!r}")
    # All patterns are made first: an error must not leave half of the messages under way.
    patterns = [_pattern(entry, index) for index, entry in enumerate(p2p_op_list)]
    for entry in p2p_op_list:
        resolve_root(entry.group, entry.peer, "peer")
    started: list[tuple[Output | None, Work]] = []
    for entry, (tensor, shape) in zip(p2p_op_list, patterns, strict=True):
        if _name(entry.op) == "isend":
            started.append((None, _start_send(tensor, entry.peer, entry.group, blocking=False)))
        else:
            started.append(_start_recv(tensor, shape, entry.peer, entry.group, blocking=False))
    for _, work in started:
        work.wait()
    return tuple(
        zeros_like(tensor, ()) if out is None else out.finish()
        for (out, _), (tensor, _) in zip(started, patterns, strict=True)
    )


def _name(op: str | Callable[..., Any]) -> str:
    """By its name a function of MindSpore itself, or of another face, serves as well as ours."""
    return op if isinstance(op, str) else str(getattr(op, "__name__", ""))


def _pattern(entry: P2POp, index: int) -> tuple[Any, tuple[int, ...]]:
    """A tensor that has the kind and dtype of an entry, and the entry's shape."""
    if not isinstance(entry.tensor, tuple):
        return entry.tensor, shape_of(entry.tensor)
    if _name(entry.op) == "isend":
        raise ArgumentTypeError(f"entry {index} sends, so it needs a tensor, not a shape")
    if entry.recv_dtype is None:
        raise ArgumentError(f"entry {index} receives a shape, so it needs recv_dtype")
    return empty_of(entry.recv_dtype), entry.tensor


def _start_send(tensor: Any, dst: int, group: str | Group | None, *, blocking: bool) -> Work:
    source = buffers.view(tensor)
    members, peer = resolve_root(group, dst, "dst")
    return dispatch.send(members, source, peer, 0, blocking=blocking)


def _start_recv(
    tensor: Any,
    shape: tuple[int, ...] | None,
    src: int,
    group: str | Group | None,
    *,
    blocking: bool,
) -> tuple[Output, Work]:
    out = buffers.output_like(tensor, shape)
    members, peer = resolve_root(group, src, "src")
    return out, dispatch.recv(members, out.buffer, peer, 0, blocking=blocking)
