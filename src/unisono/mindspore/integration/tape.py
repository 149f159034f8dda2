"""MindSpore's tape: what runs forward is put on it with its backward. Needs MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor
from mindspore.common._grad_function import _Function

__all__ = ["record"]


def record(make: Callable[[], Any], run: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Return what `run(*operands)` returns, differentiable as the primitive that `make` returns.

    Tensors of the result are on the tape; a handle beside them, or None, is passed on.
    """
    beside: list[Any] = []
    result = _Collective.apply(make, run, beside, *operands)
    return (result, *beside) if beside else result


class _Collective(_Function):  # type: ignore[misc]
    """One call of a functional collective."""

    @staticmethod
    def forward(
        context: Any,
        make: Callable[[], Any],
        run: Callable[..., Any],
        beside: list[Any],
        *operands: Any,
    ) -> Any:
        """Run the call; what it returns beside its result goes into `beside`."""
        result = run(*operands)
        # (result, handle), where the result may be a tuple itself.
        if isinstance(result, tuple) and not isinstance(result[-1], Tensor):
            result, handle = result
            beside.append(handle)
        context.make = make
        context.operands = operands
        context.result = result
        return result

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Any, ...]:
        """Give the operands their gradients, as the primitive's backward says."""
        gradient = gradients if isinstance(context.result, tuple) else gradients[0]
        backward = context.make().backward()
        return (None, None, None, *backward(*context.operands, context.result, gradient))
