"""Ordinary calls of a process group, each in one call of the native module.

Ordinary means: the group is in shared memory; tensors are torch's own, on the CPU, contiguous, of a
dtype that has the operator, without a gradient; counts fit, memory does not overlap, and the
options set no timeout. All else is left to the general way in `process_group.py`, which makes the
call or explains what is wrong with it. Both describe a call alike, so that ranks may take different
ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from unisono.core import dispatch, fast
from unisono.core.dtypes import ReduceOp
from unisono.core.engine import Engine, Work
from unisono.core.fast import registration
from unisono.core.groups import Group
from unisono.torch.backend.direct import option_examples

__all__ = ["OPERATORS", "DirectCalls", "first_natively", "native"]

#: Our operators by the numbers of torch's; premul_sum is not here, because each has its own factor.
OPERATORS = {
    getattr(dist.ReduceOp.RedOpType, op.name.upper()).value: op
    for op in ReduceOp.ALL
    if op.name != "premul_sum"
}

#: native/fast_backend.cpp; None without the native module.
native: Any = getattr(fast.native, "backend", None)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def first_natively(name: str) -> Callable[[_Method], _Method]:
    """Let a function of native/fast_backend.cpp make the ordinary calls of a method.

    The method itself makes the others, and is the attribute `__wrapped__`.
    """

    def wrap(general: _Method) -> _Method:
        if native is None:
            return general
        method: _Method = native.method(getattr(native, name), general)
        return method

    return wrap


class DirectCalls:
    """What the native module leaves to Python in the calls of one group."""

    def __init__(self, group: Group, engine: Engine) -> None:
        self._group = group
        self._engine = engine

    @classmethod
    def of(cls, group: Group) -> Any:
        """What native code needs to make the calls of a group; None if it cannot."""
        engine = group.engine
        if native is None or engine is None or engine.communicator is None:
            return None
        registration.learn_torch()
        return native.group_of(engine.communicator, cls(group, engine))

    def work_of(self, call: Any) -> Work:
        """The core's work of a call, for all that native code does not tell torch itself."""
        work = self._engine.work_of(call.handle).with_value(list(call.tensors))
        work.note(lambda: dispatch.where(call.verb, self._group, call.number, call.tag))
        return work


def _learn_operators() -> None:
    """Tell native code the numbers of torch's operators, which it reads as their hashes."""
    every = [dist.ReduceOp(dist.ReduceOp.RedOpType(number)) for number in OPERATORS]
    with_factor = dist._make_nccl_premul_sum(1.0)
    if [hash(op) for op in every] == list(OPERATORS) and hash(with_factor) not in OPERATORS:
        for number, op in OPERATORS.items():
            native.learn_operator(number, op.code)
    # Otherwise this is another torch, and calls with an operator go the general way.


def _learn_options() -> None:
    """Let native code find the fields of torch's options; those not found are read by Python."""
    for name in option_examples.CLASSES:
        native.learn_options(list(option_examples.examples(name)))


if native is not None:
    _learn_operators()
    _learn_options()
