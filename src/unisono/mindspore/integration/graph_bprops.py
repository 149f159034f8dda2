"""Cells with a bprop that calls collectives, as the compiler reads them. Needs MindSpore.

The compiler gives no order to what a bprop calls. So it reads a function instead of the cell, which
calls `construct` and gives the result to an operator; the backward of this operator is the bprop.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
from mindspore import nn, ops

from unisono.errors import Unsupported
from unisono.mindspore.integration.graph import operator_class
from unisono.mindspore.integration.graph_source import (
    filled,
    form_of,
    made,
    paths,
    tensors_of,
    text_of,
)
from unisono.mindspore.ops._primitive import CommunicationPrimitive

__all__ = ["passing_on", "with_bprop"]


def with_bprop(cell: nn.Cell) -> Callable[..., Any]:
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
    return made(
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
        form_of=form_of,
        OwnBackward=operator_class(_OwnBackward),
        place=len(_BPROPS) - 1,
        tensors=tensors_of,
        filled=filled,
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


@ops.constexpr  # type: ignore[untyped-decorator]
def _refuse_tensors(form: Any) -> None:
    if next(paths(form, ""), None):
        raise Unsupported(
            "in a graph, a cell with a bprop that calls collectives takes no tensor by keyword "
            "only: bprop would get none; let construct take it by position"
        )


#: The bprops of cells. The compiler makes an operator from constants, so it gets the place here.
_BPROPS: list[Callable[..., Any]] = []


class _OwnBackward(CommunicationPrimitive):
    """Pass on what a cell returned; its operands are the tensors of the arguments and results."""

    def __init__(self, place: int, arguments: Any, results: Any) -> None:
        super().__init__(None)
        self.bprop_of_cell = _BPROPS[place]  # MindSpore has its own `bprop` in operators
        self.arguments = arguments
        self.results = results
        self.operands = len(list(paths(arguments, "")))

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
        results = [f"result{index}" for index, _ in enumerate(paths(self.results, ""))]
        values: dict[str, Any] = {}
        arguments = text_of(self.arguments, iter(operands), values)

        def nested(name: str) -> str:
            several = len(results) > 1
            parts = [f"{name}[{index}]" for index in range(len(results))] if several else [name]
            return text_of(self.results, iter(parts), values)

        gradients = [*paths(self.arguments, "gradients")]
        gradients += [f"zeros_like({result})" for result in results]
        return made(
            f"def backward({', '.join(operands + results)}, result, gradient):\n"
            f"    gradients = bprop(*{arguments}, {nested('result')}, {nested('gradient')})\n"
            f"    return ({', '.join(gradients)},)\n",
            bprop=self.bprop_of_cell,
            zeros_like=ops.zeros_like,
            **values,
        )


def passing_on(backward: Callable[..., tuple[Any, ...]]) -> Any:
    """The operator of one operand and one result that passes on the result, with this backward."""
    _BPROPS.append(backward)
    return operator_class(_OwnBackward)(len(_BPROPS) - 1, ("tuple", ("tensor",)), ("tensor",))
