"""Collectives over lists of tensors that write into tensors of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import buffers, dispatch, packing
from unisono.errors import ArgumentTypeError
from unisono.mindspore._calls import check_dtypes, check_list, run
from unisono.mindspore._checks import (
    CommHandle,
    operator,
    resolve_group,
    resolve_root,
    shape_of,
)

__all__ = ["all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"]


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: str | None = None, async_op: bool = False
) -> CommHandle | None:
    """Collect every rank's tensor in `tensor_list`, on every rank; shapes may differ."""
    team = resolve_group(group)
    shapes = check_list(tensor_list, "tensor_list", team.size)
    source = buffers.view(tensor)
    landing, counts = packing.unpack_on_completion(tensor_list)
    if team.rank >= 0:
        _check_entry(tensor, shapes[team.rank], "tensor", "tensor_list")
    return run(dispatch.all_gather, team, async_op, tensor_list, source, landing, counts)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: str = "sum",
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Combine every rank's list and leave entry `rank` of it in `output`; shapes may differ."""
    team = resolve_group(group)
    shapes = check_list(input_list, "input_list", team.size)
    target = buffers.view(output)
    source, counts = packing.pack(input_list)
    if team.rank >= 0:
        _check_entry(output, shapes[team.rank], "output", "input_list")
    return run(
        dispatch.reduce_scatter, team, async_op, output, source, target, operator(op), counts
    )


def gather(
    tensor: Any,
    gather_list: Sequence[Any],
    dst: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Collect every rank's tensor in `gather_list` of world rank `dst`; all ranks give a list."""
    team, root = resolve_root(group, dst, "dst")
    source = buffers.view(tensor)
    _check_uniform(gather_list, "gather_list")
    if team.rank != root:
        return run(dispatch.gather, team, async_op, gather_list, source, None, root, None)
    shapes = check_list(gather_list, "gather_list", team.size)
    _check_entry(tensor, shapes[0], "tensor", "gather_list")
    landing, counts = packing.unpack_on_completion(gather_list)
    return run(dispatch.gather, team, async_op, gather_list, source, landing, root, counts)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any],
    src: int = 0,
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Deal the `scatter_list` of world rank `src` out into `tensor`; all ranks give a list."""
    team, root = resolve_root(group, src, "src")
    target = buffers.view(tensor)
    _check_uniform(scatter_list, "scatter_list")
    if team.rank != root:
        return run(dispatch.scatter, team, async_op, tensor, None, target, root, None)
    shapes = check_list(scatter_list, "scatter_list", team.size)
    _check_entry(tensor, shapes[0], "tensor", "scatter_list")
    source, counts = packing.pack(scatter_list)
    return run(dispatch.scatter, team, async_op, tensor, source, target, root, counts)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | None = None,
    async_op: bool = False,
) -> CommHandle | None:
    """Send entry j of the input list to rank j, and receive entry i of the output list from i."""
    team = resolve_group(group)
    check_list(input_tensor_list, "input_tensor_list")
    check_list(output_tensor_list, "output_tensor_list")
    source, sends = packing.pack(input_tensor_list)
    landing, receives = packing.unpack_on_completion(output_tensor_list)
    check_dtypes(source, landing)
    return run(
        dispatch.all_to_all, team, async_op, output_tensor_list, source, landing, sends, receives
    )


def _check_entry(tensor: Any, shape: tuple[int, ...], name: str, list_name: str) -> None:
    """Errors about lists are type errors in this dialect, those about shapes too."""
    if shape_of(tensor) != shape:
        raise ArgumentTypeError(
            f"{name} has the shape {shape_of(tensor)}, but its place in {list_name} has {shape}"
        )


def _check_uniform(tensors: Any, name: str) -> None:
    shapes = check_list(tensors, name)
    if len(set(shapes)) > 1:
        raise ArgumentTypeError(f"{name} must hold tensors of one shape, not {sorted(set(shapes))}")
    dtypes = {buffers.view(tensor).dtype.name for tensor in tensors}
    if len(dtypes) > 1:
        raise ArgumentTypeError(f"{name} must hold tensors of one dtype, not {sorted(dtypes)}")
