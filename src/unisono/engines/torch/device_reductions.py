"""Reductions of tensors on a GPU: the backend does them, and its own promises hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.core.call import Call
from unisono.core.engine import ReduceOp
from unisono.engines.torch.c10d import parts, tensor_of
from unisono.errors import Unsupported

__all__ = ["all_reduce", "reduce", "reduce_scatter"]

#: Waits for one of torch's works, on behalf of a call.
_Wait = Callable[[Call, Any], None]


def _operator(op: ReduceOp) -> Any:
    import torch.distributed as dist

    if op.name == "premul_sum":
        return dist._make_nccl_premul_sum(op.factor)
    return getattr(dist.ReduceOp, op.name.upper())


def all_reduce(group: Any, call: Call, wait: _Wait) -> None:
    """Let the backend reduce, in place in the destination."""
    target = tensor_of(call.dst)
    if call.src.address != call.dst.address:
        target.copy_(tensor_of(call.src))
    _reduce_all(group, call, target, wait)


def _reduce_all(group: Any, call: Call, target: Any, wait: _Wait) -> None:
    import torch.distributed as dist

    options = dist.AllreduceOptions()
    options.reduceOp = _operator(call.operator)
    wait(call, group.allreduce([target], options))


def reduce(group: Any, call: Call, wait: _Wait) -> None:
    """Let the backend reduce; ranks other than the root keep what they have."""
    import torch.distributed as dist

    options = dist.ReduceOptions()
    options.reduceOp, options.rootRank = _operator(call.operator), call.root
    operand = tensor_of(call.src).clone()
    wait(call, group.reduce([operand], options))
    if call.destination is not None:
        tensor_of(call.dst).copy_(operand)


def reduce_scatter(group: Any, call: Call, wait: _Wait) -> None:
    """Let the backend reduce and distribute equal parts."""
    import torch.distributed as dist

    if group.name() == "gloo":
        # Gloo's own does the same, but only once somebody waits for it in torch.
        source = tensor_of(call.src).clone()
        _reduce_all(group, call, source, wait)
        tensor_of(call.dst).copy_(parts(source, call.sends)[group.rank()])
        return
    if len(set(call.sends)) > 1:
        raise Unsupported("on a GPU reduce_scatter has equal parts only; pad the shorter ones")
    options = dist.ReduceScatterOptions()
    options.reduceOp = _operator(call.operator)
    source, destination = tensor_of(call.src).clone(), tensor_of(call.dst)
    wait(call, group._reduce_scatter_base(destination, source, options))
