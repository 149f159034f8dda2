"""The call forms of a group's methods: torch gives most of them several signatures.

The ordinary form, which torch's own functions use, ends with an object of options. The others take
a bare tensor, an operator, a root or a timeout. `in_all_forms` lets a method that is written for
the ordinary form be called in all of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unisono.torch.backend import modes

__all__ = ["in_all_forms"]

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
        self._options = options
        self._wrap = wrap  # whether the ordinary form has lists of these tensors
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
                arguments.append([value] if self._wrap else value)
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
        modes.tell(name)
        return method(self, *given, **named)

    made: Any = call
    return made  # type: ignore[no-any-return]
