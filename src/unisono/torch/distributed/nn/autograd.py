"""The collectives as functions of autograd: each is differentiated by means of the others.

The loss is the sum of all ranks' losses, so a backward moves gradients against the direction of its
forward: what was copied to ranks is summed over them, what was sent from i to j comes from j to i.
A backward calls only functions of this module and of torch, and can be differentiated itself.
Groups are kept, not looked up again: autograd may call a backward from a thread of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.torch.distributed import movement, reductions

__all__ = [
    "all_gather",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

#: Operators whose derivative does not depend on the operands.
_LINEAR = frozenset(["sum", "avg", "premul_sum"])

_Gradients = tuple[Any, ...]


class _Collective(torch.autograd.Function):  # type: ignore[misc]
    """The base of all, because torch has no types."""


class _AllReduce(_Collective):
    """Every rank's tensor, combined, on every rank."""

    @staticmethod
    def forward(ctx: Any, op: ReduceOp, group: Group, tensor: Any) -> Any:
        """Combine a copy, because the input stays as it is."""
        _keep_operands(ctx, op, group, [tensor])
        result = _copy(tensor)
        reductions.all_reduce(result, op, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Every result depends on this operand: sum the gradients, then apply the chain rule."""
        total = _AllReduce.apply(ReduceOp.SUM, ctx.group, gradient)
        return None, None, *_through_operator(ctx, [total])


class _Reduce(_Collective):
    """Every rank's tensor, combined, on the root; zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, op: ReduceOp, group: Group, root: int, tensor: Any) -> Any:
        """Combine a copy; the other ranks return what depends on nothing."""
        _keep_operands(ctx, op, group, [tensor])
        ctx.root = root
        result = _copy(tensor)
        reductions.reduce(result, op=op, group=group, group_dst=root)
        return result if group.rank == root else result.zero_()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Only the root's result depends on the operands."""
        of_root = _Broadcast.apply(ctx.group, ctx.root, gradient)
        return None, None, None, *_through_operator(ctx, [of_root])


class _Broadcast(_Collective):
    """The root's tensor on every rank."""

    @staticmethod
    def forward(ctx: Any, group: Group, root: int, tensor: Any) -> Any:
        """Copy, because the input stays as it is."""
        ctx.group, ctx.root = group, root
        result = _copy(tensor)
        movement.broadcast(result, group=group, group_src=root)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """The root's tensor has every rank's gradient, the others' have zeros."""
        return None, None, _Reduce.apply(ReduceOp.SUM, ctx.group, ctx.root, gradient)


class _Gather(_Collective):
    """Every rank's tensor on the root; zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, group: Group, root: int, tensor: Any) -> Any:
        """Collect in new tensors."""
        ctx.group, ctx.root = group, root
        if group.rank == root:
            parts = [_empty(tensor.shape, tensor) for _ in range(group.size)]
            movement.gather(tensor, parts, group=group, group_dst=root)
        else:
            movement.gather(tensor, group=group, group_dst=root)
            parts = [_empty(tensor.shape, tensor).zero_() for _ in range(group.size)]
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        """Each rank gets the gradient of what it gave."""
        return None, None, _Scatter.apply(ctx.group, ctx.root, *gradients)


class _Scatter(_Collective):
    """Entry `rank` of the root's list."""

    @staticmethod
    def forward(ctx: Any, group: Group, root: int, *tensors: Any) -> Any:
        """Distribute; the other ranks' lists only say what the result looks like."""
        ctx.group, ctx.root = group, root
        result = _empty(tensors[0].shape, tensors[0])
        given = list(tensors) if group.rank == root else None
        movement.scatter(result, given, group=group, group_src=root)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """The root's list has the ranks' gradients, the others' have zeros."""
        return None, None, *_Gather.apply(ctx.group, ctx.root, gradient)


class _AllGather(_Collective):
    """Every rank's tensor on every rank; `shapes` has one for each rank."""

    @staticmethod
    def forward(ctx: Any, group: Group, shapes: Sequence[Any], tensor: Any) -> Any:
        """Collect in new tensors."""
        ctx.group, ctx.shape = group, tensor.shape
        parts = [_empty(shape, tensor) for shape in shapes]
        movement.all_gather(parts, tensor, group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        """The sum over the ranks of their gradients of what this rank gave."""
        landing = [_empty(ctx.shape, gradients[0])]
        return None, None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, landing, *gradients)


class _AllGatherSingle(_Collective):
    """Every rank's tensor on every rank, in the one tensor of `outputs`."""

    @staticmethod
    def forward(ctx: Any, group: Group, outputs: list[Any], tensor: Any) -> Any:
        """Collect in the tensor that the caller gives."""
        ctx.group, ctx.shape = group, tensor.shape
        movement.all_gather_single(outputs[0], tensor, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """As that of all_gather, whose list this result is in one piece."""
        parts = gradient.reshape(ctx.group.size, *ctx.shape).unbind()
        landing = [_empty(ctx.shape, gradient)]
        return None, None, _ReduceScatter.apply(ReduceOp.SUM, ctx.group, landing, *parts)


class _ReduceScatter(_Collective):
    """Entry `rank` of every rank's list, combined, in the one tensor of `outputs`."""

    @staticmethod
    def forward(ctx: Any, op: ReduceOp, group: Group, outputs: list[Any], *tensors: Any) -> Any:
        """Combine into the tensor that the caller gives."""
        _keep_operands(ctx, op, group, tensors)
        ctx.shapes = [tensor.shape for tensor in tensors]
        reductions.reduce_scatter(outputs[0], list(tensors), op, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Entry r of this rank's list went into the result of rank r."""
        every = _AllGather.apply(ctx.group, ctx.shapes, gradient)
        return None, None, None, *_through_operator(ctx, every)


class _AllToAll(_Collective):
    """Entry `rank` of each rank's list, in the tensors of `outputs`."""

    @staticmethod
    def forward(ctx: Any, group: Group, outputs: list[Any], *tensors: Any) -> Any:
        """Exchange into the tensors that the caller gives."""
        ctx.group, ctx.shapes = group, [tensor.shape for tensor in tensors]
        movement.all_to_all(outputs, list(tensors), group)
        return tuple(_written(outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        """Send each gradient back to where its tensor came from."""
        landing = [_empty(shape, gradients[0]) for shape in ctx.shapes]
        return None, None, *_AllToAll.apply(ctx.group, landing, *gradients)


class _AllToAllSingle(_Collective):
    """Rows from each rank, in the one tensor of `outputs`; `splits` are its own and the input's."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, outputs: list[Any], splits: tuple[Any, Any], tensor: Any
    ) -> Any:
        """Exchange into the tensor that the caller gives."""
        ctx.group, ctx.shape, ctx.splits = group, tensor.shape, splits
        movement.all_to_all_single(outputs[0], tensor, *splits, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Send the rows back to where they came from."""
        landing = [_empty(ctx.shape, gradient)]
        splits = (ctx.splits[1], ctx.splits[0])
        return None, None, None, _AllToAllSingle.apply(ctx.group, landing, splits, gradient)


all_gather = _AllGather.apply
all_gather_single = _AllGatherSingle.apply
all_reduce = _AllReduce.apply
all_to_all = _AllToAll.apply
all_to_all_single = _AllToAllSingle.apply
broadcast = _Broadcast.apply
gather = _Gather.apply
reduce = _Reduce.apply
reduce_scatter = _ReduceScatter.apply
scatter = _Scatter.apply


# ---- operators -----------------------------------------------------------------------------------


def _keep_operands(ctx: Any, op: ReduceOp, group: Group, operands: Sequence[Any]) -> None:
    """Note what `_through_operator` needs."""
    ctx.op, ctx.group = op, group
    if op.name not in _LINEAR:
        ctx.save_for_backward(*operands)


def _through_operator(ctx: Any, gradients: Sequence[Any]) -> list[Any]:
    """Gradients of results become those of this rank's operands: the chain rule of `op`."""
    op, group = ctx.op, ctx.group
    if op.name == "sum":
        return list(gradients)
    if op.name == "avg":
        return [gradient / int(group.size) for gradient in gradients]
    if op.name == "premul_sum":
        return [gradient * op.factor for gradient in gradients]
    # Together, so that a list needs no more calls than one tensor.
    operands = torch.cat([operand.reshape(-1) for operand in ctx.saved_tensors])
    if op.name == "product":
        slope = _product_of_others(group, operands)
    else:
        slope = _share_of_extreme(op, group, operands.detach())
    slopes = slope.conj().split([gradient.numel() for gradient in gradients])
    return [
        gradient * part.reshape(gradient.shape)
        for gradient, part in zip(gradients, slopes, strict=True)
    ]


def _product_of_others(group: Group, operand: Any) -> Any:
    """The derivative of a product; a quotient of the result would fail where there are zeros."""
    every = _AllGather.apply(group, [operand.shape] * group.size, operand)
    others = [part for rank, part in enumerate(every) if rank != group.rank]
    return functools.reduce(torch.mul, others, torch.ones_like(operand))


def _share_of_extreme(op: ReduceOp, group: Group, operand: Any) -> Any:
    """The derivative of a minimum or maximum: ranks that share it share the gradient equally."""
    extreme = _AllReduce.apply(op, group, operand)
    mine = (operand == extreme).to(operand.dtype)
    return mine / _AllReduce.apply(ReduceOp.SUM, group, mine)


# ---- tensors -------------------------------------------------------------------------------------


def _copy(tensor: Any) -> Any:
    return tensor.clone(memory_format=torch.contiguous_format)


def _empty(shape: Sequence[int], like: Any) -> Any:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _written(tensors: list[Any]) -> list[Any]:
    """Tell autograd that these were overwritten: a backward that needs what they held is an error.

    They are given in a list, so that a tensor that is used again has only its latest history.
    """
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
    return tensors
