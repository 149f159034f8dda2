"""What every file of the MindSpore face shares: groups by name, operators, roots and handles."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from unisono.core import buffers, groups
from unisono.core.engine import DONE, Work
from unisono.core.engine import ReduceOp as _Operator
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported

__all__ = [
    "OPERATORS",
    "CommHandle",
    "NoTags",
    "ReduceOp",
    "UnknownName",
    "check_bool",
    "check_integer",
    "empty_of",
    "handle_of",
    "new_handle",
    "operator",
    "resolve_group",
    "resolve_root",
    "root_in_group",
    "rows",
    "shape_of",
    "zeros_like",
]


class ReduceOp:
    """Name the operators, which are plain strings in this dialect."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    AVG = "avg"


#: What the operators of this dialect are in the core.
OPERATORS = {
    ReduceOp.SUM: _Operator.SUM,
    ReduceOp.PROD: _Operator.PRODUCT,
    ReduceOp.MIN: _Operator.MIN,
    ReduceOp.MAX: _Operator.MAX,
    ReduceOp.AVG: _Operator.AVG,
}


class UnknownName(ArgumentError, KeyError):
    """A group, or a rank of a group, that is not there.

    MindSpore raises KeyError, RuntimeError or ValueError for this, by function; this is all three.
    """

    def __str__(self) -> str:
        return RuntimeError.__str__(self)  # KeyError would show the text in quotes


class NoTags(Unsupported, NotImplementedError):
    """A batch with tags; MindSpore raises NotImplementedError for it."""


class CommHandle:
    """What an asynchronous call returns; one without work is complete from the beginning."""

    def __init__(self, handle: Work | None = None, exec_sync: bool = False) -> None:
        if handle is not None and not isinstance(handle, Work):
            raise ArgumentTypeError(f"handle must be a work of unisono, got {handle!r}")
        self.handle = handle
        self.exec_sync = exec_sync

    def wait(self) -> None:
        """Return when the result is in its place; raise what went wrong."""
        if self.handle is not None:
            self.handle.wait()

    def is_completed(self) -> bool:
        """Tell whether the call has ended, without waiting."""
        return self.handle is None or self.handle.is_completed()

    def exception(self) -> Exception | None:
        """Return the error of a call that has ended badly, None otherwise."""
        return None if self.handle is None else self.handle.exception()

    def result(self) -> Any:
        """Wait, and return what the call gave beside this handle."""
        return None if self.handle is None else self.handle.result()

    def __await__(self) -> Generator[Any, None, Any]:
        return (DONE if self.handle is None else self.handle).__await__()

    def __repr__(self) -> str:
        state = "completed" if self.is_completed() else "under way"
        return f"CommHandle({state}, exec_sync={self.exec_sync})"


def handle_of(work: Work, result: Any, async_op: bool) -> CommHandle | None:
    """The handle of a call that gave `result`, or None if the call was not asynchronous."""
    return new_handle(work, result) if async_op else None


def new_handle(work: Work, result: Any) -> CommHandle:
    """The handle of an asynchronous call that gave `result`."""
    return CommHandle(work.with_value(result))


def resolve_group(group: str | Group | None) -> Group:
    """The group behind a name, an object of the PyTorch face, or None for the world."""
    if isinstance(group, str):
        if group in groups.WORLD_NAMES:
            return groups.world()
        try:
            return groups.find(group)
        except ArgumentError as error:
            raise UnknownName(str(error)) from None
    if group is None:
        return groups.world()
    if isinstance(group, Group):
        return group
    raise ArgumentTypeError(f"group must be a name, got {group!r}")


def operator(op: str, allowed: Sequence[str] = tuple(OPERATORS)) -> _Operator:
    """The core's operator for one of the `allowed` strings."""
    if not isinstance(op, str) or op not in allowed:
        raise ArgumentTypeError(f"op must be one of {', '.join(allowed)}, got {op!r}")
    return OPERATORS[op]


def root_in_group(group: Group, world_rank: int, name: str) -> int:
    """The rank within the group of a world rank that the caller passed as `name`."""
    check_integer(world_rank, name)
    try:
        return group.ranks.index(world_rank)
    except ValueError:
        raise UnknownName(
            f"{name} {world_rank} is not in group {group.name!r}; "
            f"its world ranks are {list(group.ranks)}"
        ) from None


def resolve_root(group: str | Group | None, world_rank: int, name: str) -> tuple[Group, int]:
    """A group, and the rank within it of a world rank that the caller passed as `name`."""
    check_integer(world_rank, name)  # even where there is no world yet
    members = resolve_group(group)
    return members, root_in_group(members, world_rank, name)


def check_integer(value: object, name: str) -> None:
    """Refuse what is not an int; a bool passes, as it does upstream."""
    if not isinstance(value, int):
        raise ArgumentTypeError(f"{name} must be an int, got {value!r}")


def check_bool(value: object, name: str) -> None:
    """Refuse what is not a bool."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be a bool, got {value!r}")


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor; anything else is refused."""
    try:
        shape = tuple(tensor.shape)
    except (AttributeError, RuntimeError, TypeError):  # nested tensors have none
        shape = None
    if shape is None or not buffers.is_tensor(tensor):
        raise ArgumentTypeError(f"expected a tensor with a shape, got {type(tensor).__name__}")
    return shape


def rows(shape: Sequence[int], size: int) -> int:
    """How many rows each of `size` ranks gets of a tensor that is cut along its first dimension."""
    if not shape or shape[0] % size:
        raise ArgumentError(
            f"the first dimension of {tuple(shape)} must be a multiple of the {size} ranks"
        )
    return shape[0] // size


def zeros_like(tensor: Any, shape: Sequence[int] | None = None) -> Any:
    """A new tensor of zeros, of the same kind and dtype, with `shape` if it is given."""
    out = buffers.output_like(tensor, shape)
    out.buffer.array[:] = np.zeros((), out.buffer.dtype.numpy)
    return out.finish()


def empty_of(dtype: Any) -> Any:
    """An empty tensor of the library that `dtype` belongs to, as a pattern for others."""
    library = getattr(type(dtype), "__module__", "").partition(".")[0]
    if library == "torch" and isinstance(dtype, sys.modules["torch"].dtype):
        return sys.modules["torch"].empty(0, dtype=dtype)
    if library == "mindspore" and hasattr(sys.modules["mindspore"], str(dtype).lower()):
        return sys.modules["mindspore"].mint.empty(0, dtype=dtype)
    scalar = isinstance(dtype, type) and issubclass(dtype, np.generic)
    named = isinstance(getattr(dtype, "dtype", dtype), np.dtype)  # jax.numpy's have `dtype`
    if scalar or (named and not buffers.is_tensor(dtype)):
        with contextlib.suppress(TypeError):  # np.floating and its like are kinds, not dtypes
            return np.empty(0, np.dtype(dtype))
    raise ArgumentTypeError(f"expected a dtype, got {dtype!r}")
