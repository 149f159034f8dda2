"""A reduction in two stages, within hosts and then between them: what each stage combines."""

from __future__ import annotations

from unisono.core.buffers import Buffer
from unisono.core.dtypes import ReduceOp
from unisono.engines.common.reductions import Array, divided

__all__ = ["average", "needs_all", "of"]


def needs_all(src: Buffer, op: ReduceOp) -> bool:
    """Whether partial results would lose something: a mean of integers is rounded only once."""
    return op.name == "avg" and src.dtype.kind == "integer"


def of(op: ReduceOp) -> tuple[ReduceOp, ReduceOp]:
    """How operands are combined within a host, and how those results between hosts."""
    if op.name in ("avg", "premul_sum"):
        return (op if op.name == "premul_sum" else ReduceOp.SUM), ReduceOp.SUM
    return op, op


def average(op: ReduceOp, total: Array, size: int) -> None:
    """Make the mean of the sum, if that is what was asked for."""
    if op.name == "avg":
        total[:] = divided(total, size)
