"""The primitives that send and receive tensors between two ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch
from unisono.core.arguments import as_ints
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported
from unisono.mindspore._arguments import check_integer, empty_of, view
from unisono.mindspore._gradients import differentiable
from unisono.mindspore._groups import resolve_root
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops._collectives import Backward
from unisono.mindspore.ops._primitive import (
    WORLD,
    CommunicationPrimitive,
    CompositePrimitive,
    NoBackward,
    OperatorPrimitive,
)

__all__ = ["BatchISendIRecv", "MessageBatch", "Receive", "ReceivedTensor", "Send", "listed"]


class Send(OperatorPrimitive):
    """Send a tensor to world rank `dest_rank`, for a `Receive` with the same tag.

    >>> def message():
    ...     if dist.get_rank() == 0:
    ...         return ops.Send(0, 1)(np.ones(2)).tolist()
    ...     return ops.Receive(0, 0, [2], np.float64)().tolist()
    >>> unisono.spawn(message, 2)
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        sr_tag: int,
        dest_rank: int,
        group: str | Group | None = WORLD,
        group_back: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        check_integer(sr_tag, "sr_tag")
        check_integer(dest_rank, "dest_rank")
        self.sr_tag = sr_tag
        self.rank = dest_rank
        self.group_back = group_back

    def __call__(self, input_x: Any) -> Any:
        """Return a tensor of the same values, through which the gradient comes back."""
        return _send(input_x, self.sr_tag, self.rank, self.group, self.group_back)

    def backward(self) -> Backward:
        """The gradient that the other rank sends back, in `group_back`."""
        receive = self.maker(Receive)
        tag, rank, group, group_back = self.sr_tag, self.rank, self.group, self.group_back

        def of_send(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            back = receive(tag, rank, operand.shape, operand.dtype, group_back, group)
            return (back(gradient),)

        return of_send


@differentiable("unisono.mindspore.ops._messages:Send")
def _send(
    tensor: Any,
    sr_tag: int,
    dest_rank: int,
    group: str | Group | None,
    group_back: str | Group | None,
) -> Any:
    members, peer = resolve_root(group, dest_rank, "dest_rank")
    dispatch.send(members, view(tensor, "input_x"), peer, sr_tag, names=("input_x", ""))
    return tensor


class Receive(OperatorPrimitive):
    """Receive a tensor of a known shape and dtype from world rank `src_rank`.

    The dtype also decides whose tensor it is: MindSpore's, torch's or NumPy's.

    >>> def message():
    ...     if dist.get_rank() == 0:
    ...         return ops.Send(0, 1)(np.ones(2)).tolist()
    ...     return ops.Receive(0, 0, [2], np.float64)().tolist()
    >>> unisono.spawn(message, 2)
    [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        sr_tag: int,
        src_rank: int,
        shape: Sequence[int],
        dtype: Any,
        group: str | Group | None = WORLD,
        group_back: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        check_integer(sr_tag, "sr_tag")
        check_integer(src_rank, "src_rank")
        empty_of(dtype)
        self.tag = sr_tag
        self.rank = src_rank
        self.shape = shape
        self.dtype = dtype
        self.group_back = group_back

    def __call__(self, input_x: Any = None) -> Any:
        """Return the tensor received; the argument only orders a graph and is not read."""
        return _receive(
            input_x, self.tag, self.rank, self.shape, self.dtype, self.group, self.group_back
        )

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """The shape that the caller gave."""
        return tuple(as_ints(self.shape, "shape"))

    def result_dtypes(self, *dtypes: Any) -> Any:
        """The dtype that the caller gave."""
        return self.dtype

    def backward(self) -> Backward:
        """Send the gradient back in `group_back`; the operand, which is not read, gets zeros."""
        send = self.like(Send, self.tag, self.rank, self.group_back, self.group)
        zeros_like = sys.modules["mindspore"].ops.zeros_like

        def of_receive(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            send(gradient)
            return (zeros_like(operand),)

        return of_receive


@differentiable("unisono.mindspore.ops._messages:Receive")
def _receive(
    tensor: Any,
    sr_tag: int,
    src_rank: int,
    shape: Sequence[int],
    dtype: Any,
    group: str | Group | None,
    group_back: str | Group | None,
) -> Any:
    members, peer = resolve_root(group, src_rank, "src_rank")
    out = buffers.output_like(empty_of(dtype), shape)
    dispatch.recv(members, out.buffer, peer, sr_tag)
    return out.finish()


class ReceivedTensor(Receive):
    """`comm_func.recv` in a graph: the sender has no result through which a gradient could come."""

    def backward(self) -> Backward:
        """None."""
        refused: Backward = self.like(NoBackward, "recv").backward()
        return refused


class BatchISendIRecv(CompositePrimitive):
    """Send and receive several tensors at the same time, as `op_types` says for each.

    >>> def swap():
    ...     other, kinds = 1 - dist.get_rank(), ["isend", "irecv"]
    ...     batch = ops.BatchISendIRecv(kinds, [other, other], [(1,)], [np.float64])
    ...     return batch([np.full(1, float(dist.get_rank()))])[1].tolist()
    >>> unisono.spawn(swap, 2)
    [[1.0], [0.0]]
    """

    def __init__(
        self,
        op_types: Sequence[str],
        remote_ranks: Sequence[int],
        receive_shapes: Sequence[Sequence[int]] | None = None,
        receive_dtypes: Sequence[Any] | None = None,
        group: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        shapes = () if receive_shapes is None else receive_shapes
        dtypes = () if receive_dtypes is None else receive_dtypes
        for value, name in (
            (op_types, "op_types"),
            (remote_ranks, "remote_ranks"),
            (shapes, "receive_shapes"),
            (dtypes, "receive_dtypes"),
        ):
            if not isinstance(value, list | tuple):
                raise ArgumentTypeError(f"{name} must be a list or a tuple, got {value!r}")
        if len(op_types) != len(remote_ranks):
            raise ArgumentError(
                f"{len(op_types)} op_types for {len(remote_ranks)} remote_ranks; give one for each"
            )
        if len(shapes) != len(dtypes):
            raise ArgumentError(
                f"{len(shapes)} receive_shapes for {len(dtypes)} receive_dtypes; give one for each"
            )
        if not all(isinstance(op, str) and op in ("isend", "irecv") for op in op_types):
            raise ArgumentError(f"op_types may hold isend and irecv only, got {op_types}")
        if list(op_types).count("irecv") != len(shapes):
            raise ArgumentError(f"there must be one of receive_shapes for each irecv in {op_types}")
        self.op_types = op_types
        self.remote_ranks = remote_ranks
        self.receive_shapes = shapes
        self.receive_dtypes = dtypes

    def __call__(self, input_x: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return one tensor for each entry: what was received, or a meaningless zero for a send."""
        return MessageBatch(
            self.op_types,
            self.remote_ranks,
            self.receive_shapes,
            self.receive_dtypes,
            self.group,
        )(*listed(input_x))


class MessageBatch(CommunicationPrimitive):
    """`BatchISendIRecv` with a tensor for each message that it sends."""

    def __init__(
        self,
        op_types: Sequence[str],
        remote_ranks: Sequence[int],
        receive_shapes: Sequence[Sequence[int]],
        receive_dtypes: Sequence[Any],
        group: str | Group | None,
    ) -> None:
        super().__init__(group)
        self.messages = list(zip(op_types, remote_ranks, strict=True))
        shapes = (tuple(as_ints(shape, "receive_shapes")) for shape in receive_shapes)
        self.received = list(zip(shapes, receive_dtypes, strict=True))

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """Return one tensor for each message."""
        given = [tensor for tensor in tensors if tensor is not None]
        kinds = [kind for kind, _ in self.messages]
        if kinds.count("isend") != len(given):
            raise ArgumentError(f"{len(given)} tensors to send for the op_types {kinds}")
        outgoing, incoming = iter(given), iter(self.received)
        entries = []
        for kind, peer in self.messages:
            if kind == "isend":
                entry = comm_func.P2POp(kind, next(outgoing), peer, self.group)
            else:
                shape, dtype = next(incoming)
                entry = comm_func.P2POp(kind, shape, peer, self.group, recv_dtype=dtype)
            entries.append(entry)
        return comm_func.batch_isend_irecv(entries)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """What is received, and no dimensions for what is sent."""
        incoming = iter(self.received)
        return [() if kind == "isend" else next(incoming)[0] for kind, _ in self.messages]

    def result_dtypes(self, *dtypes: Any) -> Any:
        """The dtype of each tensor that is received or sent."""
        outgoing, incoming = iter(dtypes), iter(self.received)
        return [
            next(outgoing) if kind == "isend" else next(incoming)[1] for kind, _ in self.messages
        ]

    def backward(self) -> Backward:
        """None: gradients would have to go to ranks that may not expect them."""
        raise Unsupported(
            "BatchISendIRecv has no backward, so a graph with it cannot be differentiated; call "
            "it outside the graph, or use AlltoAllV"
        )


def listed(tensors: Any) -> Any:
    """Refuse what is not a list or tuple; in a graph, where types are known, it does nothing."""
    if not isinstance(tensors, list | tuple):
        raise ArgumentTypeError(f"input_x must be a list of tensors, got {type(tensors).__name__}")
    return tensors
