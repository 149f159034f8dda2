"""The collectives as functions of autograd: each is differentiated by means of the others.

The loss is the sum of all ranks' losses, so a backward moves gradients against the direction of its
forward: what was copied to ranks is summed over them, what was sent from i to j comes from j to i.
A backward calls only functions of this module and of torch, and can be differentiated itself.
In forward mode tangents move as the values do; a function that is not linear is replaced by its
derivative at the operands, and a sum.
Groups are kept, not looked up again: autograd may call a backward from a thread of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from unisono.core.buffers import IN_TRANSFORM, has_tangent
from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.errors import Unsupported
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
        total = all_reduce(ReduceOp.SUM, ctx.group, gradient)
        return None, None, *_through_operator(ctx, [total])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The sum of what each operand adds."""
        return all_reduce(
            ReduceOp.SUM, ctx.group, *_through_operator(ctx, tangents[2:], forward=True)
        )


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
        of_root = broadcast(ctx.group, ctx.root, gradient)
        return None, None, None, *_through_operator(ctx, [of_root])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The sum of what each operand adds."""
        return reduce(
            ReduceOp.SUM, ctx.group, ctx.root, *_through_operator(ctx, tangents[3:], forward=True)
        )


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
        return None, None, reduce(ReduceOp.SUM, ctx.group, ctx.root, gradient)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The root's tangent."""
        return broadcast(ctx.group, ctx.root, tangents[2])


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
        return None, None, scatter(ctx.group, ctx.root, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Every rank's tangent."""
        return gather(ctx.group, ctx.root, tangents[2])


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
        return None, None, *gather(ctx.group, ctx.root, gradient)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Entry `rank` of the root's tangents."""
        return scatter(ctx.group, ctx.root, *tangents[2:])


class _AllGather(_Collective):
    """Every rank's tensor on every rank; `shapes` has one for each rank."""

    @staticmethod
    def forward(ctx: Any, group: Group, shapes: Sequence[Any], tensor: Any) -> Any:
        """Collect in new tensors."""
        ctx.group, ctx.shape, ctx.shapes = group, tensor.shape, shapes
        parts = [_empty(shape, tensor) for shape in shapes]
        movement.all_gather(parts, tensor, group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        """The sum over the ranks of their gradients of what this rank gave."""
        landing = [_empty(ctx.shape, gradients[0])]
        return None, None, reduce_scatter(ReduceOp.SUM, ctx.group, landing, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Every rank's tangent."""
        return all_gather(ctx.group, ctx.shapes, tangents[2])


class _AllGatherSingle(_Collective):
    """Every rank's tensor on every rank, in the one tensor of `outputs`."""

    @staticmethod
    def forward(ctx: Any, group: Group, outputs: list[Any], tensor: Any) -> Any:
        """Collect in the tensor that the caller gives."""
        ctx.group, ctx.shape, ctx.shapes = group, tensor.shape, _shapes(outputs)
        movement.all_gather_single(outputs[0], tensor, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """As that of all_gather, whose list this result is in one piece."""
        parts = gradient.reshape(ctx.group.size, *ctx.shape).unbind()
        landing = [_empty(ctx.shape, gradient)]
        return None, None, reduce_scatter(ReduceOp.SUM, ctx.group, landing, *parts)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Every rank's tangent."""
        return all_gather_single(ctx.group, _landing(ctx.shapes, tangents[2]), tangents[2])


class _ReduceScatter(_Collective):
    """Entry `rank` of every rank's list, combined, in the one tensor of `outputs`."""

    @staticmethod
    def forward(ctx: Any, op: ReduceOp, group: Group, outputs: list[Any], *tensors: Any) -> Any:
        """Combine into the tensor that the caller gives."""
        _keep_operands(ctx, op, group, tensors)
        ctx.shapes = _shapes(tensors)
        reductions.reduce_scatter(outputs[0], list(tensors), op, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Entry r of this rank's list went into the result of rank r."""
        every = all_gather(ctx.group, ctx.shapes, gradient)
        return None, None, None, *_through_operator(ctx, every)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The sum of what each operand adds."""
        landing = [torch.empty_like(tangents[3:][ctx.group.rank])]
        return reduce_scatter(
            ReduceOp.SUM, ctx.group, landing, *_through_operator(ctx, tangents[3:], forward=True)
        )


class _AllToAll(_Collective):
    """Entry `rank` of each rank's list, in the tensors of `outputs`."""

    @staticmethod
    def forward(ctx: Any, group: Group, outputs: list[Any], *tensors: Any) -> Any:
        """Exchange into the tensors that the caller gives."""
        ctx.group, ctx.shapes, ctx.results = group, _shapes(tensors), _shapes(outputs)
        movement.all_to_all(outputs, list(tensors), group)
        return tuple(_written(outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> _Gradients:
        """Send each gradient back to where its tensor came from."""
        landing = _landing(ctx.shapes, gradients[0])
        return None, None, *all_to_all(ctx.group, landing, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Each tangent, where its tensor went."""
        landing = _landing(ctx.results, tangents[2])
        return all_to_all(ctx.group, landing, *tangents[2:])


class _AllToAllSingle(_Collective):
    """Rows from each rank, in the one tensor of `outputs`; `splits` are its own and the input's."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, outputs: list[Any], splits: tuple[Any, Any], tensor: Any
    ) -> Any:
        """Exchange into the tensor that the caller gives."""
        ctx.group, ctx.shape, ctx.splits = group, tensor.shape, splits
        ctx.results = _shapes(outputs)
        movement.all_to_all_single(outputs[0], tensor, *splits, group)
        return _written(outputs)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> _Gradients:
        """Send the rows back to where they came from."""
        landing = [_empty(ctx.shape, gradient)]
        splits = (ctx.splits[1], ctx.splits[0])
        return None, None, None, all_to_all_single(ctx.group, landing, splits, gradient)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The rows of the tangents, where those of the tensors went."""
        landing = _landing(ctx.results, tangents[3])
        return all_to_all_single(ctx.group, landing, ctx.splits, tangents[3])


def _function(kind: type[_Collective]) -> Callable[..., Any]:
    """What makes the calls of a collective."""

    def call(*arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            raise Unsupported(IN_TRANSFORM)
        # In forward mode all ranks have to move tangents, also those whose tensors have none.
        if forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
            arguments = tuple(map(_with_tangent, arguments))
        return kind.apply(*arguments)

    call.__doc__ = kind.__doc__
    return call


all_gather = _function(_AllGather)
all_gather_single = _function(_AllGatherSingle)
all_reduce = _function(_AllReduce)
all_to_all = _function(_AllToAll)
all_to_all_single = _function(_AllToAllSingle)
broadcast = _function(_Broadcast)
gather = _function(_Gather)
reduce = _function(_Reduce)
reduce_scatter = _function(_ReduceScatter)
scatter = _function(_Scatter)


# ---- operators -----------------------------------------------------------------------------------


def _keep_operands(ctx: Any, op: ReduceOp, group: Group, operands: Sequence[Any]) -> None:
    """Note what `_through_operator` needs."""
    ctx.op, ctx.group = op, group
    if op.name not in _LINEAR:
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)


def _through_operator(ctx: Any, derivatives: Sequence[Any], *, forward: bool = False) -> list[Any]:
    """Gradients of results become those of this rank's operands: the chain rule of `op`.

    With `forward`, tangents of operands become what they add to those of results.
    """
    op, group = ctx.op, ctx.group
    if op.name == "sum":
        return list(derivatives)
    if op.name == "avg":
        return [derivative / int(group.size) for derivative in derivatives]
    if op.name == "premul_sum":
        return [derivative * op.factor for derivative in derivatives]
    # Together, so that a list needs no more calls than one tensor.
    operands = torch.cat([operand.reshape(-1) for operand in ctx.saved_tensors])
    if op.name == "product":
        slope = _product_of_others(group, operands)
    else:
        slope = _share_of_extreme(op, group, operands.detach())
    slopes = (slope if forward else slope.conj()).split([each.numel() for each in derivatives])
    return [
        derivative * part.reshape(derivative.shape)
        for derivative, part in zip(derivatives, slopes, strict=True)
    ]


def _product_of_others(group: Group, operand: Any) -> Any:
    """The derivative of a product; a quotient of the result would fail where there are zeros."""
    every = all_gather(group, [operand.shape] * group.size, operand)
    others = [part for rank, part in enumerate(every) if rank != group.rank]
    return functools.reduce(torch.mul, others, torch.ones_like(operand))


def _share_of_extreme(op: ReduceOp, group: Group, operand: Any) -> Any:
    """The derivative of a minimum or maximum: ranks that share it share the gradient equally."""
    extreme = all_reduce(op, group, operand)
    mine = (operand == extreme).to(operand.dtype)
    return mine / all_reduce(ReduceOp.SUM, group, mine)


# ---- tensors -------------------------------------------------------------------------------------


def _with_tangent(argument: Any) -> Any:
    """A tensor with a tangent, of zeros if it has none; everything else as it is."""
    if not isinstance(argument, torch.Tensor) or has_tangent(argument):
        return argument
    if not argument.is_floating_point() and not argument.is_complex():
        return argument
    return forward_ad.make_dual(argument, torch.zeros_like(argument))


def _shapes(tensors: Sequence[Any]) -> list[Any]:
    return [tensor.shape for tensor in tensors]


def _landing(shapes: Sequence[Any], like: Any) -> list[Any]:
    """New tensors for results of these shapes."""
    return [_empty(shape, like) for shape in shapes]


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
