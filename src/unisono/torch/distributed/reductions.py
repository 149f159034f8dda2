"""The collectives that combine tensors; results are written into tensors of the caller."""

from __future__ import annotations

from typing import Any

from unisono.core import dispatch, fast, packing
from unisono.core.arguments import check_one_dtype
from unisono.core.engine import ReduceOp, Work
from unisono.core.fast import repeats
from unisono.core.groups import Group
from unisono.torch.distributed import arguments

__all__ = [
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
]


def all_reduce(
    tensor: Any, op: Any = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Combine `tensor` over the group, in place, so that every rank holds the result.

    >>> def total():
    ...     x = np.full(2, dist.get_rank())
    ...     dist.all_reduce(x)
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[3, 3], [3, 3], [3, 3]]
    """
    done = fast.all_reduce(tensor, op, group, async_op)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    if async_op is False and repeats.again(group, "all_reduce", op, tensor):
        return None
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "all_reduce")
    if members is None:
        return None
    operator = arguments.operator(op, data)
    work = dispatch.all_reduce(
        members,
        data,
        data,
        operator,
        blocking=arguments.blocking(async_op),
        names=("tensor", "tensor"),
    )
    return arguments.handle(work, async_op, [tensor])


def all_reduce_coalesced(
    tensors: Any, op: Any = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Combine each tensor of a list over the group, in place, in one call.

    >>> def totals():
    ...     x, y = np.full(1, dist.get_rank()), np.full(2, 1)
    ...     dist.all_reduce_coalesced([x, y])
    ...     return x.tolist() + y.tolist()
    >>> unisono.spawn(totals, 2)
    [[1, 2, 2], [1, 2, 2]]
    """
    every = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    parts = arguments.views(every, "tensors")
    check_one_dtype(parts, names="tensors")
    members = arguments.members(group, "all_reduce_coalesced")
    if members is None:
        return None
    operator = arguments.operator(op, parts[0])
    source, _ = packing.pack_buffers(parts)
    landing, _ = packing.unpack_buffers_on_completion(parts, "tensors")
    work = dispatch.all_reduce(
        members,
        source,
        landing,
        operator,
        blocking=arguments.blocking(async_op),
        names=("tensors", "tensors"),
    )
    return arguments.handle(work, async_op, list(every))


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine `tensor` over the group into the tensor of rank `dst`; others keep theirs.

    >>> def total_on_rank_1():
    ...     x = np.full(2, dist.get_rank())
    ...     dist.reduce(x, dst=1)
    ...     return x.tolist()
    >>> unisono.spawn(total_on_rank_1, 3)
    [[0, 0], [3, 3], [2, 2]]
    """
    done = fast.reduce(tensor, dst, op, group, async_op, group_dst)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    data = arguments.view(tensor, "tensor")
    members = arguments.members(group, "reduce")
    if members is None:
        return None
    root = arguments.root(members, dst, group_dst, "dst")
    target = data if members.rank == root else None
    operator = arguments.operator(op, data)
    work = dispatch.reduce(
        members,
        data,
        target,
        operator,
        root,
        blocking=arguments.blocking(async_op),
        names=("tensor", "tensor"),
    )
    return arguments.handle(work, async_op, [tensor])


def reduce_scatter(
    output: Any,
    input_list: list[Any],
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine every rank's list and leave entry `rank` of the result in `output`.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     dist.reduce_scatter(x, [np.array([10]), np.array([20])])
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    target = arguments.view(output, "output")
    parts = arguments.views(input_list, "input_list")
    check_one_dtype([target, *parts], names="output and input_list")
    members = arguments.members(group, "reduce_scatter")
    if members is None:
        return None
    arguments.check_entries(members, parts, target, "input_list")
    operator = arguments.operator(op, target)
    source, counts = packing.pack_buffers(parts)
    work = dispatch.reduce_scatter(
        members,
        source,
        target,
        operator,
        counts,
        blocking=arguments.blocking(async_op),
        names=("input_list", "output"),
    )
    return arguments.handle(work, async_op, [output])


def reduce_scatter_single(
    output: Any,
    input: Any,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine every rank's `input` and leave part `rank` of it, of equal parts, in `output`.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     dist.reduce_scatter_single(x, np.array([10, 20]))
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    done = fast.reduce_scatter_into(output, input, op, group, async_op, False)
    if done is not NotImplemented:
        return done  # type: ignore[no-any-return]
    if async_op is False and repeats.again(group, "reduce_scatter", op, output, input):
        return None
    target = arguments.view(output, "output")
    source = arguments.view(input, "input")
    members = arguments.members(group, "reduce_scatter_single")
    if members is None:
        return None
    operator = arguments.operator(op, source)
    work = dispatch.reduce_scatter(
        members,
        source,
        target,
        operator,
        blocking=arguments.blocking(async_op),
        names=("input", "output"),
    )
    return arguments.handle(work, async_op, [output])


def reduce_scatter_tensor(
    output: Any,
    input: Any,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Do what `reduce_scatter_single` does, which is its name since torch 2.13.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     dist.reduce_scatter_tensor(x, np.array([10, 20]))
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    return reduce_scatter_single(output, input, op, group, async_op)


def _reduce_scatter_base(
    output: Any,
    input: Any,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Do what `reduce_scatter_single` does, under a name that torch will give up."""
    arguments.warn_of_old_name("_reduce_scatter_base", "reduce_scatter_single")
    return reduce_scatter_single(output, input, op, group, async_op)
