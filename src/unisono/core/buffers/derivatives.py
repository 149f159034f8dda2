"""Derivatives of torch that a call would lose: in forward mode it is refused, else its backward is.

Autograd does not see what an engine writes. In forward mode a tensor carries its derivative with
it, so the call can tell. In reverse mode a function that returns a new tensor of ours leaves a
refusal in the graph, in the place where its backward would be.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

from unisono.core import trace
from unisono.errors import Unsupported

__all__ = ["IN_TRANSFORM", "check_no_tangent", "has_tangent", "refuse_backward"]

#: Why tensors that torch.func has wrapped are refused.
IN_TRANSFORM = (
    "a tensor inside torch.func (grad, vjp, jvp, vmap, functionalize) stands for others and has no "
    "memory of its own; make the call outside of what torch.func transforms"
)


def has_tangent(tensor: Any) -> bool:
    """Tell whether this tensor of torch has a derivative with it, which autograd would go on with.

    That is not so within a function of autograd, which has a rule of its own for derivatives.
    """
    torch = sys.modules["torch"]
    forward_mode = torch.autograd.forward_ad
    return (
        forward_mode._current_level >= 0  # hardly ever, and asking the tensor takes long
        and torch._C._is_fwd_grad_enabled()
        and forward_mode.unpack_dual(tensor).tangent is not None
    )


def check_no_tangent(tensor: Any) -> None:
    """Refuse a tensor of torch whose derivative the call would lose."""
    if has_tangent(tensor):
        if sys.modules["torch"]._C._are_functorch_transforms_active():
            raise Unsupported(IN_TRANSFORM)
        raise Unsupported(
            "this is a dual tensor of torch.autograd.forward_ad, and the call would lose its "
            "tangent; use unisono.torch.distributed.nn.functional, communicate primal and tangent "
            "apart (forward_ad.unpack_dual), or pass tensor.detach() if no derivative is meant"
        )


def refuse_backward(outputs: Any, inputs: Any) -> Any:
    """Return outputs through which a backward raises, if a gradient of `inputs` would be lost.

    Both are a tensor, or a tuple or list with tensors and other things in it. The outputs are new
    tensors, which stay the same objects, or are the input itself.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return outputs
    operands = [tensor for tensor in _tensors(inputs, torch) if tensor.requires_grad]
    if not operands:
        return outputs
    if outputs is inputs:
        outputs = inputs.detach()
    results = [tensor for tensor in _tensors(outputs, torch) if _can_have_gradient(tensor)]
    if results:
        _refusal().apply(len(results), *results, *operands)
    return outputs


def _tensors(given: Any, torch: Any) -> Iterator[Any]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for entry in given:
            yield from _tensors(entry, torch)


def _can_have_gradient(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_inference()


@functools.cache
def _refusal() -> Any:
    """The function of autograd whose backward raises; made late, because torch comes late."""
    torch = sys.modules["torch"]

    class Refusal(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The results as they are, with a history."""

        @staticmethod
        def forward(ctx: Any, count: int, *tensors: Any) -> Any:
            """Let the results be what the call has made of the operands."""
            ctx.site = trace.call_site()  # now: the backward is elsewhere in the program
            ctx.mark_dirty(*tensors[:count])
            return tensors[:count]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            """Refuse."""
            raise Unsupported(
                f"no gradient of torch passes through the call at {ctx.site}, which is one of "
                "MindSpore's dialect; use unisono.torch.distributed.nn.functional, or give it "
                "tensor.detach() if no gradient is meant"
            )

    return Refusal
