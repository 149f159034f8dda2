"""The order of backward passes in MindSpore's graphs. Needs MindSpore.

MindSpore's compiler orders operators that have effects, forward and backward. Three things it
leaves without an order, so that ranks whose graphs differ could call in different orders:

- A backward pass may begin before its forward pass has ended. Here, the gradient with which it
  begins depends on the result of the forward pass.
- What follows a gradient may run before it. Here, an operator that has effects takes the gradient.
- What the bprops of cells call. Here, where a cell has a bprop and calls a collective, the compiler
  reads a function: it calls the cell's `construct`, and gives the result to an operator, whose
  backward is the bprop.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops
from mindspore.graph import _parse
from mindspore.graph._parse.resources import convert_object_map
from mindspore.ops.composite.multitype_ops import ones_like_impl

from unisono.mindspore.integration.graph import operator_class
from unisono.mindspore.ops._primitive import CommunicationPrimitive

__all__ = ["install"]

#: By this name, a function that replaces something of the program knows what it replaces.
_REPLACED = "replaced"

#: MindSpore's flag of cells that are computed again in the backward pass.
_RECOMPUTED = "output_recompute"

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
    if isinstance(value, ops.GradOperation):
        return _replacement(value, _operation_of)
    if value is mindspore.grad or value is mindspore.value_and_grad:
        return _replacement(value, _gradient_of)
    if type(value) in (list, tuple) and any(isinstance(entry, nn.Cell) for entry in value):
        return type(value)(map(_ordered, value))
    return value


def _replacement(value: Any, make: Callable[[Any], Any]) -> Any:
    function = _FUNCTIONS.get(value) or make(value)
    if function is not value:
        _FUNCTIONS[value] = function
    return function


# ---- a backward pass after its forward pass, and before what follows -----------------------------


def _first_gradient(loss: Any) -> Any:
    """The gradient with which a backward pass begins: ones, when the forward pass has ended."""
    return ops.depend(ops.OnesLike()(loss), loss)


def _gradient_of(function: Any) -> Callable[..., Any]:
    """`grad` or `value_and_grad`, whose result is there before the program goes on."""
    return _made(
        "def ordered(*arguments, **named):\n"
        f"    function = {_REPLACED}(*arguments, **named)\n"
        "    def gradient(*operands, **named_operands):\n"
        "        return ended(function(*operands, **named_operands))\n"
        "    return gradient\n",
        ended=_ended,
        **{_REPLACED: function},
    )


def _operation_of(operation: Any) -> Callable[..., Any]:
    """A `GradOperation`, the same; where the program gives the first gradient, that has to wait."""
    cases = []
    # Such an operation cannot differentiate functions of `*operands`.
    for count in range(1, 9) if operation.sens_param else ():
        operands = ", ".join(f"operand{index}" for index in range(count))
        cases.append(
            f"        if not named and len(arguments) == {count + 1}:\n"
            f"            def after{count}({operands}):\n"
            f"                return gate(network({operands}))\n"
            f"            return ended({_REPLACED}(after{count}, *weights)(*arguments))\n"
        )
    return _made(
        "def ordered(network, *weights):\n"
        "    def gradient(*arguments, **named):\n"
        f"{''.join(cases)}"
        f"        return ended({_REPLACED}(network, *weights)(*arguments, **named))\n"
        "    return gradient\n",
        gate=_gate,
        ended=_ended,
        **{_REPLACED: operation},
    )


def _gate(result: Any) -> Any:
    """The same result, whose gradient waits for it."""
    if isinstance(result, (list, tuple)):
        return ops.HyperMap()(_gate, result)
    return _GATE(result, ops.stop_gradient(result))


def _ended(result: Any) -> Any:
    """The same result, which is there before the program goes on."""
    _END(*_tensors(ops.stop_gradient(result)))
    return result


def _tensors(value: Any) -> Any:
    found: Any = ()
    if isinstance(value, (list, tuple)):
        for entry in value:
            found += _tensors(entry)
    elif isinstance(value, mindspore.Tensor):
        found += (value,)
    return found


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
        return _made(
            f"def backward({', '.join(operands)}, result, gradient):\n    return ({zeros})\n",
            zeros_like=ops.zeros_like,
        )


_END = operator_class(_End)()


# ---- bprops in the order of their cells ----------------------------------------------------------


def _function_of(cell: nn.Cell) -> Callable[..., Any]:
    """What the compiler reads instead of a cell, which is the cell itself if it needs no care."""
    with_bprop = hasattr(cell, "bprop") and _takes_positional_arguments(cell)
    recomputed = _RECOMPUTED in cell.get_flags()
    if not (with_bprop or recomputed) or not _communicates(cell, set()):
        return cell  # type: ignore[no-any-return]
    if recomputed:
        # The compiler cannot repeat operators that have effects, and ranks should not repeat
        # collectives: a graph keeps the results of such a cell.
        del cell.get_flags()[_RECOMPUTED]
    return _with_bprop(cell) if with_bprop else cell


def _takes_positional_arguments(cell: nn.Cell) -> bool:
    parameters = inspect.signature(cell.construct).parameters.values()
    return bool(parameters) and all(
        entry.kind is entry.POSITIONAL_OR_KEYWORD and entry.default is entry.empty
        for entry in parameters
    )


def _with_bprop(cell: nn.Cell) -> Callable[..., Any]:
    names = list(inspect.signature(cell.construct).parameters)
    operands = ", ".join(names)
    tensors = " and ".join(f"isinstance({name}, Tensor)" for name in names)
    return _made(
        f"def ordered({operands}):\n"
        f"    if not ({tensors}):\n"
        f"        return {_REPLACED}({operands})\n"
        f"    result = stop_gradient(construct({operands}))\n"
        f"    if isinstance(result, (list, tuple)):\n"
        f"        return operator({operands}, *result)\n"
        f"    return operator({operands}, result)\n",
        Tensor=mindspore.Tensor,
        stop_gradient=ops.stop_gradient,
        construct=cell.construct,
        operator=operator_class(_OwnBackward)(len(names), cell.bprop),
        **{_REPLACED: cell},
    )


class _OwnBackward(CommunicationPrimitive):
    """Pass on what a cell returned; its operands are those of the cell, and then the results."""

    def __init__(self, operands: int, bprop: Callable[..., Any]) -> None:
        super().__init__(None)
        self.operands = operands
        self.bprop_of_cell = bprop  # MindSpore has its own `bprop` in operators
        self.results = 1

    def __call__(self, *tensors: Any) -> Any:
        """Return the results."""
        results = tensors[self.operands :]
        return results if len(results) > 1 else results[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """The shapes of the results."""
        self.results = len(shapes) - self.operands
        return list(shapes[self.operands :]) if self.results > 1 else shapes[-1]

    def result_dtypes(self, *dtypes: Any) -> Any:
        """The dtypes of the results."""
        return list(dtypes[self.operands :]) if self.results > 1 else dtypes[-1]

    def backward(self) -> Callable[..., tuple[Any, ...]]:
        """The cell's bprop; the results themselves have no gradient."""
        operands = [f"operand{index}" for index in range(self.operands)]
        results = [f"result{index}" for index in range(self.results)]
        gradients = [f"gradients[{index}]" for index in range(self.operands)]
        gradients += [f"zeros_like({result})" for result in results]
        return _made(
            f"def backward({', '.join(operands + results)}, result, gradient):\n"
            f"    gradients = bprop({', '.join(operands)}, result, gradient)\n"
            f"    return ({', '.join(gradients)},)\n",
            bprop=self.bprop_of_cell,
            zeros_like=ops.zeros_like,
        )


def _waiting(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
    return (ops.depend(gradient, result),)


_GATE = operator_class(_OwnBackward)(1, _waiting)


def _made(text: str, **names: Any) -> Callable[..., Any]:
    """The function with this source, which knows these names.

    The compiler asks Python for the source of a function, which must stand in a file that exists;
    where Python finds none, it takes the attribute `source`.
    """
    lines = text.splitlines(keepends=True)
    inner = "".join(f"    {line}" for line in lines)
    name = text.removeprefix("def ").partition("(")[0]
    after_end = "\n" * len(inspect.getsource(inspect.getmodule(_made)).splitlines())  # type: ignore[arg-type]
    module = f"{after_end}def make({', '.join(names)}):\n{inner}    return {name}\n"
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(module, __file__, "exec"), found)
    function: Any = found["make"](**names)
    function.source = (lines, function.__code__.co_firstlineno)
    return function  # type: ignore[no-any-return]


# ---- whether a cell calls a collective -----------------------------------------------------------


def _communicates(thing: Any, seen: set[int]) -> bool:
    """Whether a cell, a function, or what they know, is one of our collectives, or calls one."""
    if isinstance(thing, types.MethodType):
        return _communicates(thing.__self__, seen) or _communicates(thing.__func__, seen)
    if id(thing) in seen:
        return False
    seen.add(id(thing))
    if isinstance(thing, CommunicationPrimitive):
        return True
    if isinstance(thing, type):
        return issubclass(thing, CommunicationPrimitive)
    if isinstance(thing, nn.Cell):
        return any(_communicates(part, seen) for part in _parts_of_cell(thing))
    if isinstance(thing, list | tuple):
        return any(_communicates(part, seen) for part in thing)
    if not isinstance(thing, types.FunctionType):
        return False
    if thing in convert_object_map:
        return (thing.__module__ or "").startswith("unisono.")
    # What MindSpore itself calls is known: its table has its collectives.
    own = not (thing.__module__ or "").startswith("mindspore.")
    return own and any(_communicates(part, seen) for part in _parts_of_function(thing))


def _parts_of_cell(cell: nn.Cell) -> Iterator[Any]:
    yield from vars(cell).values()
    yield from cell.cells()
    for name in dir(type(cell)):
        # The methods of the program's own classes.
        value = inspect.getattr_static(type(cell), name)
        if isinstance(value, types.FunctionType):
            yield value


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    names = set(_names_in(function.__code__))
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    # Of `mindspore.ops.AllReduce`, all three names are in the code.
    known: list[dict[str, Any]] = [function.__globals__]
    for namespace in known:
        for name in names & namespace.keys():
            value = namespace[name]
            yield value
            if isinstance(value, types.ModuleType) and not any(
                vars(value) is other for other in known
            ):
                known.append(vars(value))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)
