"""The collectives that only move tensors; results are written into tensors of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unisono.core import dispatch, fast, packing
from unisono.core.arguments import check_length, check_list, check_one_dtype, split_counts
from unisono.core.buffers import Buffer
from unisono.core.engine import Work
from unisono.core.fast import repeats
from unisono.core.groups import Group
from unisono.torch.distributed import arguments

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "scatter",
]


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the tensor of rank `src` into `tensor` of every rank.

    >>> def of_rank_1():
    ...     x = np.full(2, dist.get_rank())
    ...     dist.broadcast(x, src=1)
    ...     return x.tolist()
    >>> unisono.spawn(of_rank_1, 3)
    [[1, 1], [1, 1], [1, 1]]
    """
    done = fast.broadcast(tensor, src, group, async_op, group_src)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "broadcast")
    if members is None:
        return None
    root = arguments.root(members, src, group_src, "src")
    if async_op is False and repeats.again(group, "broadcast", root, tensor):
        return None
    source = data if members.rank == root else None
    work = dispatch.broadcast(
        members,
        source,
        data,
        root,
        blocking=arguments.blocking(async_op),
        names=("tensor", "tensor"),
    )
    return arguments.handle(work, async_op, [tensor])


def all_gather(
    tensor_list: list[Any], tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Collect every rank's tensor in `tensor_list`, on every rank; sizes may differ.

    >>> def everyone():
    ...     parts = [np.empty(1, int) for _ in range(3)]
    ...     dist.all_gather(parts, np.array([dist.get_rank()]))
    ...     return np.concatenate(parts).tolist()
    >>> unisono.spawn(everyone, 3)
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    if async_op is False and fast.all_gather_list(tensor_list, tensor, group) is None:
        return None
    parts = arguments.views(tensor_list, "tensor_list")
    source = arguments.view(tensor, "tensor")
    check_one_dtype([*parts, source], names="tensor_list and tensor")
    members = arguments.members(group, "all_gather")
    if members is None:
        return None
    arguments.check_entries(members, parts, source, "tensor_list")
    landing, counts = packing.unpack_buffers_on_completion(parts, "tensor_list")
    work = dispatch.all_gather(
        members,
        source,
        landing,
        counts,
        blocking=arguments.blocking(async_op),
        names=("tensor", "tensor_list"),
    )
    return arguments.handle(work, async_op, list(tensor_list))


def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Collect every rank's tensor in one: joined or stacked, as the output is shaped.

    >>> def joined():
    ...     x = np.empty(4, int)
    ...     dist.all_gather_single(x, np.full(2, dist.get_rank()))
    ...     return x.tolist()
    >>> unisono.spawn(joined, 2)
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    done = fast.all_gather_into(output_tensor, input_tensor, group, async_op, False)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    if async_op is False and repeats.again(group, "all_gather", None, output_tensor, input_tensor):
        return None
    source = arguments.view(input_tensor, "input_tensor")
    target = arguments.view(output_tensor, "output_tensor")
    members = arguments.members(group, "all_gather_single")
    if members is None:
        return None
    work = dispatch.all_gather(
        members,
        source,
        target,
        blocking=arguments.blocking(async_op),
        names=("input_tensor", "output_tensor"),
    )
    return arguments.handle(work, async_op, [output_tensor])


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Do what `all_gather_single` does, which is its name since torch 2.13.

    >>> def stacked():
    ...     x = np.empty((2, 2), int)
    ...     dist.all_gather_into_tensor(x, np.full(2, dist.get_rank()))
    ...     return x.tolist()
    >>> unisono.spawn(stacked, 2)
    [[[0, 0], [1, 1]], [[0, 0], [1, 1]]]
    """
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def _all_gather_base(
    output_tensor: Any, input_tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Do what `all_gather_single` does, under a name that torch will give up; it warns as there."""
    arguments.warn_of_old_name("_all_gather_base", "all_gather_single")
    return all_gather_single(output_tensor, input_tensor, group, async_op)


def all_gather_coalesced(
    output_tensor_lists: list[list[Any]],
    input_tensor_list: list[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Collect every rank's list of tensors; the list of rank i goes into list i of the output.

    >>> def lists():
    ...     mine = [np.full(1, dist.get_rank()), np.full(2, 1)]
    ...     found = [[np.empty_like(x) for x in mine] for _ in range(2)]
    ...     dist.all_gather_coalesced(found, mine)
    ...     return [int(of_rank[0][0]) for of_rank in found]
    >>> unisono.spawn(lists, 2)
    [[0, 1], [0, 1]]
    """
    members = arguments.members(group, "all_gather_coalesced")
    if members is None:
        return None
    inputs = arguments.views(input_tensor_list, "input_tensor_list")
    check_list(output_tensor_lists, "parameter output_tensor_lists")
    check_length(output_tensor_lists, "parameter output_tensor_lists")
    rows = [arguments.views(row, "output_tensor_lists") for row in output_tensor_lists]
    flat = [part for row in rows for part in row]
    check_one_dtype([*inputs, *flat], names="input_tensor_list and output_tensor_lists")
    source, _ = packing.pack_buffers(inputs)
    landing, _ = packing.unpack_buffers_on_completion(flat, "output_tensor_lists")
    check_length(rows, "parameter output_tensor_lists", members.size)
    counts = [sum(part.count for part in row) for row in rows]
    work = dispatch.all_gather(
        members,
        source,
        landing,
        counts,
        blocking=arguments.blocking(async_op),
        names=("input_tensor_list", "output_tensor_lists"),
    )
    outputs = [tensor for row in output_tensor_lists for tensor in row]
    return arguments.handle(work, async_op, outputs)


def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect every rank's tensor in `gather_list` of rank `dst`; sizes may differ.

    >>> def on_rank_0():
    ...     rank = dist.get_rank()
    ...     parts = [np.empty(1, int) for _ in range(3)] if rank == 0 else None
    ...     dist.gather(np.array([rank]), parts, dst=0)
    ...     return parts and np.concatenate(parts).tolist()
    >>> unisono.spawn(on_rank_0, 3)
    [[0, 1, 2], None, None]
    """
    if async_op is False and fast.gather_list(tensor, gather_list, dst, group, group_dst) is None:
        return None
    source = arguments.view(tensor, "tensor")
    parts = _views_or_none(gather_list, "gather_list")
    check_one_dtype([source, *parts], names="tensor and gather_list")
    members = arguments.members(group, "gather")
    if members is None:
        return None
    root = arguments.root_or_first(members, dst, group_dst, "dst")
    arguments.check_given_on_root(members, root, gather_list, "gather_list")
    landing, counts = None, None
    if gather_list:
        arguments.check_entries(members, parts, source, "gather_list")
        landing, counts = packing.unpack_buffers_on_completion(parts, "gather_list")
    work = dispatch.gather(
        members,
        source,
        landing,
        root,
        counts,
        blocking=arguments.blocking(async_op),
        names=("tensor", "gather_list"),
    )
    return arguments.handle(work, async_op, list(gather_list or ()))


def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Distribute the tensors of `scatter_list` of rank `src` to the ranks; sizes may differ.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     parts = [np.array([10 * i]) for i in range(3)] if dist.get_rank() == 0 else None
    ...     dist.scatter(x, parts, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(part, 3)
    [[0], [10], [20]]
    """
    if async_op is False and fast.scatter_list(tensor, scatter_list, src, group, group_src) is None:
        return None
    target = arguments.view(tensor, "tensor")
    parts = _views_or_none(scatter_list, "scatter_list")
    check_one_dtype([target, *parts], names="tensor and scatter_list")
    members = arguments.members(group, "scatter")
    if members is None:
        return None
    root = arguments.root_or_first(members, src, group_src, "src")
    arguments.check_given_on_root(members, root, scatter_list, "scatter_list")
    source, counts = None, None
    if scatter_list:
        arguments.check_entries(members, parts, target, "scatter_list")
        source, counts = packing.pack_buffers(parts)
    work = dispatch.scatter(
        members,
        source,
        target,
        root,
        counts,
        blocking=arguments.blocking(async_op),
        names=("scatter_list", "tensor"),
    )
    return arguments.handle(work, async_op, [tensor])


def all_to_all(
    output_tensor_list: list[Any],
    input_tensor_list: list[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send entry j of the input list to rank j, and receive entry i of the output list from i.

    >>> def exchange():
    ...     mine = [np.array([10 * dist.get_rank() + i]) for i in range(2)]
    ...     found = [np.empty(1, int) for _ in range(2)]
    ...     dist.all_to_all(found, mine)
    ...     return np.concatenate(found).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 10], [1, 11]]
    """
    if (
        async_op is False
        and fast.all_to_all_list(output_tensor_list, input_tensor_list, group) is None
    ):
        return None
    members = arguments.members(group, "all_to_all")
    if members is None:
        return None
    outputs = arguments.views(output_tensor_list, "output_tensor_list")
    inputs = arguments.views(input_tensor_list, "input_tensor_list")
    check_one_dtype([*outputs, *inputs], names="output_tensor_list and input_tensor_list")
    check_length(outputs, "parameter output_tensor_list", members.size)
    check_length(inputs, "parameter input_tensor_list", members.size)
    source, sends = packing.pack_buffers(inputs)
    landing, receives = packing.unpack_buffers_on_completion(outputs, "output_tensor_list")
    work = dispatch.all_to_all(
        members,
        source,
        landing,
        sends,
        receives,
        blocking=arguments.blocking(async_op),
        names=("input_tensor_list", "output_tensor_list"),
    )
    return arguments.handle(work, async_op, list(output_tensor_list))


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send rows of `input` to each rank and receive rows of `output`; equal shares by default.

    >>> def exchange():
    ...     x = np.empty(4, int)
    ...     dist.all_to_all_single(x, np.arange(4) + 10 * dist.get_rank())
    ...     return x.tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """
    if output_split_sizes is None and input_split_sizes is None:
        done = fast.all_to_all_into(output, input, group, async_op)
        if done is not NotImplemented:
            return done  # type: ignore[no-any-return]
    equal = output_split_sizes is None and input_split_sizes is None
    if equal and async_op is False and repeats.again(group, "all_to_all", None, output, input):
        return None
    members = arguments.members(group, "all_to_all_single")
    if members is None:
        return None
    target, source = arguments.view(output, "output"), arguments.view(input, "input")
    check_one_dtype([target, source], names="output and input")
    size = members.size
    sends = split_counts(source.shape, source.count, input_split_sizes, size, "input_split_sizes")
    receives = split_counts(
        target.shape, target.count, output_split_sizes, size, "output_split_sizes"
    )
    work = dispatch.all_to_all(
        members,
        source,
        target,
        None if equal else sends,
        None if equal else receives,
        blocking=arguments.blocking(async_op),
        names=("input", "output"),
    )
    return arguments.handle(work, async_op, [output])


def _views_or_none(tensors: Any, name: str) -> list[Buffer]:
    """The memory of each tensor of a list; an empty one means the same as None."""
    if tensors is None or (isinstance(tensors, list | tuple) and not tensors):
        return []
    return arguments.views(tensors, name)
