"""MindSpore's tape: what runs forward is put on it with its backward. Needs MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor
from mindspore.common._grad_function import _Function

from unisono.errors import Unsupported

__all__ = ["record", "record_writing"]


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


def record_writing(function: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Refuse gradients that would pass to `inputs` from `outputs`, which `function` has written."""
    _InPlace.apply(function, len(outputs), *outputs, *inputs)


class _InPlace(_Function):  # type: ignore[misc]
    """The mark on tensors that a collective has written in place."""

    @staticmethod
    def forward(context: Any, function: str, count: int, *tensors: Any) -> Any:
        """Mark the outputs if an input needs a gradient; else nothing can get lost."""
        context.function = function
        if not any(context.needs_input_grad[2 + count :]):
            return Tensor(0.0)
        context.mark_dirty(*tensors[:count])
        return tensors[:count] if count > 1 else tensors[0]

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Refuse: the formula would need a result that is not written in place."""
        raise Unsupported(
            f"{context.function} wrote its result in place, so no gradient passes through it to "
            "its input; use the function of comm_func that returns a new tensor"
        )
