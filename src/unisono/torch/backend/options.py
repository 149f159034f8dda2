"""What torch passes to a group's methods, read: options, operators, lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from unisono.core import environment
from unisono.core.arguments import check_length
from unisono.core.buffers import Buffer, view
from unisono.core.engine import ReduceOp
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.torch.backend.direct import OPERATORS
from unisono.torch.distributed import arguments

__all__ = ["Mode", "mode_of", "only", "operator_of", "root_of", "views"]


class Mode(NamedTuple):
    """How torch wants a call: whether it blocks, and for how long (None: as the group does)."""

    blocking: bool
    timeout: float | None


_ASYNCHRONOUS = Mode(False, None)
_BLOCKING = Mode(True, None)
_UNSET = timedelta(0)  # timeouts up to it are not set


def mode_of(opts: Any) -> Mode:
    """How the options want a call; without options it does not block."""
    if opts is None:
        return _ASYNCHRONOUS
    timeout = opts.timeout
    if timeout > _UNSET:
        return Mode(not opts.asyncOp, environment.timeout(timeout.total_seconds()))
    return _ASYNCHRONOUS if opts.asyncOp else _BLOCKING


def operator_of(opts: Any, data: Buffer | None = None) -> ReduceOp:
    """The operator; with `data`, only if its numbers can be combined with it."""
    if opts is None:
        return ReduceOp.SUM
    given = opts.reduceOp
    op = OPERATORS.get(given.op.value) or ReduceOp.premul_sum(arguments.factor_of(given))
    if data is not None:
        arguments.check_operator(op, data)
    return op


def root_of(opts: Any) -> int:
    """The root, a rank of the group."""
    root: int = 0 if opts is None else opts.rootRank
    return root


def only(tensors: Sequence[Any]) -> Any:
    """The one tensor of a list: torch's methods could take one for each of several devices."""
    if not isinstance(tensors, (list, tuple)):
        raise ArgumentTypeError(
            f"expected a tensor, or a list with one entry, got {type(tensors).__name__}"
        )
    if len(tensors) != 1:
        raise ArgumentError(f"expected one tensor for this rank, got {len(tensors)}")
    return tensors[0]


def views(tensors: Sequence[Any], name: str) -> list[Buffer]:
    """The tensors of a list as memory."""
    check_length(tensors, f"parameter {name}")
    return [view(tensor) for tensor in tensors]
