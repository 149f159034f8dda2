"""The collectives: each takes this rank's array and returns a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from unisono.core import dtypes
from unisono.core.arguments import as_ints, equal_rows
from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported
from unisono.jax import gradients as _gradients  # noqa: F401 - the derivatives of what is bound
from unisono.jax.call_site import user_line
from unisono.jax.collective import Collective
from unisono.jax.groups import members, rank_in_group
from unisono.jax.primitive import bind

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "as_array",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

_Group = Group | str | None
#: Operators by name: all that need nothing else; both dialects' word for the product.
_OPERATORS = {op.name: op for op in ReduceOp.ALL if op.name != "premul_sum"}
_OPERATORS["prod"] = ReduceOp.PRODUCT


def all_reduce(x: Any, op: ReduceOp | str = "sum", group: _Group = None) -> Any:
    """Combine every rank's `x`; every rank gets the result."""
    ranks = members(group, "all_reduce")
    array = as_array(x)
    return bind(Collective("all_reduce", ranks, user_line(), op=_operator(op, array)), array)


def reduce(x: Any, dst: int, op: ReduceOp | str = "sum", group: _Group = None) -> Any:
    """Combine every rank's `x` on rank `dst`; other ranks get zeros."""
    ranks = members(group, "reduce")
    root = rank_in_group(ranks, dst, "dst")
    array = as_array(x)
    return bind(Collective("reduce", ranks, user_line(), op=_operator(op, array), root=root), array)


def broadcast(x: Any, src: int, group: _Group = None) -> Any:
    """Copy `x` of rank `src` to every rank; `x` has the same shape everywhere."""
    ranks = members(group, "broadcast")
    root = rank_in_group(ranks, src, "src")
    return bind(Collective("broadcast", ranks, user_line(), root=root), as_array(x))


def all_gather(x: Any, group: _Group = None) -> Any:
    """Join every rank's `x` along the first axis; every rank gets the result."""
    ranks = members(group, "all_gather")
    array = _with_rows(x, "all_gather")
    rows = array.shape[0] * ranks.size
    return bind(Collective("all_gather", ranks, user_line(), rows=rows), array)


def reduce_scatter(x: Any, op: ReduceOp | str = "sum", group: _Group = None) -> Any:
    """Combine every rank's `x` and give each rank an equal part of the first axis."""
    ranks = members(group, "reduce_scatter")
    array = _with_rows(x, "reduce_scatter")
    rows = equal_rows(array.shape, ranks.size, "x")
    known = _operator(op, array)
    return bind(Collective("reduce_scatter", ranks, user_line(), op=known, rows=rows), array)


def gather(x: Any, dst: int, group: _Group = None) -> Any:
    """Join every rank's `x` along the first axis on rank `dst`; other ranks get no rows."""
    ranks = members(group, "gather")
    root = rank_in_group(ranks, dst, "dst")
    array = _with_rows(x, "gather")
    rows = array.shape[0] * ranks.size if ranks.rank == root else 0
    return bind(Collective("gather", ranks, user_line(), root=root, rows=rows), array)


def scatter(x: Any, src: int, group: _Group = None) -> Any:
    """Give each rank an equal part of the first axis of `x` of rank `src`.

    `x` has the same shape everywhere; only that of `src` is read.
    """
    ranks = members(group, "scatter")
    root = rank_in_group(ranks, src, "src")
    array = _with_rows(x, "scatter")
    rows = equal_rows(array.shape, ranks.size, "x")
    return bind(Collective("scatter", ranks, user_line(), root=root, rows=rows), array)


def all_to_all(
    x: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: _Group = None,
) -> Any:
    """Send part j of the first axis to rank j; the result joins what every rank sent here.

    The sizes are rows for each rank, equal parts if they are not given: of the result, and of `x`.
    """
    ranks = members(group, "all_to_all")
    array = _with_rows(x, "all_to_all")
    site = user_line()
    if output_split_sizes is None and input_split_sizes is None:
        equal_rows(array.shape, ranks.size, "x")
        return bind(Collective("all_to_all", ranks, site, rows=array.shape[0]), array)
    sends = _split(input_split_sizes, array.shape[0], ranks, "input_split_sizes")
    receives = _split(output_split_sizes, array.shape[0], ranks, "output_split_sizes")
    if sum(sends) != array.shape[0]:
        raise ArgumentError(
            f"input_split_sizes {list(sends)} add up to {sum(sends)}, but x has "
            f"{array.shape[0]} rows"
        )
    whole = Collective(
        "all_to_all", ranks, site, rows=sum(receives), sends=sends, receives=receives
    )
    return bind(whole, array)


def barrier(group: _Group = None) -> None:
    """Wait until every rank of the group is here; in a program, before its next collective."""
    bind(Collective("barrier", members(group, "barrier"), user_line()))


# ---- arguments -----------------------------------------------------------------------------------


def as_array(x: Any) -> Any:
    """An array, or a number, as JAX has it; its dtype must be one that can be moved."""
    try:
        array = jnp.asarray(x)
    except TypeError as error:
        raise ArgumentTypeError(f"x must be an array, got {type(x).__name__}: {error}") from None
    if dtypes.of(array.dtype) is None:
        raise ArgumentTypeError(f"x has dtype {array.dtype}, which cannot be moved")
    return array


def _with_rows(x: Any, verb: str) -> Any:
    array = as_array(x)
    if array.ndim == 0:
        raise ArgumentError(f"{verb}: x has no axes; give it a first one, such as x[None]")
    return array


def _operator(op: ReduceOp | str, array: Any) -> ReduceOp:
    known = _OPERATORS.get(op) if isinstance(op, str) else op
    if not isinstance(known, ReduceOp):
        names = ", ".join(sorted(_OPERATORS))
        raise ArgumentTypeError(f"op must be a ReduceOp or one of {names}, got {op!r}")
    dtype = dtypes.of(array.dtype)
    assert dtype is not None
    if known.name not in dtype.operators:
        able = ", ".join(sorted(dtype.operators)) or "none: it can only be moved"
        raise Unsupported(f"{dtype.name} cannot be reduced with {known.name}; it has {able}")
    return known


def _split(sizes: Sequence[int] | None, rows: int, group: Group, name: str) -> tuple[int, ...]:
    if sizes is None:
        return (equal_rows((rows,), group.size, f"{name} is not given, and x"),) * group.size
    found = tuple(as_ints(sizes, name))
    if len(found) != group.size or min(found) < 0:
        raise ArgumentError(
            f"{name} is {list(found)}; it needs {group.size} lengths, one for each rank"
        )
    return found
