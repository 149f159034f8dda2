"""Let MindSpore differentiate functions: while it records a gradient, its tape keeps the backward.

A function is differentiated as the primitive of `ops` that does the same, so that each formula
stands once, in that primitive's `backward`, for calls and for graphs. What has no backward raises
when a gradient would pass through it. For a gradient of torch every collective raises; torch's
dialect has functions for that.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from unisono.core import buffers

__all__ = ["differentiable", "is_recording", "not_differentiable", "writes"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NO_BACKWARD = "unisono.mindspore.ops._primitive:NoBackward"


def is_recording() -> bool:
    """Tell whether MindSpore computes a gradient around this call (in PyNative mode)."""
    return "mindspore" in sys.modules and bool(_executor().requires_grad())


@functools.cache
def _executor() -> Any:
    return importlib.import_module("mindspore.graph.api")._pynative_executor


def differentiable(
    primitive: str, tensors: str = "tensor"
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function differentiable in its argument `tensors`, a tensor or a list of them.

    `primitive` is "module:class" below `unisono.mindspore.ops`. Its constructor takes the other
    arguments of the function, in their order and without `async_op`.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        place = list(signature.parameters).index(tensors)
        is_message = primitive == _NO_BACKWARD  # a new value, whose gradient a program sends back

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if not is_recording():  # nearly always
                result = function(*args, **kwargs)
                if is_message:
                    return result
                given = args[place] if place < len(args) else kwargs[tensors]
                refused: _R = buffers.refuse_backward(result, given)
                return refused
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return _record(function, primitive, tensors, bound.arguments)

        return call

    return decorate


def not_differentiable(tensors: str = "tensor") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function raise when a gradient would pass through it to its argument `tensors`."""
    return differentiable(_NO_BACKWARD, tensors)


def writes(written: str, read: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function that writes into argument `written` what it makes of argument `read`.

    The tape does not see what is written in place. So a gradient that would pass to `read` raises.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            result = function(*args, **kwargs)
            if is_recording():
                arguments = signature.bind(*args, **kwargs).arguments
                outputs, inputs = _tensors(arguments[written]), _tensors(arguments[read])
                if outputs and inputs:
                    from unisono.mindspore.integration import tape  # needs MindSpore

                    tape.record_writing(function.__name__, outputs, inputs)
            return result

        return call

    return decorate


def _tensors(given: Any) -> list[Any]:
    """The tensors of MindSpore in an argument: itself, or the entries of a list."""
    entries = given if isinstance(given, list | tuple) else [given]
    return [entry for entry in entries if isinstance(entry, sys.modules["mindspore"].Tensor)]


def _record(
    function: Callable[..., _R], primitive: str, tensors: str, arguments: dict[str, Any]
) -> _R:
    """Call the function, and put it on the tape if all its tensors are MindSpore's."""
    given = arguments[tensors]
    operands = _tensors(given)
    listed = isinstance(given, list | tuple)
    if not operands or len(operands) != (len(given) if listed else 1):
        return function(**arguments)

    def run(*received: Any) -> Any:
        return function(**{**arguments, tensors: list(received) if listed else received[0]})

    def make() -> Any:
        module, _, name = primitive.partition(":")
        others = [value for key, value in arguments.items() if key not in (tensors, "async_op")]
        if name == "NoBackward":
            others = [function.__name__.lstrip("_")]
        return getattr(importlib.import_module(module), name).plain(*others)

    from unisono.mindspore.integration import tape  # needs MindSpore

    result: _R = tape.record(make, run, operands)
    return result
