"""Collectives that write into tensors of the caller, as mint and ops.communication have them.

Groups are names, None means the world, and every `src` or `dst` is a rank of the world. A call
returns None, or a handle where `async_op` is true.
"""

from __future__ import annotations

from typing import Any

from unisono.core import buffers, dispatch
from unisono.mindspore._calls import check_dtypes, check_shape, row_counts, run
from unisono.mindspore._checks import (
    CommHandle,
    operator,
    resolve_group,
    resolve_root,
    shape_of,
)

__all__ = [
    "all_gather_into_tensor",
    "all_gather_into_tensor_uneven",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather_into_tensor",
    "reduce",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_uneven",
    "scatter_tensor",
]


def all_reduce(
    tensor: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group, in place, so that every rank holds the result."""
    buffer = buffers.view(tensor)
    return run(
        dispatch.all_reduce, resolve_group(group), async_op, tensor, buffer, buffer, operator(op)
    )


def broadcast(
    tensor: Any, src: int, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Copy the tensor of world rank `src` into `tensor` of every rank."""
    team, root = resolve_root(group, src, "src")
    buffer = buffers.view(tensor)
    source = buffer if team.rank == root else None
    return run(dispatch.broadcast, team, async_op, tensor, source, buffer, root)


def reduce(
    tensor: Any, dst: int, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `tensor` over the group into the one of world rank `dst`; others keep theirs."""
    team, root = resolve_root(group, dst, "dst")
    buffer = buffers.view(tensor)
    target = buffer if team.rank == root else None
    return run(dispatch.reduce, team, async_op, tensor, buffer, target, operator(op), root)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Join every rank's tensor along the first dimension in `output_tensor`, on every rank."""
    team = resolve_group(group)
    source, target = buffers.view(input_tensor), buffers.view(output_tensor)
    check_dtypes(source, target)
    _check_whole(output_tensor, input_tensor, team.size, "output_tensor")
    return run(dispatch.all_gather, team, async_op, output_tensor, source, target, None)


def all_gather_into_tensor_uneven(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join tensors whose numbers of rows, told by `output_split_sizes`, may differ."""
    team = resolve_group(group)
    source, target = buffers.view(input), buffers.view(output)
    check_dtypes(source, target)
    counts = row_counts(team, output, output_split_sizes, "output_split_sizes")
    return run(dispatch.all_gather, team, async_op, output, source, target, counts)


def reduce_scatter_tensor(
    output: Any, input: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Combine `input` over the group and leave this rank's part of the rows in `output`."""
    team = resolve_group(group)
    source, target = buffers.view(input), buffers.view(output)
    check_dtypes(source, target)
    _check_whole(input, output, team.size, "input")
    return run(dispatch.reduce_scatter, team, async_op, output, source, target, operator(op), None)


def reduce_scatter_tensor_uneven(
    output: Any,
    input: Any,
    input_split_sizes: Any = None,
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine `input` and deal its rows out as `input_split_sizes` says."""
    team = resolve_group(group)
    source, target = buffers.view(input), buffers.view(output)
    check_dtypes(source, target)
    counts = row_counts(team, input, input_split_sizes, "input_split_sizes")
    return run(
        dispatch.reduce_scatter, team, async_op, output, source, target, operator(op), counts
    )


def gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Join every rank's tensor in `output_tensor` of world rank `dst`; others keep theirs."""
    team, root = resolve_root(group, dst, "dst")
    source, target = buffers.view(input_tensor), buffers.view(output_tensor)
    if team.rank != root:
        return run(dispatch.gather, team, async_op, output_tensor, source, None, root, None)
    check_dtypes(source, target)
    _check_whole(output_tensor, input_tensor, team.size, "output_tensor")
    return run(dispatch.gather, team, async_op, output_tensor, source, target, root, None)


def scatter_tensor(
    output_tensor: Any,
    input_tensor: Any,
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Deal the rows of `input_tensor` of world rank `src` out, in equal parts."""
    team, root = resolve_root(group, src, "src")
    source, target = buffers.view(input_tensor), buffers.view(output_tensor)
    check_dtypes(source, target)
    _check_whole(input_tensor, output_tensor, team.size, "input_tensor")
    return run(
        dispatch.scatter,
        team,
        async_op,
        output_tensor,
        source if team.rank == root else None,
        target,
        root,
        None,
    )


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send part j of the rows of `input` to rank j, and receive part i of `output` from i."""
    team = resolve_group(group)
    source, target = buffers.view(input), buffers.view(output)
    check_dtypes(source, target)
    sends = row_counts(team, input, input_split_sizes, "input_split_sizes")
    receives = row_counts(team, output, output_split_sizes, "output_split_sizes")
    return run(dispatch.all_to_all, team, async_op, output, source, target, sends, receives)


def barrier(
    group: str | None = None, async_op: bool = False, device_ids: Any = None
) -> CommHandle | None:
    """Wait until every rank of the group has come here; `device_ids` means nothing here."""
    return run(dispatch.barrier, resolve_group(group), async_op, None)


def _check_whole(whole: Any, part: Any, size: int, name: str) -> None:
    """`whole` holds `size` parts one behind the other; a part without dimensions is one row."""
    rows, *rest = shape_of(part) or (1,)
    check_shape(whole, (rows * size, *rest), name)
