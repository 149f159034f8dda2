"""The primitives that exchange tensors, or the borders of one, with chosen ranks of the group.

Every rank of the group takes part, also one without neighbors. Ranks in arguments are ranks of the
group here, as they are upstream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch
from unisono.core.arguments import as_ints, check_list, check_shape, shape_of
from unisono.core.groups import Group
from unisono.errors import ArgumentError
from unisono.mindspore._arguments import empty_of
from unisono.mindspore._gradients import differentiable
from unisono.mindspore._groups import resolve_group
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops._collectives import Backward
from unisono.mindspore.ops._messages import listed
from unisono.mindspore.ops._primitive import (
    WORLD,
    CommunicationPrimitive,
    CompositePrimitive,
    OperatorPrimitive,
)

__all__ = [
    "NeighborExchange",
    "NeighborExchangeV2",
    "NeighborGradient",
    "exchange_with_neighbors",
]


class NeighborExchange(CompositePrimitive):
    """Send a tensor to each of some ranks, and receive one from each of others.

    >>> def swap():
    ...     other, rank = 1 - dist.get_rank(), dist.get_rank()
    ...     exchange = ops.NeighborExchange([other], [other], [[1]], [[1]], np.float64)
    ...     return exchange([np.full(1, float(rank))])[0].tolist()
    >>> unisono.spawn(swap, 2)
    [[1.0], [0.0]]
    """

    def __init__(
        self,
        send_rank_ids: Sequence[int],
        recv_rank_ids: Sequence[int],
        recv_shapes: Sequence[Sequence[int]],
        send_shapes: Sequence[Sequence[int]],
        recv_type: Any,
        group: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        empty_of(recv_type)
        self.send_rank_ids = _ranks(send_rank_ids, "send_rank_ids")
        self.recv_rank_ids = _ranks(recv_rank_ids, "recv_rank_ids")
        self.recv_shapes = _shapes(recv_shapes, "recv_shapes", len(recv_rank_ids))
        self.send_shapes = _shapes(send_shapes, "send_shapes", len(send_rank_ids))
        self.recv_type = recv_type

    def __call__(self, input_x: Sequence[Any]) -> Any:
        """Return a tuple of the tensors received."""
        return exchange_with_neighbors(
            listed(input_x),
            self.send_rank_ids,
            self.recv_rank_ids,
            self.recv_shapes,
            self.send_shapes,
            self.recv_type,
            self.group,
        )


def exchange_with_neighbors(
    tensors: Sequence[Any],
    send_ranks: Sequence[int],
    receive_ranks: Sequence[int],
    receive_shapes: Sequence[tuple[int, ...]],
    send_shapes: Sequence[tuple[int, ...]],
    receive_dtype: Any,
    group: str | Group | None,
) -> tuple[Any, ...]:
    """Send tensor i to the i-th rank to send to; returns one for each rank to receive from."""
    members = resolve_group(group)
    if len(tensors) != len(send_ranks):
        raise ArgumentError(f"input_x has {len(tensors)} tensors for {len(send_ranks)} ranks")
    for index, (tensor, shape) in enumerate(zip(tensors, send_shapes, strict=True)):
        check_shape(shape_of(tensor), shape, f"input_x[{index}]")
    nothing = buffers.output_like(tensors[0] if tensors else empty_of(receive_dtype), (0,)).finish()
    outgoing = [nothing] * members.size
    incoming: list[tuple[int, ...]] = [(0,)] * members.size
    for rank, tensor in zip(send_ranks, tensors, strict=True):
        _check_rank(rank, "send_rank_ids", members)
        outgoing[rank] = tensor
    for rank, shape in zip(receive_ranks, receive_shapes, strict=True):
        _check_rank(rank, "recv_rank_ids", members)
        incoming[rank] = shape
    received, _ = comm_func.all_to_all_with_output_shape(incoming, outgoing, members)
    return tuple(received[rank] for rank in receive_ranks)


# ---- borders of an image -------------------------------------------------------------------------

#: Where the eight neighbors are, as (row, column) of a 3 x 3 grid around this rank, in the order in
#: which arguments name them: top, top right, right, and so on around.
_PLACES = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))


class _Borders(CommunicationPrimitive):
    """What the exchange of borders and its gradient have in common."""

    def __init__(
        self,
        send_rank_ids: Sequence[int],
        send_lens: Sequence[int],
        recv_rank_ids: Sequence[int],
        recv_lens: Sequence[int],
        data_format: str,
        group: str | Group | None = WORLD,
    ) -> None:
        super().__init__(group)
        self.send_rank_ids = _ranks(send_rank_ids, "send_rank_ids", 8)
        self.recv_rank_ids = _ranks(recv_rank_ids, "recv_rank_ids", 8)
        self.send_lens = _lengths(send_lens, "send_lens")
        self.recv_lens = _lengths(recv_lens, "recv_lens")
        if data_format != "NCHW":
            raise ArgumentError(f"data_format must be NCHW, got {data_format!r}")
        self.data_format = data_format

    def _arguments(self) -> tuple[Any, ...]:
        return (
            self.send_rank_ids,
            self.send_lens,
            self.recv_rank_ids,
            self.recv_lens,
            self.data_format,
            self.group,
        )


class NeighborExchangeV2(_Borders, OperatorPrimitive):
    """Surround an image, of shape (N, C, H, W), with borders of the images of up to 8 neighbors.

    Lengths are those of top, bottom, left and right. A neighbor -1 does not exist.

    >>> def bordered():
    ...     if dist.get_rank() == 0:
    ...         ranks, lengths = [-1] * 4 + [1] + [-1] * 3, [0, 1, 0, 0]  # rank 1 is below
    ...     else:
    ...         ranks, lengths = [0] + [-1] * 7, [1, 0, 0, 0]  # rank 0 is above
    ...     exchange = ops.NeighborExchangeV2(ranks, lengths, ranks, lengths, "NCHW")
    ...     return exchange(np.full((1, 1, 1, 2), float(dist.get_rank())))[0, 0].tolist()
    >>> unisono.spawn(bordered, 2)
    [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]]
    """

    def __call__(self, input_x: Any) -> Any:
        """Return the larger image; it has zeros where there is no neighbor."""
        return _surround(input_x, *self._arguments())

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """Higher and wider by what is received."""
        return _surrounded(shapes[0], self.recv_lens)

    def backward(self) -> Backward:
        """The gradient of the image, and those of its borders, which the neighbors send back."""
        back = self.like(NeighborGradient, *self._arguments())

        def of_exchange(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (back(gradient),)

        return of_exchange


class NeighborGradient(_Borders):
    """The gradient of `NeighborExchangeV2`: borders go back to their owners, and are added."""

    def __call__(self, gradient: Any) -> Any:
        """Return the gradient of the image before it was surrounded."""
        return _give_back(gradient, *self._arguments())

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """Lower and narrower by what was received."""
        return _surrounded(shapes[0], tuple(-length for length in self.recv_lens))

    def backward(self) -> Backward:
        """The exchange itself."""
        forward = self.like(NeighborExchangeV2, *self._arguments())

        def of_gradient(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (forward(gradient),)

        return of_gradient


@differentiable("unisono.mindspore.ops._neighbors:NeighborExchangeV2")
def _surround(
    tensor: Any,
    send_ranks: Sequence[int],
    send_lengths: Sequence[int],
    receive_ranks: Sequence[int],
    receive_lengths: Sequence[int],
    data_format: str,
    group: str | Group | None,
) -> Any:
    shape = shape_of(tensor)
    out = buffers.output_like(tensor, _surrounded(shape, receive_lengths))
    image = buffers.read(buffers.view(tensor)).reshape(shape)
    whole = np.zeros(_surrounded(shape, receive_lengths), image.dtype)
    whole[_center(shape, receive_lengths)] = image
    edges = dict(_edges(send_ranks, shape, send_lengths))
    around = dict(_surroundings(receive_ranks, shape, receive_lengths))
    _exchange_regions(image, edges, whole, around, resolve_group(group), add=False)
    buffers.write(out.buffer, whole.reshape(-1))
    return out.finish()


@differentiable("unisono.mindspore.ops._neighbors:NeighborGradient")
def _give_back(
    tensor: Any,
    send_ranks: Sequence[int],
    send_lengths: Sequence[int],
    receive_ranks: Sequence[int],
    receive_lengths: Sequence[int],
    data_format: str,
    group: str | Group | None,
) -> Any:
    shape = _surrounded(shape_of(tensor), tuple(-length for length in receive_lengths))
    out = buffers.output_like(tensor, shape)
    whole = buffers.read(buffers.view(tensor)).reshape(shape_of(tensor))
    image = whole[_center(shape, receive_lengths)].copy()
    edges = dict(_edges(send_ranks, shape, send_lengths))
    around = dict(_surroundings(receive_ranks, shape, receive_lengths))
    _exchange_regions(whole, around, image, edges, resolve_group(group), add=True)
    buffers.write(out.buffer, image.reshape(-1))
    return out.finish()


_Region = tuple[slice, ...]


def _exchange_regions(
    source: np.ndarray[Any, Any],
    sent: dict[int, _Region],
    target: np.ndarray[Any, Any],
    received: dict[int, _Region],
    members: Group,
    *,
    add: bool,
) -> None:
    """Send regions of `source` to ranks, and write or add what comes from ranks to `target`."""
    ranks = range(members.size)
    for name, regions in (("send_rank_ids", sent), ("recv_rank_ids", received)):
        for rank in regions:
            _check_rank(rank, name, members)
    nothing = source[:0].reshape(-1)
    parts = [source[sent[rank]].reshape(-1) if rank in sent else nothing for rank in ranks]
    packed = np.concatenate(parts)
    receives = [target[received[rank]].size if rank in received else 0 for rank in ranks]
    landed = np.empty(sum(receives), source.dtype)
    dispatch.all_to_all(
        members,
        buffers.view(packed),
        buffers.view(landed),
        [part.size for part in parts],
        receives,
        names=("input_x", "the result"),
    )
    pieces = np.split(landed, np.cumsum(receives)[:-1])
    for rank, region in received.items():
        piece = pieces[rank].reshape(target[region].shape)
        target[region] = target[region] + piece if add else piece


def _surrounded(shape: Sequence[int], lengths: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != 4:
        raise ArgumentError(f"input_x must have four dimensions (NCHW), not shape {tuple(shape)}")
    top, bottom, left, right = lengths
    return (shape[0], shape[1], shape[2] + top + bottom, shape[3] + left + right)


def _center(shape: Sequence[int], lengths: Sequence[int]) -> _Region:
    """The region of the image within the larger one."""
    top, _, left, _ = lengths
    return (slice(None), slice(None), slice(top, top + shape[2]), slice(left, left + shape[3]))


def _edges(
    ranks: Sequence[int], shape: Sequence[int], lengths: Sequence[int]
) -> Iterator[tuple[int, _Region]]:
    """For each neighbor, the region of the image that it gets."""
    top, bottom, left, right = lengths
    rows = {-1: slice(0, top), 0: slice(None), 1: slice(shape[2] - bottom, None)}
    columns = {-1: slice(0, left), 0: slice(None), 1: slice(shape[3] - right, None)}
    yield from _regions(ranks, rows, columns)


def _surroundings(
    ranks: Sequence[int], shape: Sequence[int], lengths: Sequence[int]
) -> Iterator[tuple[int, _Region]]:
    """For each neighbor, the region of the larger image that it fills."""
    top, _, left, _ = lengths
    below, beside = top + shape[2], left + shape[3]
    rows = {-1: slice(0, top), 0: slice(top, below), 1: slice(below, None)}
    columns = {-1: slice(0, left), 0: slice(left, beside), 1: slice(beside, None)}
    yield from _regions(ranks, rows, columns)


def _regions(
    ranks: Sequence[int], rows: dict[int, slice], columns: dict[int, slice]
) -> Iterator[tuple[int, _Region]]:
    for rank, (row, column) in zip(ranks, _PLACES, strict=True):
        if rank != -1:
            yield rank, (slice(None), slice(None), rows[row], columns[column])


# ---- arguments -----------------------------------------------------------------------------------


def _ranks(values: Any, name: str, count: int | None = None) -> tuple[int, ...]:
    check_list(values, name, (list, tuple))
    ranks = tuple(as_ints(values, name))
    present = [rank for rank in ranks if count is None or rank != -1]
    if len(set(present)) != len(present) or any(rank < 0 for rank in present):
        raise ArgumentError(f"{name} must name each rank once, got {list(ranks)}")
    if count is not None and len(ranks) != count:
        raise ArgumentError(f"{name} needs {count} ranks, one a direction, got {list(ranks)}")
    return ranks


def _shapes(values: Any, name: str, count: int) -> tuple[tuple[int, ...], ...]:
    check_list(values, name, (list, tuple))
    if len(values) != count:
        raise ArgumentError(f"{name} has {len(values)} entries; it needs {count}, one a rank")
    return tuple(tuple(as_ints(shape, name)) for shape in values)


def _lengths(values: Any, name: str) -> tuple[int, ...]:
    check_list(values, name, (list, tuple))
    lengths = tuple(as_ints(values, name))
    if len(lengths) != 4 or any(length < 0 for length in lengths):
        raise ArgumentError(
            f"{name} must be four lengths (top, bottom, left, right), got {list(lengths)}"
        )
    return lengths


def _check_rank(rank: int, name: str, members: Group) -> None:
    if not 0 <= rank < members.size:
        raise ArgumentError(f"{name} has {rank}, but the group has {members.size} ranks")
