"""Messages that are received into tensors of the caller, as mint and ops.communication have them.

Every `src`, `dst` and `peer` is a rank of the world. A message goes to the receive that has its tag
(upstream ignores tags); those of one tag arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unisono.core import buffers, dispatch
from unisono.core.arguments import check_length, check_list
from unisono.core.engine import AllOf, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported
from unisono.mindspore._arguments import check_integer, view
from unisono.mindspore._groups import check_group, resolve_group, resolve_root, root_in_group
from unisono.mindspore._handles import CommHandle, new_handle

__all__ = [
    "BatchEntry",
    "P2POp",
    "TagsUnsupported",
    "batch_isend_irecv",
    "check_batch",
    "irecv",
    "is_send",
    "isend",
    "peer_to_send_to",
    "recv",
    "send",
]

_NAMES = ("tensor", "tensor")  # what the caller calls source and destination


def send(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> None:
    """Send `tensor` to world rank `dst`, for a receive with this tag.

    >>> def message():
    ...     x = np.full(2, mint.get_rank())
    ...     mint.send(x, dst=1) if mint.get_rank() == 0 else mint.recv(x, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(message, 2)
    [[0, 0], [0, 0]]
    """
    _start_send(tensor, dst, group, tag, blocking=True)


def isend(tensor: Any, dst: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """Start to send `tensor` to world rank `dst`; do not change it before the handle has ended.

    >>> def swap():
    ...     other, x = 1 - mint.get_rank(), np.empty(1, int)
    ...     handle = mint.isend(np.array([mint.get_rank()]), dst=other)
    ...     mint.recv(x, src=other)
    ...     handle.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    return new_handle(_start_send(tensor, dst, group, tag, blocking=False), None)


def recv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> int:
    """Receive a message with this tag into `tensor` from world rank `src`; returns 0.

    >>> def message():
    ...     x = np.full(2, mint.get_rank())
    ...     mint.send(x, dst=1) if mint.get_rank() == 0 else mint.recv(x, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(message, 2)
    [[0, 0], [0, 0]]
    """
    _start_recv(tensor, src, group, tag, blocking=True)
    return 0


def irecv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> CommHandle:
    """Start to receive into `tensor` from world rank `src`.

    >>> def swap():
    ...     other, x = 1 - mint.get_rank(), np.empty(1, int)
    ...     handle = mint.irecv(x, src=other)
    ...     mint.send(np.array([mint.get_rank()]), dst=other)
    ...     handle.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    return new_handle(_start_recv(tensor, src, group, tag, blocking=False), tensor)


def _start_send(tensor: Any, dst: int, group: str | None, tag: int, *, blocking: bool) -> Work:
    buffer = view(tensor, "tensor")
    check_integer(dst, "dst")
    check_integer(tag, "tag")
    members = resolve_group(group)
    peer = peer_to_send_to(members, dst)
    return dispatch.send(members, buffer, peer, tag, blocking=blocking, names=_NAMES)


def _start_recv(tensor: Any, src: int, group: str | None, tag: int, *, blocking: bool) -> Work:
    buffer = view(tensor, "tensor")
    check_integer(tag, "tag")
    members, peer = resolve_root(group, src, "src")
    return dispatch.recv(members, buffer, peer, tag, blocking=blocking, names=_NAMES)


def peer_to_send_to(group: Group, dst: int) -> int:
    """The rank in the group of a destination, which must not be this rank: it does not receive."""
    peer = root_in_group(group, dst, "dst")
    if peer == group.rank:
        raise ArgumentError(f"dst {dst} is this rank itself; a rank cannot send to itself")
    return peer


# ---- batches, whose entries `comm_func` shares ---------------------------------------------------


class TagsUnsupported(Unsupported, NotImplementedError):
    """A batch with tags; MindSpore raises NotImplementedError for it."""


class BatchEntry:
    """What the `P2POp` of mint and that of `comm_func` have in common."""

    def __init__(
        self,
        op: str | Callable[..., Any],
        tensor: Any,
        peer: int,
        group: str | Group | None,
        tag: int,
    ) -> None:
        check_integer(peer, "peer")
        if not isinstance(tag, int) or tag != 0:
            raise TagsUnsupported(f"tag must be 0, got {tag!r}: messages of a batch have no tags")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag


class P2POp(BatchEntry):
    """One message of a batch: "isend" or "irecv" (or those functions), a tensor and a peer.

    >>> mint.P2POp("isend", np.ones(2), 1).peer
    1
    """

    def __init__(
        self,
        op: str | Callable[..., Any],
        tensor: Any,
        peer: int,
        group: str | None = None,
        tag: int = 0,
    ) -> None:
        if is_send(op) is None:
            raise ArgumentTypeError(f"op must be isend or irecv, got {op!r}")
        if not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"tensor must be a tensor, got {tensor!r}")
        check_group(group)
        super().__init__(op, tensor, peer, group, tag)


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[CommHandle]:
    """Start all messages of the list; returns a list with one handle for them all.

    >>> def swap():
    ...     other, x = 1 - mint.get_rank(), np.empty(1, int)
    ...     send = mint.P2POp("isend", np.array([mint.get_rank()]), other)
    ...     for handle in mint.batch_isend_irecv([send, mint.P2POp("irecv", x, other)]):
    ...         handle.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    check_batch(p2p_op_list, P2POp, (list, tuple))
    group = p2p_op_list[0].group
    if any(entry.group != group for entry in p2p_op_list):
        raise ArgumentTypeError("all messages of a batch must be in one group")
    members = resolve_group(group)
    # All arguments are checked before the first message leaves.
    ready = [
        (
            dispatch.send if is_send(entry.op) else dispatch.recv,
            view(entry.tensor, "tensor"),
            root_in_group(members, entry.peer, "peer"),
        )
        for entry in p2p_op_list
    ]
    works = [
        start(members, buffer, peer, blocking=False, names=_NAMES) for start, buffer, peer in ready
    ]
    return [new_handle(AllOf(works), [entry.tensor for entry in p2p_op_list])]


def check_batch(entries: Any, kind: type[BatchEntry], lists: tuple[type, ...]) -> None:
    """Refuse what is not a list, of one of these types, of at least one `P2POp` of this kind."""
    check_list(entries, "p2p_op_list", lists)
    check_length(entries, "p2p_op_list", error=ArgumentTypeError)
    for entry in entries:
        if not isinstance(entry, kind):
            raise ArgumentTypeError(f"p2p_op_list must hold P2POp only, got {entry!r}")


def is_send(op: Any) -> bool | None:
    """True for isend, False for irecv, None for anything else.

    Their names decide: functions of MindSpore itself, or of another face, work as well as ours.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", "")
    return {"isend": True, "irecv": False}.get(name) if isinstance(name, str) else None
