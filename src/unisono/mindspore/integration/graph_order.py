"""The order of backward passes in MindSpore's graphs. Needs MindSpore.

MindSpore's compiler orders operators that have effects, forward and backward. Three things it
leaves without an order, so that ranks whose graphs differ could call in different orders:

- A backward pass may begin before its forward pass has ended. Here, the gradient with which it
  begins depends on the result of the forward pass.
- What follows a gradient may run before it. Here, an operator that has effects takes the gradient.
- What the bprops of cells call; see `graph_bprops`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops
from mindspore.graph import _parse
from mindspore.ops.composite.base import _Grad
from mindspore.ops.composite.multitype_ops import ones_like_impl

from unisono.mindspore.integration.graph import operator_class
from unisono.mindspore.integration.graph_bprops import passing_on, with_bprop
from unisono.mindspore.integration.graph_reach import communicates
from unisono.mindspore.integration.graph_source import made, tensors_of
from unisono.mindspore.ops._primitive import CommunicationPrimitive

__all__ = ["install"]

#: By this name, a function that replaces something of the program knows what it replaces.
_REPLACED = "replaced"

#: MindSpore's flag of cells that are computed again in the backward pass.
_RECOMPUTED = "output_recompute"

#: What `grad` with `has_aux` makes of a function outside graphs: one of `*args, **kwargs`, which a
#: function of ours cannot call. In graphs, it differentiates the function itself.
_WITH_AUX = "_Grad.__call__.<locals>.aux_fn"

#: What the compiler reads for something of the program, kept as long as what it compiled.
_FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def install() -> None:
    """Give MindSpore's compiler functions that have an order."""
    if _parse.resolve_symbol.__module__ == __name__:
        return
    resolve = _parse.resolve_symbol

    def resolve_symbol(namespace: Any, symbol: str) -> Any:
        found = resolve(namespace, symbol)
        return found if symbol in (_REPLACED, "self", "namespace") else _ordered(found)

    _parse.resolve_symbol = resolve_symbol
    ones_like_impl._ones_like_leaf_for_grad.register("Tensor")(_first_gradient)


def _ordered(value: Any) -> Any:
    """What the compiler reads instead of this value of the program."""
    if isinstance(value, nn.CellList):
        cells = list(value)
        ordered = _ordered(cells)
        return value if ordered == cells else ordered
    if isinstance(value, nn.Cell):
        return _replacement(value, _function_of)
    if isinstance(value, ops.GradOperation | _Grad):
        return _replacement(value, _operation_of)
    if value is mindspore.grad or value is mindspore.value_and_grad:
        return _replacement(value, _gradient_of)
    if getattr(value, "__qualname__", "") == _WITH_AUX:
        return _ordered(inspect.getclosurevars(value).nonlocals["fn"])
    if type(value) in (list, tuple) and any(isinstance(entry, nn.Cell) for entry in value):
        return type(value)(map(_ordered, value))
    return value


def _replacement(value: Any, make: Callable[[Any], Any]) -> Any:
    function = _FUNCTIONS.get(value) or make(value)
    if function is not value:
        _FUNCTIONS[value] = function
    return function


def _function_of(cell: nn.Cell) -> Callable[..., Any]:
    """What the compiler reads instead of a cell, which is the cell itself if it needs no care."""
    has_bprop = hasattr(cell, "bprop")
    recomputed = _RECOMPUTED in cell.get_flags()
    if not (has_bprop or recomputed) or not communicates(cell):
        return cell  # type: ignore[no-any-return]
    if recomputed:
        # The compiler cannot repeat operators that have effects, and ranks should not repeat
        # collectives: a graph keeps the results of such a cell.
        del cell.get_flags()[_RECOMPUTED]
    return with_bprop(cell) if has_bprop else cell


# ---- a backward pass after its forward pass, and before what follows -----------------------------


def _first_gradient(loss: Any) -> Any:
    """The gradient with which a backward pass begins: ones, when the forward pass has ended."""
    # Without stop_gradient, the backward pass of a second order would give zeros to the forward
    # pass: numbers that are known at once, so that nothing orders what takes them.
    ended = ops.stop_gradient(loss)
    return ops.depend(ops.OnesLike()(ended), ended)


def _gradient_of(function: Any) -> Callable[..., Any]:
    """`grad` or `value_and_grad`, whose result is there before the program goes on."""
    signature = "grad_position=0, weights=None, has_aux=False, return_ids=False, sens_param=False"
    return _gradient(function, signature, "sens_param")


def _operation_of(operation: Any) -> Callable[..., Any]:
    """A `GradOperation`, or what `grad` makes of its arguments, the same."""
    return _gradient(operation, "*weights", str(operation.sens_param))


def _gradient(function: Any, signature: str, own_first_gradient: str) -> Callable[..., Any]:
    """What takes a network and this signature, and then operands.

    Where the program gives the first gradient, as the last operand or by the name `sens`, that has
    to wait for the forward pass.
    """
    passed = ", ".join(entry.partition("=")[0] for entry in signature.split(", "))
    cases = []
    # Then, the compiler cannot differentiate functions of `*operands`.
    for count in range(1, 9) if own_first_gradient != "False" else ():
        operands = ", ".join(f"operand{index}" for index in range(count))
        cases.append(
            f"        if {own_first_gradient} and count(operands, named) == {count + 1}:\n"
            f"            def after{count}({operands}):\n"
            f"                return gate(network({operands}))\n"
            f"            return ended({_REPLACED}(after{count}, {passed})(*operands, **named))\n"
        )
    return made(
        f"def ordered(network, {signature}):\n"
        "    def gradient(*operands, **named):\n"
        f"{''.join(cases)}"
        f"        return ended({_REPLACED}(network, {passed})(*operands, **named))\n"
        "    return gradient\n",
        count=_count_of_operands,
        gate=_gate,
        ended=_ended,
        **{_REPLACED: function},
    )


def _count_of_operands(operands: Any, named: Any) -> int:
    """How many operands there are; 0 if a name is not that of the first gradient."""
    for name in named:
        if name != "sens":
            return 0
    return len(operands) + len(named)


def _gate(result: Any) -> Any:
    """The same result, whose gradient waits for it."""
    if isinstance(result, (list, tuple)):
        return ops.HyperMap()(_gate, result)
    flat = result.reshape((-1,))
    return _GATE(flat, ops.stop_gradient(flat)).reshape(result.shape)


def _ended(result: Any) -> Any:
    """The same result, which is there before the program goes on."""
    operands: Any = ()
    for tensor in tensors_of(ops.stop_gradient(result)):
        operands += (tensor.reshape((-1,)),)
    _END(*operands)
    return result


# These two take flat tensors: one operator cannot take numbers of different dtypes.


def _waiting(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
    return (ops.depend(gradient, result),)


_GATE = passing_on(_waiting)


class _End(CommunicationPrimitive):
    """Wait for its operands; the result has no meaning."""

    takes_any_shape = True

    def __init__(self) -> None:
        super().__init__(None)
        self.operands = 0

    def __call__(self, *tensors: Any) -> Any:
        """Return something."""
        return np.zeros(1, tensors[0].dtype)

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """One element."""
        self.operands = len(shapes)
        return (1,)

    def backward(self) -> Callable[..., tuple[Any, ...]]:
        """No gradient."""
        operands = [f"operand{index}" for index in range(self.operands)]
        zeros = "".join(f"zeros_like({operand}), " for operand in operands)
        return made(
            f"def backward({', '.join(operands)}, result, gradient):\n    return ({zeros})\n",
            zeros_like=ops.zeros_like,
        )


_END = operator_class(_End)()
