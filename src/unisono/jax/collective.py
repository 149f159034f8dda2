"""One collective of a JAX program: what it does with arrays, and which collective is its adjoint.

A collective that sums or moves data is linear in the data of all ranks together. The gradient of
the sum of all ranks' losses goes back through its adjoint, which is a collective again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch
from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.errors import NotReady, Unsupported

__all__ = ["Collective"]

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Collective:
    """A call of one verb: all of it but the data.

    The result has the shape of the operand, with `rows` as its first length if that is given.
    `sends` and `receives` are rows too. `root` and `peer` are ranks of the group. A `recv` has no
    operand, so `shape` and `dtype` are its own. `threaded` says that ranks are threads.
    """

    verb: str
    group: Group
    site: str
    op: ReduceOp | None = None
    root: int | None = None
    rows: int | None = None
    sends: tuple[int, ...] | None = None
    receives: tuple[int, ...] | None = None
    peer: int | None = None
    tag: int = 0
    shape: tuple[int, ...] = ()
    dtype: Any = None
    threaded: bool | None = None

    def __post_init__(self) -> None:
        # Now, because a program that one thread has traced may be compiled for another later.
        if self.threaded is None:
            engine = self.group.engine
            threaded = engine is not None and engine.name == "threads"
            object.__setattr__(self, "threaded", threaded)

    @property
    def has_operand(self) -> bool:
        """Whether it takes an array."""
        return self.verb not in ("recv", "barrier")

    @property
    def has_result(self) -> bool:
        """Whether it gives an array."""
        return self.verb not in ("send", "barrier")

    def result_shape(self, operand: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result for an operand of this shape."""
        if self.verb == "recv":
            return self.shape
        return tuple(operand) if self.rows is None else (self.rows, *operand[1:])

    # ---- running it ------------------------------------------------------------------------------

    def run(self, *operands: _Array) -> list[_Array]:
        """Make the call on the engine, wait for it, and return its result as a new array."""
        if self.group.engine is None:
            raise NotReady(
                f"this program was traced with group {self.group.name!r}, which is closed now; "
                "call jax.clear_caches(), so that it is traced again"
            )
        if not self.has_operand and not self.has_result:
            dispatch.barrier(self.group)
            return []
        if self.verb == "send":
            assert self.peer is not None
            dispatch.send(self.group, buffers.view(operands[0]), self.peer, self.tag)
            return []
        if self.verb == "recv":
            result: _Array = np.empty(self.shape, self.dtype)
            dispatch.recv(self.group, buffers.view(result), self.peer, self.tag)
            return [result]
        return [self._collect(operands[0])]

    def _collect(self, operand: _Array) -> _Array:
        group, root = self.group, self.root
        at_root = root is not None and group.rank == root
        shape = self.result_shape(operand.shape)
        # What only the root gets is zero elsewhere.
        idle = self.verb in ("reduce", "gather") and not at_root
        result: _Array = (np.zeros if idle else np.empty)(shape, operand.dtype)
        source, destination = buffers.view(operand), buffers.view(result)
        match self.verb, self.op, root:
            case "all_reduce", ReduceOp() as op, None:
                dispatch.all_reduce(group, source, destination, op)
            case "reduce_scatter", ReduceOp() as op, None:
                dispatch.reduce_scatter(group, source, destination, op)
            case "reduce", ReduceOp() as op, int():
                dispatch.reduce(group, source, destination if at_root else None, op, root)
            case "broadcast", None, int():
                dispatch.broadcast(group, source if at_root else None, destination, root)
            case "gather", None, int():
                dispatch.gather(group, source, destination if at_root else None, root)
            case "scatter", None, int():
                dispatch.scatter(group, source if at_root else None, destination, root)
            case "all_gather", None, None:
                dispatch.all_gather(group, source, destination)
            case "all_to_all", None, None:
                counts = self._counts(self.sends, operand), self._counts(self.receives, result)
                dispatch.all_to_all(group, source, destination, *counts)
            case _:
                raise AssertionError(f"no such collective: {self}")
        return result

    def _counts(self, rows: tuple[int, ...] | None, array: _Array) -> list[int] | None:
        """Elements for each rank, from rows for each rank."""
        if rows is None:
            return None
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        return [length * width for length in rows]

    # ---- its derivative --------------------------------------------------------------------------

    @property
    def is_linear(self) -> bool:
        """Whether the result is linear in the operands of all ranks."""
        if self.verb in ("send", "recv"):
            return False
        return self.op is None or self.op.name in ("sum", "avg", "premul_sum")

    @property
    def factor(self) -> float:
        """What each operand is multiplied by in a linear reduction."""
        if self.op is None or self.op.name == "sum":
            return 1.0
        return 1.0 / self.group.size if self.op.name == "avg" else self.op.factor

    def adjoint(self, operand: Sequence[int]) -> Collective:
        """The collective that takes cotangents back to an operand of this shape.

        `factor` is not in it, where the adjoint reduces nothing.
        """
        if self.verb == "all_reduce":
            return self
        if self.verb == "all_to_all":
            return replace(self, rows=operand[0], sends=self.receives, receives=self.sends)
        verb, op = {
            "all_gather": ("reduce_scatter", ReduceOp.SUM),
            "reduce_scatter": ("all_gather", None),
            "broadcast": ("reduce", ReduceOp.SUM),
            "reduce": ("broadcast", None),
            "gather": ("scatter", None),
            "scatter": ("gather", None),
        }[self.verb]
        return replace(self, verb=verb, op=op, rows=None if self.rows is None else operand[0])

    def refusal(self) -> Unsupported:
        """The error of a derivative that does not exist."""
        if self.verb in ("send", "recv"):
            return Unsupported(
                f"{self.verb} cannot be differentiated; use all_to_all, which can, or pass "
                "jax.lax.stop_gradient(x)"
            )
        assert self.op is not None
        return Unsupported(
            f"{self.verb} with {self.op.text} cannot be differentiated; all_reduce can, with "
            "sum, avg, premul_sum, product, min and max"
        )
