"""Derivatives of the primitive: forward mode, and the adjoint that makes reverse mode of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad

from unisono.core.engine import ReduceOp
from unisono.jax.collective import Collective
from unisono.jax.primitive import bind, primitive

__all__: list[str] = []


def _forward(operands: Any, tangents: Any, *, collective: Collective) -> Any:
    """The result and its tangent."""
    (operand,), (tangent,) = operands, tangents
    if not collective.is_linear and collective.verb != "all_reduce":
        raise collective.refusal()
    result = bind(collective, operand)
    tangent = ad.instantiate_zeros(tangent)
    if collective.is_linear:
        return [result], [bind(collective, tangent)]
    return [result], [_tangent(collective, operand, result, tangent)]


def _tangent(collective: Collective, operand: Any, result: Any, tangent: Any) -> Any:
    """The tangent of an all_reduce with an operator that is not linear."""
    total = replace(collective, op=ReduceOp.SUM)
    assert collective.op is not None
    if collective.op.name == "product":
        return bind(total, tangent * _product_of_others(collective, operand))
    if collective.op.name not in ("min", "max"):
        raise collective.refusal()
    # Ranks that have the same extreme value share the derivative.
    chosen = (operand == result).astype(operand.dtype)
    share = chosen / bind(total, chosen)
    return bind(total, tangent * share)


def _product_of_others(collective: Collective, operand: Any) -> Any:
    """Not by division, because operands may be zero."""
    group = collective.group
    gather = replace(collective, verb="all_gather", op=None, rows=int(group.size))
    every = bind(gather, operand[None])
    return jnp.prod(every.at[int(group.rank)].set(1), axis=0)


def _transpose(cotangents: Any, operand: Any, *, collective: Collective) -> Any:
    """The cotangent of the operand.

    A cotangent that is known to be zero goes through the adjoint too: other ranks wait for it.
    """
    cotangent = ad.instantiate_zeros(cotangents[0])
    adjoint = collective.adjoint(operand.aval.shape)
    if adjoint.op is None and collective.op is not None:
        cotangent = cotangent * collective.factor
    return [bind(adjoint, cotangent)]


def _define() -> None:
    ad.primitive_jvps[primitive] = _forward
    ad.primitive_transposes[primitive] = _transpose


_define()
