"""Collectives inside MindSpore's graphs. Needs MindSpore.

A graph sees a primitive as a custom operator, whose kernel is the primitive's own call on the
operator's memory. Two of MindSpore's attributes keep the calls in order on every rank: operators
with `side_effect_io` run in the order of the program, also where their result is not used, and with
`side_effect_backprop` their backwards run in the reverse order; `graph_order` does the rest.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import mindspore
import ml_dtypes
import numpy as np
from mindspore import ops
from mindspore.graph.api import _pynative_executor

from unisono.core import dispatch
from unisono.errors import Unsupported
from unisono.mindspore.ops._primitive import CommunicationPrimitive, NoBackward

__all__ = ["operator_class"]


_CLASSES: dict[type[CommunicationPrimitive], Any] = {}


def operator_class(primitive: type[CommunicationPrimitive]) -> Any:
    """The class of the same primitive whose objects are operators of a graph too."""
    if primitive not in _CLASSES:
        names = {
            "__module__": primitive.__module__,
            "__doc__": primitive.__doc__,
            "__call__": primitive.__call__,
            "primitive": primitive,
        }
        _CLASSES[primitive] = type(primitive.__name__, (_Operator, primitive), names)
    return _CLASSES[primitive]


class _Operator(ops.Custom):  # type: ignore[misc]
    """The half of such a class that MindSpore's compiler uses."""

    primitive: type[CommunicationPrimitive]
    is_operator = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.primitive.__init__(self, *args, **kwargs)
        # Operators of MindSpore that start inside a kernel wait for it, so it works on arrays only.
        own = self.primitive.plain(
            *map(_with_numpy_dtypes, args),
            **{name: _with_numpy_dtypes(value) for name, value in kwargs.items()},
        )

        self._scalar_dtype: Any = None

        def kernel(*values: Any) -> Any:
            arrays = [_to_own(value, self._scalar_dtype) for value in values]
            with dispatch.in_pass(backward=self.is_backward):
                result = own(*arrays)
            return tuple(map(_to_theirs, result)) if type(result) is tuple else _to_theirs(result)

        # MindSpore wants something for shape and dtype; `__infer__` answers in their place.
        ops.Custom.__init__(self, kernel, out_shape=kernel, out_dtype=kernel, func_type="pyfunc")
        self.name = self.primitive.__name__
        # What only refuses must not run unless a gradient needs it.
        self.add_prim_attr("side_effect_io", self.primitive is not NoBackward)
        self.add_prim_attr("side_effect_backprop", True)

    def __infer__(self, *operands: dict[str, Any]) -> dict[str, Any]:
        """Tell the compiler the shape and dtype of the result."""
        _use_one_thread()
        self.add_prim_attr("inputs_num", len(operands))
        shapes = [tuple(operand["shape"]) for operand in operands]
        for shape, operand in zip(shapes, operands, strict=True):
            if not self.takes_any_shape:
                _check_shape(self.name, shape)
            if not shape:
                self._note_scalar(operand["dtype"])
        shape = self.result_shapes(*shapes)
        dtype = self.result_dtypes(*(operand["dtype"] for operand in operands))
        if not isinstance(shape, list):
            _check_shape(self.name, shape)
            return {"shape": shape, "dtype": dtype, "value": None}
        for part in shape:
            _check_shape(self.name, part)
        dtypes = tuple(dtype) if isinstance(dtype, list) else (dtype,) * len(shape)
        return {"shape": tuple(shape), "dtype": dtypes, "value": None}

    def _note_scalar(self, dtype: Any) -> None:
        """Keep the dtype of an operand without dimensions: a kernel gets its bare number."""
        scalar = _with_numpy_dtypes(dtype.element_type())
        if scalar == ml_dtypes.bfloat16:
            raise Unsupported(
                f"{self.name} in a graph cannot take a bfloat16 number, a tensor without "
                "dimensions: MindSpore's custom operators cannot; give it one dimension"
            )
        if self._scalar_dtype not in (None, scalar):
            raise Unsupported(
                f"one {self.name} in graphs cannot take numbers (tensors without dimensions) of "
                f"{self._scalar_dtype} and of {scalar}; build one {self.name} for each"
            )
        self._scalar_dtype = scalar

    def get_bprop(self) -> Any:
        """The backward, which the compiler asks for when it differentiates."""
        return self.backward()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __repr__(self) -> str:
        return self.primitive.__repr__(self)


# MindSpore may still run a graph when the program ends; the world is closed after that.
atexit.register(_pynative_executor.sync)


def _use_one_thread() -> None:
    """Let MindSpore run the kernels of a graph one after the other, unless the program decided.

    With several threads, calls that nothing orders could run in one order here and in another on
    another rank.
    """
    configuration = mindspore.runtime.executor.RuntimeConf.get_instance()
    if not configuration.is_dispatch_threads_num_configured():
        configuration.set_dispatch_threads_num(1)


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if any(length < 0 for length in shape):
        raise Unsupported(
            f"{name} in a graph needs shapes that are known when it is compiled, not "
            f"{tuple(shape)}; call it outside the graph, in PyNative mode"
        )
    if 0 in shape:
        raise Unsupported(
            f"{name} in a graph cannot take or give an empty tensor, of shape {tuple(shape)}: "
            "MindSpore's custom operators cannot; call it outside the graph, in PyNative mode"
        )


def _with_numpy_dtypes(value: Any) -> Any:
    """An argument of a primitive, with NumPy's dtypes for MindSpore's."""
    if isinstance(value, list | tuple):
        return [_with_numpy_dtypes(entry) for entry in value]
    if not isinstance(value, mindspore.Type):
        return value
    own = value is mindspore.bfloat16
    return np.dtype(ml_dtypes.bfloat16 if own else str(value).lower())


# MindSpore has its own NumPy dtype for bfloat16, with the same bits as that of ml_dtypes. What a
# kernel returns is copied bit by bit, but may have neither of the two.


def _to_own(value: Any, scalar_dtype: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return np.asarray(value, scalar_dtype)
    theirs = value.dtype.name == "bfloat16"
    return value.view(np.uint16).view(ml_dtypes.bfloat16) if theirs else value


def _to_theirs(array: Any) -> Any:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
