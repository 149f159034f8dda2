"""The call forms of a group's methods: torch gives most of them several signatures.

The ordinary form, which torch's own functions use, ends with an object of options. The others take
a bare tensor, an operator, a root or a timeout. `in_all_forms` lets a method that is written for
the ordinary form be called in all of them.

It also tells torch's `CommDebugMode` of the calls, which it counts. That one sees the operators of
torch's dispatcher, such as `c10d.allreduce_`, and a group in Python is called without them.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unisono.errors import ArgumentTypeError

__all__ = ["in_all_forms", "tell_modes"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _is_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor)


def _is_list(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(map(_is_tensor, given))


def _is_operator(given: Any) -> bool:
    return isinstance(given, (dist.ReduceOp, dist.ReduceOp.RedOpType))


def _is_rank(given: Any) -> bool:
    return hasattr(given, "__index__") and not _is_tensor(given)


def _is_timeout(given: Any) -> bool:
    return given is None or isinstance(given, timedelta)


def _is_options(given: Any) -> bool:
    return given is None or type(given) in _OPTIONS


#: By the kind that stands after a parameter's name, or else by that name.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "list": _is_list,
    "sizes": lambda given: isinstance(given, (list, tuple)),
    "op": _is_operator,
    "root": _is_rank,
    "timeout": _is_timeout,
    "opts": _is_options,
}
#: The attributes of options that some parameters stand for.
_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


class _Form:
    """A further signature, such as "tensor root timeout?", and the ordinary form of its calls."""

    def __init__(self, options: type, text: str, wrap: bool = True) -> None:
        self.text = text.replace(" ", ", ")
        self.wrap = wrap  # whether the ordinary form has lists of these tensors
        self._options = options
        self._kinds: dict[str, Callable[[Any], bool]] = {}
        self._needed = 0
        for word in text.split():
            name, _, kind = word.rstrip("?").partition(":")
            self._kinds[name] = _KINDS.get(kind or name, _is_tensor)
            self._needed += not word.endswith("?")

    def read(self, given: Sequence[Any], named: dict[str, Any]) -> list[Any] | None:
        """The arguments of the ordinary form; None if these are not of this form."""
        values = dict(zip(self._kinds, given, strict=False))
        if len(given) + len(named) > len(self._kinds) or not named.keys().isdisjoint(values):
            return None
        values |= named
        if not values.keys() <= self._kinds.keys():
            return None
        if any(name not in values for name in list(self._kinds)[: self._needed]):
            return None
        if not all(self._kinds[name](value) for name, value in values.items()):
            return None
        opts = values.pop("opts", None) or self._options()
        arguments = []
        for name in self._kinds:
            if name not in values:
                continue
            value = values[name]
            if name not in _FIELDS:
                arguments.append([value] if self.wrap else value)
            elif value is not None:
                setattr(opts, _FIELDS[name], operator.index(value) if name == "root" else value)
        return [*arguments, opts]


_EXCHANGE = "output_split_sizes:sizes input_split_sizes:sizes"

#: The further forms by method. A group is its own backend, and torch's backends have other names
#: for some parameters.
_FORMS: dict[str, tuple[_Form, ...]] = {
    "allreduce": (
        _Form(c10d.AllreduceOptions, "tensors:list op? timeout?", wrap=False),
        _Form(c10d.AllreduceOptions, "tensor op? timeout?"),
    ),
    "broadcast": (_Form(c10d.BroadcastOptions, "tensor root timeout?"),),
    "reduce": (_Form(c10d.ReduceOptions, "tensor root op? timeout?"),),
    "allgather": (_Form(c10d.AllgatherOptions, "output_tensors:list input_tensor timeout?"),),
    "gather": (_Form(c10d.GatherOptions, "output_tensors:list input_tensor root timeout?"),),
    "scatter": (_Form(c10d.ScatterOptions, "output_tensor input_tensors:list root timeout?"),),
    "reduce_scatter": (
        _Form(c10d.ReduceScatterOptions, "output input:list op? timeout?"),
        _Form(c10d.ReduceScatterOptions, "output_tensors input_tensor:list op? timeout?"),
    ),
    "alltoall": (
        _Form(c10d.AllToAllOptions, "output_tensor:list input_tensor:list opts?", wrap=False),
    ),
    "all_to_all_single": (
        _Form(c10d.AllToAllOptions, f"output input {_EXCHANGE} timeout?", wrap=False),
        _Form(c10d.AllToAllOptions, f"output_tensor input_tensor {_EXCHANGE} opts?", wrap=False),
    ),
    "barrier": (_Form(c10d.BarrierOptions, "timeout?"),),
}
_OPTIONS = frozenset(
    getattr(c10d, f"{verb}Options")
    for verb in (
        "Allreduce",
        "AllreduceCoalesced",
        "Broadcast",
        "Reduce",
        "Allgather",
        "Gather",
        "Scatter",
        "ReduceScatter",
        "AllToAll",
        "Barrier",
    )
)


def in_all_forms(method: _Method) -> _Method:
    """Let a method that takes the ordinary form take all forms; watching modes are told of it."""
    name = method.__name__
    forms = _FORMS.get(name, ())
    takes_lists = any(form.wrap for form in forms)

    def ordinary(given: Sequence[Any], named: dict[str, Any]) -> list[Any] | None:
        """The arguments of the ordinary form; None if these are, or if no form fits."""
        if given and type(given[-1]) in _OPTIONS:
            return None  # as torch's own functions call it
        return next((made for form in forms if (made := form.read(given, named))), None)

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> dist.Work:
        arguments = ordinary(given, named)
        if arguments is not None:
            return getattr(self, name)(*arguments)  # native code can make the call now
        if takes_lists and given and _is_tensor(given[0]):
            raise _no_form(name, forms, given, named)
        tell_modes(name)
        return method(self, *given, **named)

    made: Any = call
    return made  # type: ignore[no-any-return]


def _no_form(
    name: str, forms: Sequence[_Form], given: Sequence[Any], named: dict[str, Any]
) -> ArgumentTypeError:
    known = " or ".join(f"({form.text})" for form in forms)
    types = [type(value).__name__ for value in given]
    types += [f"{key}={type(value).__name__}" for key, value in named.items()]
    return ArgumentTypeError(
        f"{name}() takes a list with one tensor and options, or {known}; got ({', '.join(types)})"
    )


# ---- modes that count ----------------------------------------------------------------------------

#: The operators that torch's C++ has for methods of a group, where they have other names.
_OPERATORS = {
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
}


class _Operator:
    """Stands for an operator of the dispatcher whose call is made elsewhere."""

    def __init__(self, packet: Any) -> None:
        self._overloadpacket = packet

    def __call__(self) -> None:
        return None

    def __str__(self) -> str:
        return f"{self._overloadpacket}.default"


def tell_modes(method: str) -> None:
    """Let the modes that count collectives count a call of this method by this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return
    theirs = sys.modules.get("torch.distributed.tensor.debug._comm_mode")
    if theirs is None:
        return  # nobody can have made one
    packet = getattr(torch.ops.c10d, _OPERATORS.get(method, f"{method}_"), None)
    for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        if packet is not None and isinstance(mode, theirs.CommDebugMode):
            mode.__torch_dispatch__(_Operator(packet), ())
