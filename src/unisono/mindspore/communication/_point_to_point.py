"""Messages that are received as new tensors, as `comm_func` has them.

A message goes to the receive that has its tag (upstream ignores tags); those of one tag between two
ranks keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unisono.core import buffers, dispatch
from unisono.core.buffers import Output
from unisono.core.engine import AllOf, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._arguments import check_integer, empty_of, view, zeros_like
from unisono.mindspore._gradients import not_differentiable
from unisono.mindspore._groups import resolve_root
from unisono.mindspore._handles import CommHandle, new_handle
from unisono.mindspore._point_to_point import BatchEntry, check_batch, is_send
from unisono.mindspore.communication.management import GlobalComm

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]

_NAMES = ("tensor", "tensor")  # what the caller calls source and destination


def send(
    tensor: Any,
    dst: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> None:
    """Send `tensor` to world rank `dst`, for a receive with this tag.

    >>> def message():
    ...     x = np.full(2, dist.get_rank())
    ...     return comm_func.send(x, dst=1) if dist.get_rank() == 0 else comm_func.recv(x, src=0)
    >>> unisono.spawn(message, 2)
    [None, array([0, 0])]
    """
    _start_send(tensor, dst, group, tag, blocking=True)


@not_differentiable()
def recv(
    tensor: Any,
    src: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> Any:
    """Return what world rank `src` sent with this tag, as a new tensor.

    Of `tensor` only the shape and the dtype are read.

    >>> def message():
    ...     x = np.full(2, dist.get_rank())
    ...     return comm_func.recv(x, src=1) if dist.get_rank() == 0 else comm_func.send(x, dst=0)
    >>> unisono.spawn(message, 2)
    [array([1, 1]), None]
    """
    out, work = _start_recv(tensor, None, src, group, tag, blocking=True)
    return out.finish(work)


def isend(
    tensor: Any,
    dst: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> CommHandle:
    """Start to send `tensor` to world rank `dst`; do not change it before the handle has ended.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.full(1, dist.get_rank())
    ...     handle = comm_func.isend(x, dst=other)
    ...     y = comm_func.recv(x, src=other)
    ...     handle.wait()
    ...     return y.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    return new_handle(_start_send(tensor, dst, group, tag, blocking=False), None)


@not_differentiable()
def irecv(
    tensor: Any,
    src: int = 0,
    group: str | Group | None = GlobalComm.WORLD_COMM_GROUP,
    tag: int = 0,
) -> tuple[Any, CommHandle]:
    """Start to receive from world rank `src`; the tensor is complete after `handle.wait()`.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.full(1, dist.get_rank())
    ...     y, handle = comm_func.irecv(x, src=other)
    ...     comm_func.send(x, dst=other)
    ...     handle.wait()
    ...     return y.tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    out, work = _start_recv(tensor, None, src, group, tag, blocking=False)
    result = out.finish(work)
    return result, new_handle(work, result)


class P2POp(BatchEntry):
    """One message of a batch: to send `tensor` to world rank `peer`, or to receive from it.

    To receive, `tensor` may be a shape; `recv_dtype` is then the dtype.

    >>> comm_func.P2POp("irecv", (2, 3), 1, recv_dtype=np.float32).tensor
    (2, 3)
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
        if is_send(op) is None:
            raise ArgumentError(f"op must be isend or irecv, got {op!r}")
        if not isinstance(tensor, tuple) and not buffers.is_tensor(tensor):
            raise ArgumentTypeError(f"tensor must be a tensor or a shape, got {tensor!r}")
        if recv_dtype is not None:
            empty_of(recv_dtype)
        super().__init__(op, tensor, peer, group, tag)
        self.recv_dtype = recv_dtype


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> tuple[Any, ...]:
    """Send and receive all of these at the same time, and return a tensor for each entry.

    For an entry that receives it holds what was received; for the others it is a meaningless zero.

    >>> def swap():
    ...     other, x = 1 - dist.get_rank(), np.full(1, dist.get_rank())
    ...     send = comm_func.P2POp("isend", x, other)
    ...     receive = comm_func.P2POp("irecv", x, other)
    ...     return comm_func.batch_isend_irecv([send, receive])[1].tolist()
    >>> unisono.spawn(swap, 2)
    [[1], [0]]
    """
    check_batch(p2p_op_list, P2POp, (list,))
    # All patterns are made first: an error must not leave half of the messages in progress.
    patterns = [_pattern(entry, index) for index, entry in enumerate(p2p_op_list)]
    for entry in p2p_op_list:
        resolve_root(entry.group, entry.peer, "peer")
    tensors, shapes = zip(*patterns, strict=True)
    return _batch_isend_irecv(tensors, shapes, p2p_op_list)


@not_differentiable("tensors")
def _batch_isend_irecv(
    tensors: Sequence[Any], shapes: Sequence[tuple[int, ...] | None], entries: Sequence[P2POp]
) -> tuple[Any, ...]:
    started: list[tuple[Output | None, Work]] = []
    for entry, tensor, shape in zip(entries, tensors, shapes, strict=True):
        if is_send(entry.op):
            work = _start_send(tensor, entry.peer, entry.group, entry.tag, blocking=False)
            started.append((None, work))
        else:
            started.append(
                _start_recv(tensor, shape, entry.peer, entry.group, entry.tag, blocking=False)
            )
    AllOf([work for _, work in started]).wait()
    return tuple(
        zeros_like(tensor, ()) if out is None else out.finish()
        for (out, _), tensor in zip(started, tensors, strict=True)
    )


def _pattern(entry: P2POp, index: int) -> tuple[Any, tuple[int, ...] | None]:
    """A tensor of the kind and dtype of an entry, and the entry's shape if that tensor has not."""
    if not isinstance(entry.tensor, tuple):
        return entry.tensor, None
    if is_send(entry.op):
        raise ArgumentTypeError(f"entry {index} sends, so it needs a tensor, not a shape")
    if entry.recv_dtype is None:
        raise ArgumentError(f"entry {index} receives a shape, so it needs recv_dtype")
    return empty_of(entry.recv_dtype), entry.tensor


def _start_send(
    tensor: Any, dst: int, group: str | Group | None, tag: int, *, blocking: bool
) -> Work:
    source = view(tensor, "tensor")
    check_integer(tag, "tag")
    members, peer = resolve_root(group, dst, "dst")
    return dispatch.send(members, source, peer, tag, blocking=blocking, names=_NAMES)


def _start_recv(
    tensor: Any,
    shape: tuple[int, ...] | None,
    src: int,
    group: str | Group | None,
    tag: int,
    *,
    blocking: bool,
) -> tuple[Output, Work]:
    out = buffers.output_like(tensor, shape)
    check_integer(tag, "tag")
    members, peer = resolve_root(group, src, "src")
    return out, dispatch.recv(members, out.buffer, peer, tag, blocking=blocking, names=_NAMES)
