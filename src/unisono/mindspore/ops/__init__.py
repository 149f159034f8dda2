"""The MindSpore face, `mindspore.ops`: collectives as primitives, built once and called later.

A primitive holds no rank and no world: it may be built before `init`, and ranks that are threads
may share it. Its group is looked up by name at each call. Ranks in arguments are ranks of the
world; results are new tensors of the same kind as the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from unisono.core import buffers, dispatch, packing
from unisono.core.arguments import as_ints, equal_rows, shape_of
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore._arguments import ReduceOp, check_integer, empty_of, operator
from unisono.mindspore._groups import HCCL_WORLD_COMM_GROUP as _WORLD
from unisono.mindspore._groups import check_group, resolve_group, resolve_root
from unisono.mindspore._names import or_mindspore as _or_mindspore
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops import communication

__all__ = [
    "AllGather",
    "AllReduce",
    "AlltoAll",
    "AlltoAllV",
    "Barrier",
    "BatchISendIRecv",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "Receive",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
    "Send",
    "communication",
]


class _Primitive:
    """What all primitives have: a group, and attributes that change nothing here."""

    def __init__(self, group: str | Group | None) -> None:
        check_group(group)
        self.name = type(self).__name__
        self.group = group
        self.attrs: dict[str, Any] = {}

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Keep an attribute, such as `fusion`, that upstream's compiler would read."""
        self.attrs[name] = value
        return self

    def __repr__(self) -> str:
        return f"{self.name}(group={self.group!r})"


class AllReduce(_Primitive):
    """Combine a tensor over the group; every rank gets the result."""

    def __init__(self, op: str = "sum", group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        operator(op)
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return the combined tensor."""
        return comm_func.all_reduce(input_x, self.op, self.group)[0]


class AllGather(_Primitive):
    """Join every rank's tensor along the first dimension, on every rank."""

    def __init__(self, group: str | Group | None = _WORLD) -> None:
        super().__init__(group)

    def __call__(self, input_x: Any) -> Any:
        """Return the joined tensor."""
        return comm_func.all_gather_into_tensor(input_x, self.group)[0]


class ReduceScatter(_Primitive):
    """Combine a tensor over the group; each rank gets its part of the rows."""

    def __init__(self, op: str = "sum", group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        operator(op)
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return this rank's part."""
        return comm_func.reduce_scatter_tensor(input_x, self.op, self.group)[0]


class Broadcast(_Primitive):
    """Copy the tensors of world rank `root_rank` to every rank."""

    def __init__(self, root_rank: int, group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        check_integer(root_rank, "root_rank")
        self.root_rank = root_rank

    def __call__(self, input_x: Any) -> Any:
        """Return a tuple for a tuple or list of tensors, and a tensor for a tensor."""
        if isinstance(input_x, list | tuple):
            return tuple(
                comm_func.broadcast(tensor, self.root_rank, self.group) for tensor in input_x
            )
        return comm_func.broadcast(input_x, self.root_rank, self.group)


class Reduce(_Primitive):
    """Combine a tensor over the group for world rank `dest_rank`."""

    def __init__(self, dest_rank: int, op: str = "sum", group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        check_integer(dest_rank, "dest_rank")
        operator(op)
        self.dest_rank = dest_rank
        self.op = op

    def __call__(self, input_x: Any) -> Any:
        """Return the combined tensor on `dest_rank`, and zeros of its shape elsewhere."""
        return comm_func.reduce(input_x, self.dest_rank, self.op, self.group)


class CollectiveGather(_Primitive):
    """Join every rank's tensor along the first dimension on world rank `dest_rank`."""

    def __init__(self, dest_rank: int, group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        check_integer(dest_rank, "dest_rank")
        self.dest_rank = dest_rank

    def __call__(self, input_x: Any) -> Any:
        """Return the joined tensor on `dest_rank`, and meaningless zeros elsewhere."""
        return comm_func.gather_into_tensor(input_x, self.dest_rank, self.group)


class CollectiveScatter(_Primitive):
    """Distribute the rows of the tensor of world rank `src_rank`, in equal parts."""

    def __init__(self, src_rank: int = 0, group: str | Group | None = _WORLD) -> None:
        super().__init__(group)
        check_integer(src_rank, "src_rank")
        self.src_rank = src_rank

    def __call__(self, input_x: Any) -> Any:
        """Return this rank's part; every rank passes a tensor of the full shape."""
        return comm_func.scatter_tensor(input_x, self.src_rank, self.group)


class AlltoAll(_Primitive):
    """Cut a tensor along one dimension, exchange the blocks, join them along another."""

    def __init__(
        self,
        split_count: int,
        split_dim: int,
        concat_dim: int,
        group: str | Group | None = _WORLD,
    ) -> None:
        super().__init__(group)
        check_integer(split_count, "split_count")
        check_integer(split_dim, "split_dim")
        check_integer(concat_dim, "concat_dim")
        self.split_count = split_count
        self.split_dim = split_dim
        self.concat_dim = concat_dim

    def __call__(self, input_x: Any) -> Any:
        """Return the blocks received, in the order of ranks, as one tensor."""
        members = resolve_group(self.group)
        shape = shape_of(input_x)
        if self.split_count != members.size:
            raise ArgumentError(
                f"split_count is {self.split_count}, but the group has {members.size} ranks"
            )
        split, concat = self._dimensions(len(shape))
        block = list(shape)
        block[split] = equal_rows(
            shape[split:], members.size, f"the tensor from dimension {split} on"
        )
        whole = list(block)
        whole[concat] *= members.size
        out = buffers.output_like(input_x, whole)
        source = buffers.view(input_x)
        # Blocks are not contiguous unless the first dimension is cut, so NumPy packs them.
        cut = np.split(source.array.reshape(shape), members.size, axis=split)
        packed, counts = packing.pack([np.ascontiguousarray(part) for part in cut])
        received = np.empty(sum(counts), source.dtype.numpy)
        dispatch.all_to_all(members, packed, buffers.view(received), counts, counts)
        blocks = received.reshape(members.size, *block)
        out.buffer.array[:] = np.concatenate(list(blocks), axis=concat).reshape(-1)
        return out.finish()

    def _dimensions(self, count: int) -> tuple[int, int]:
        """Both dimensions as numbers from 0; negative ones count from the end."""
        for name in ("split_dim", "concat_dim"):
            if not -count <= getattr(self, name) < count:
                raise ArgumentError(
                    f"{name} {getattr(self, name)} is out of range for {count} dimensions"
                )
        return self.split_dim % count, self.concat_dim % count


class AlltoAllV(_Primitive):
    """Exchange parts of flat tensors; the lists count blocks of `block_size` elements."""

    def __init__(self, group: str | Group | None = _WORLD, block_size: int = 1) -> None:
        super().__init__(group)
        check_integer(block_size, "block_size")
        self.block_size = block_size

    def __call__(self, input_x: Any, send_numel_list: Any, recv_numel_list: Any) -> Any:
        """Return what each rank sent, one after the other, as a flat tensor."""
        members = resolve_group(self.group)
        if len(shape_of(input_x)) != 1:
            raise ArgumentError(f"the tensor must be flat, but its shape is {shape_of(input_x)}")
        sends, receives = (
            [count * self.block_size for count in as_ints(counts, name)]
            for counts, name in (
                (send_numel_list, "send_numel_list"),
                (recv_numel_list, "recv_numel_list"),
            )
        )
        out = buffers.output_like(input_x, (sum(receives),))
        source = buffers.view(input_x)
        dispatch.all_to_all(members, source, out.buffer, sends, receives)
        return out.finish()


class Barrier(_Primitive):
    """Wait until every rank of the group has called this."""

    def __init__(self, group: str | Group | None = _WORLD) -> None:
        super().__init__(group)

    def __call__(self) -> None:
        """Return when all ranks have called it."""
        comm_func.barrier(self.group)


class Send(_Primitive):
    """Send a tensor to world rank `dest_rank`, for a `Receive` with the same tag."""

    def __init__(
        self,
        sr_tag: int,
        dest_rank: int,
        group: str | Group | None = _WORLD,
        group_back: str | Group | None = _WORLD,
    ) -> None:
        super().__init__(group)
        check_integer(sr_tag, "sr_tag")
        check_integer(dest_rank, "dest_rank")
        self.sr_tag = sr_tag
        self.rank = dest_rank
        self.group_back = group_back

    def __call__(self, input_x: Any) -> Any:
        """Return the tensor itself, because a graph expects a result."""
        members, peer = resolve_root(self.group, self.rank, "dest_rank")
        dispatch.send(members, buffers.view(input_x), peer, self.sr_tag)
        return input_x


class Receive(_Primitive):
    """Receive a tensor of a known shape and dtype from world rank `src_rank`.

    The dtype also decides whose tensor it is: MindSpore's, torch's or NumPy's.
    """

    def __init__(
        self,
        sr_tag: int,
        src_rank: int,
        shape: Sequence[int],
        dtype: Any,
        group: str | Group | None = _WORLD,
        group_back: str | Group | None = _WORLD,
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
        members, peer = resolve_root(self.group, self.rank, "src_rank")
        out = buffers.output_like(empty_of(self.dtype), self.shape)
        dispatch.recv(members, out.buffer, peer, self.tag)
        return out.finish()


class BatchISendIRecv(_Primitive):
    """Send and receive several tensors at the same time, as `op_types` says for each."""

    def __init__(
        self,
        op_types: Sequence[str],
        remote_ranks: Sequence[int],
        receive_shapes: Sequence[Sequence[int]] | None = None,
        receive_dtypes: Sequence[Any] | None = None,
        group: str | Group | None = _WORLD,
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
        if not isinstance(input_x, list | tuple):
            raise ArgumentTypeError(f"expected a list of tensors, got {type(input_x).__name__}")
        given = [tensor for tensor in input_x if tensor is not None]
        if list(self.op_types).count("isend") != len(given):
            raise ArgumentError(f"{len(given)} tensors to send for the op_types {self.op_types}")
        outgoing = iter(given)
        incoming = zip(self.receive_shapes, self.receive_dtypes, strict=True)
        batch = []
        for kind, peer in zip(self.op_types, self.remote_ranks, strict=True):
            if kind == "isend":
                entry = comm_func.P2POp(kind, next(outgoing), peer, self.group)
            else:
                shape, dtype = next(incoming)
                lengths = tuple(as_ints(shape, "receive_shapes"))
                entry = comm_func.P2POp(kind, lengths, peer, self.group, recv_dtype=dtype)
            batch.append(entry)
        return comm_func.batch_isend_irecv(batch)


__getattr__, __dir__ = _or_mindspore(
    "mindspore.ops",
    __all__,
    {"AlltoAllVC": "communication.all_to_all_v_c", "NeighborExchange": "BatchISendIRecv"},
    modules=["operations"],
    # Upstream's ops has these too, except where it has an operator of that name.
    borrowed={
        name: communication.__name__
        for name in communication.__all__
        if name not in ("gather", "scatter")
    },
)
