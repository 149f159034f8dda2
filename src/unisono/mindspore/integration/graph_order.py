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
from mindspore.ops.composite.base import _Grad
from mindspore.ops.composite.multitype_ops import ones_like_impl

from unisono.errors import Unsupported
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
    if isinstance(value, ops.GradOperation | _Grad):
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
    return _made(
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
    with_bprop = hasattr(cell, "bprop")
    recomputed = _RECOMPUTED in cell.get_flags()
    if not (with_bprop or recomputed) or not _communicates(cell, set()):
        return cell  # type: ignore[no-any-return]
    if recomputed:
        # The compiler cannot repeat operators that have effects, and ranks should not repeat
        # collectives: a graph keeps the results of such a cell.
        del cell.get_flags()[_RECOMPUTED]
    return _with_bprop(cell) if with_bprop else cell


def _with_bprop(cell: nn.Cell) -> Callable[..., Any]:
    """A function with the signature of `construct`, whose backward is the cell's bprop."""
    parameters = inspect.signature(cell.construct).parameters.values()
    signature = inspect.Signature([_by_name(parameter) for parameter in parameters])
    positional, keywords = [], []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(f"*{parameter.name}")
        else:
            keywords.append(parameter)
    named = "".join(
        f", **{entry.name}" if entry.kind is entry.VAR_KEYWORD else f", {entry.name}={entry.name}"
        for entry in keywords
    )
    values = [
        f"*{entry.name}.values()" if entry.kind is entry.VAR_KEYWORD else entry.name
        for entry in keywords
    ]
    defaults = {
        f"default_of_{entry.name}": entry.default
        for entry in parameters
        if entry.default is not entry.empty
    }
    _BPROPS.append(cell.bprop)
    return _made(
        f"def ordered{signature}:\n"
        # The compiler finds a default only if the function itself uses the name.
        f"    defaults = [{', '.join(defaults)}]\n"
        f"    refuse_tensors(form_of([{', '.join(values)}]))\n"
        f"    arguments = cast(dtype, ({''.join(f'{entry}, ' for entry in positional)}))\n"
        f"    result = stop_gradient(construct(*arguments{named}))\n"
        "    form = form_of(result)\n"
        "    operator = OwnBackward(place, form_of(arguments), form)\n"
        "    passed = operator(*tensors(arguments), *tensors(result))\n"
        "    return filled(form, passed if isinstance(passed, tuple) else (passed,))\n",
        refuse_tensors=_refuse_tensors,
        cast=_cast,
        dtype=_dtype_of(cell.get_flags()),
        stop_gradient=ops.stop_gradient,
        construct=_with_flags(cell.construct, cell.get_flags()),
        form_of=_form_of,
        OwnBackward=operator_class(_OwnBackward),
        place=len(_BPROPS) - 1,
        tensors=_tensors,
        filled=_filled,
        **defaults,
    )


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same parameter in a source text, where its default has a name."""
    if parameter.default is not parameter.empty:
        parameter = parameter.replace(default=_Name(f"default_of_{parameter.name}"))
    return parameter.replace(annotation=parameter.empty)


class _Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _with_flags(method: Any, flags: dict[str, Any]) -> Any:
    """The same method with the flags of its cell, such as the precision of `to_float`."""
    own = method.__func__
    function = types.FunctionType(
        own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__
    )
    function.__kwdefaults__ = own.__kwdefaults__
    function.__module__ = own.__module__
    function._func_graph_flags = dict(flags)  # type: ignore[attr-defined]
    return types.MethodType(function, method.__self__)


def _dtype_of(flags: dict[str, Any]) -> Any:
    """To what the compiler casts the operands of a cell with these flags."""
    for flag, dtype in _PRECISIONS.items():
        if flags.get(flag):
            return dtype
    return None


_PRECISIONS = {"fp16": mindspore.float16, "fp32": mindspore.float32, "bf16": mindspore.bfloat16}


def _cast(dtype: Any, value: Any) -> Any:
    if dtype is None:
        return value
    if isinstance(value, mindspore.Tensor):
        return ops.mixed_precision_cast(dtype, value)
    if not isinstance(value, (list, tuple)):
        return value
    found: Any = ()
    for entry in value:
        found += (_cast(dtype, entry),)
    return found


# A form says where the tensors are in a value: ("tensor",), ("value", anything else), or
# ("tuple", *forms).


def _form_of(value: Any) -> Any:
    if isinstance(value, mindspore.Tensor):
        return ("tensor",)
    if not isinstance(value, (list, tuple)):
        return ("value", value)
    form: Any = ("tuple",)
    for entry in value:
        form += (_form_of(entry),)
    return form


def _filled(form: Any, tensors: Any) -> Any:
    """The value of this form that has these tensors."""
    if form[0] == "tensor":
        return tensors[0]
    if form[0] == "value":
        return form[1]
    found: Any = ()
    start = 0
    for part in form[1:]:
        end = start + _count(part)
        found += (_filled(part, tensors[start:end]),)
        start = end
    return found


@ops.constexpr  # type: ignore[untyped-decorator]
def _count(form: Any) -> int:
    return len(list(_paths(form, "")))


@ops.constexpr  # type: ignore[untyped-decorator]
def _refuse_tensors(form: Any) -> None:
    if next(_paths(form, ""), None):
        raise Unsupported(
            "in a graph, a cell with a bprop that calls collectives takes no tensor by keyword "
            "only: bprop would get none; let construct take it by position"
        )


def _paths(form: Any, path: str) -> Iterator[str]:
    """The source text of each tensor in a value that is called `path`."""
    kind, *parts = form
    if kind == "tensor":
        yield path
    elif kind == "tuple":
        for index, part in enumerate(parts):
            yield from _paths(part, f"{path}[{index}]")


def _text(form: Any, tensors: Iterator[str], values: dict[str, Any]) -> str:
    """The source text of a value with these tensors; what is no tensor gets a name."""
    kind, *parts = form
    if kind == "tensor":
        return next(tensors)
    if kind == "value":
        name = f"value{len(values)}"
        values[name] = parts[0]
        return name
    return f"({''.join(f'{_text(part, tensors, values)}, ' for part in parts)})"


#: The bprops of cells. The compiler makes an operator from constants, so it gets the place here.
_BPROPS: list[Callable[..., Any]] = []


class _OwnBackward(CommunicationPrimitive):
    """Pass on what a cell returned; its operands are the tensors of the arguments and results."""

    def __init__(self, place: int, arguments: Any, results: Any) -> None:
        super().__init__(None)
        self.bprop_of_cell = _BPROPS[place]  # MindSpore has its own `bprop` in operators
        self.arguments = arguments
        self.results = results
        self.operands = len(list(_paths(arguments, "")))

    def __call__(self, *tensors: Any) -> Any:
        """Return the results."""
        results = tensors[self.operands :]
        return results if len(results) > 1 else results[0]

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """The shapes of the results."""
        results = shapes[self.operands :]
        return list(results) if len(results) > 1 else results[0]

    def result_dtypes(self, *dtypes: Any) -> Any:
        """The dtypes of the results."""
        results = dtypes[self.operands :]
        return list(results) if len(results) > 1 else results[0]

    def backward(self) -> Callable[..., tuple[Any, ...]]:
        """The cell's bprop; the results themselves have no gradient."""
        operands = [f"operand{index}" for index in range(self.operands)]
        results = [f"result{index}" for index, _ in enumerate(_paths(self.results, ""))]
        values: dict[str, Any] = {}
        arguments = _text(self.arguments, iter(operands), values)

        def nested(name: str) -> str:
            several = len(results) > 1
            parts = [f"{name}[{index}]" for index in range(len(results))] if several else [name]
            return _text(self.results, iter(parts), values)

        gradients = [*_paths(self.arguments, "gradients")]
        gradients += [f"zeros_like({result})" for result in results]
        return _made(
            f"def backward({', '.join(operands + results)}, result, gradient):\n"
            f"    gradients = bprop(*{arguments}, {nested('result')}, {nested('gradient')})\n"
            f"    return ({', '.join(gradients)},)\n",
            bprop=self.bprop_of_cell,
            zeros_like=ops.zeros_like,
            **values,
        )


def _waiting(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
    return (ops.depend(gradient, result),)


_BPROPS.append(_waiting)
_GATE = operator_class(_OwnBackward)(0, ("tuple", ("tensor",)), ("tensor",))


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
