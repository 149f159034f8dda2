"""Point-to-point: messages from one rank to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.core import dispatch, fast
from unisono.core.arguments import as_int
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError
from unisono.torch.distributed import arguments

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]

_NAMES = ("tensor", "tensor")  # what the caller calls source and destination


def send(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to rank `dst`; returns when it may be written again.

    >>> def message():
    ...     x = np.full(2, dist.get_rank())
    ...     dist.send(x, dst=1) if dist.get_rank() == 0 else dist.recv(x, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(message, 2)
    [[0, 0], [0, 0]]
    """
    if fast.send(tensor, dst, group, tag, group_dst) is None:
        return
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "send")
    if members is None:
        return
    peer = arguments.root(members, dst, group_dst, "dst")
    if peer == members.rank:
        raise ArgumentError(f"rank {peer} cannot send to itself")
    dispatch.send(members, data, peer, as_int(tag, "tag"), names=_NAMES)


def recv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive into `tensor` from rank `src`, or from any; returns the sender's world rank.

    >>> def sender():
    ...     x = np.full(2, dist.get_rank())
    ...     return dist.send(x, dst=0) if dist.get_rank() == 1 else dist.recv(x)
    >>> unisono.spawn(sender, 2)
    [1, None]
    """
    done = fast.recv(tensor, src, group, tag, group_src)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "recv")
    if members is None:
        return -1
    peer = _peer_or_any(members, src, group_src)
    source = dispatch.recv(members, data, peer, as_int(tag, "tag"), names=_NAMES).source
    if source is None:  # an engine may leave it out where it was asked for one rank
        source = peer
    return members.ranks[source] if source is not None else -1


def isend(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Start to send `tensor` to rank `dst`; do not change it until the work has ended.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.empty(1, int)
    ...     work = dist.isend(np.array([dist.get_rank()]), dst=other)
    ...     dist.recv(x, src=other)
    ...     work.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    done = fast.isend(tensor, dst, group, tag, group_dst)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "isend")
    if members is None:
        return None
    peer = arguments.root(members, dst, group_dst, "dst")
    work = dispatch.send(members, data, peer, as_int(tag, "tag"), blocking=False, names=_NAMES)
    return arguments.handle(work, True, [tensor])


def irecv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Start to receive into `tensor` from rank `src`, or from any rank.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.empty(1, int)
    ...     work = dist.irecv(x, src=other)
    ...     dist.send(np.array([dist.get_rank()]), dst=other)
    ...     work.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    done = fast.irecv(tensor, src, group, tag, group_src)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "irecv")
    if members is None:
        return None
    peer = _peer_or_any(members, src, group_src)
    work = dispatch.recv(members, data, peer, as_int(tag, "tag"), blocking=False, names=_NAMES)
    return arguments.handle(work, True, [tensor])


class P2POp:
    """One message of a batch: `isend` or `irecv`, a tensor and a peer.

    >>> unisono.spawn(lambda: dist.P2POp(dist.isend, np.ones(2), peer=0), 1)
    [P2POp(isend, peer=0, group='world')]
    """

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Any,
        peer: int | None = None,
        group: Group | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise ArgumentError(
                f"op must be isend or irecv of unisono.torch.distributed, got {op!r}"
            )
        arguments.view(tensor, "tensor")
        self.op = op
        self.tensor = tensor
        self.group = arguments.group_of(group)
        self.group_peer = arguments.root(self.group, peer, group_peer, "peer")
        self.peer = self.group.ranks[self.group_peer]
        self.tag = tag

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, peer={self.peer}, group={self.group.name!r})"


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start every message of the list, in its order, and return their works.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.empty(1, int)
    ...     send = dist.P2POp(dist.isend, np.array([dist.get_rank()]), other)
    ...     works = dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, x, other)])
    ...     for work in works:
    ...         work.wait()
    ...     return x.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ArgumentError("p2p_op_list must be a list of P2POp")
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise ArgumentError("all messages of a batch must be in one group")
    works = []
    for message in p2p_op_list:
        key = "group_dst" if message.op is isend else "group_src"
        peer = {key: message.group_peer}
        works.append(message.op(message.tensor, group=message.group, tag=message.tag, **peer))
    return [work for work in works if work is not None]


def _peer_or_any(group: Group, src: int | None, group_src: int | None) -> int | None:
    if src is None and group_src is None:
        return None
    return arguments.root(group, src, group_src, "src")
