"""Memory that needs no copy: arrays which the other ranks of the job read where they are."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from unisono.core import groups
from unisono.core.arguments import as_ints
from unisono.core.engine import Engine
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, OutOfSharedMemory

__all__ = ["empty", "shared_arrays"]


def empty(
    shape: int | Sequence[int],
    dtype: Any = None,
    *,
    like: Any = None,
    group: groups.Group | str | None = None,
) -> Any:
    """Make an array whose memory the other ranks of the job can read, so that calls copy less.

    It is a NumPy array, or a torch tensor if `like` is one or is the module `torch`. Without a
    `dtype` it has that of `like`, or the framework's default. Its values are not set.

    Engine "shm" has such memory: a job's ranks on one host read it directly. On every other engine
    there is nothing to gain, and the array has ordinary memory. It is used like any other array,
    and its memory is given back when the last view of it dies. In a forked child it can be read,
    and what the child writes there is the child's own.

    >>> import numpy as np, unisono, unisono.torch.distributed as dist
    >>> dist.init_process_group()
    >>> gradients = unisono.empty((2, 3), np.float32)
    >>> gradients[:] = 1
    >>> dist.all_reduce(gradients)
    >>> gradients.shape, float(gradients.sum())
    ((2, 3), 6.0)
    >>> dist.destroy_process_group()
    """
    engine = _engine_of(group)
    size = _checked_shape(shape)
    torch = _torch_of(like)
    try:
        with engine.shared_arrays(0):
            if torch is None:
                return np.empty(size, _numpy_dtype(dtype, like))
            wanted = _torch_dtype(torch, dtype, like)
            memory = np.empty(math.prod(size) * wanted.itemsize, np.uint8)
        if memory.size == 0:
            return torch.empty(size, dtype=wanted)
        return torch.from_numpy(memory).view(wanted).reshape(size)
    except MemoryError as error:
        why = "; ".join(getattr(error, "__notes__", ())) or str(error)
        raise OutOfSharedMemory(f"empty: no memory for shape {size}: {why}") from None
    except ValueError as error:  # more than an address can hold
        raise ArgumentError(f"shape is {size}: {error}") from error


@contextlib.contextmanager
def shared_arrays(
    minimum: int = 1 << 16, *, group: groups.Group | str | None = None
) -> Iterator[None]:
    """Let NumPy put new arrays of at least `minimum` bytes into memory as that of `empty`.

    That holds for all that NumPy makes in this context: `np.zeros`, results of operations, copies.
    The arrays outlive it, and other threads are not affected (NEP 49). Where `empty` gives ordinary
    memory, nothing changes.

    >>> import numpy as np, unisono, unisono.torch.distributed as dist
    >>> dist.init_process_group()
    >>> with unisono.shared_arrays():
    ...     gradients = np.ones(100_000)
    >>> dist.all_reduce(gradients)
    >>> dist.destroy_process_group()
    """
    engine = _engine_of(group)
    try:
        least = operator.index(minimum)
    except TypeError:
        raise ArgumentTypeError(
            f"minimum is {minimum!r}; give a number of bytes, 0 or more"
        ) from None
    if least < 0:
        raise ArgumentError(f"minimum is {least}; give a number of bytes, 0 or more")
    with engine.shared_arrays(min(least, sys.maxsize)):
        yield


def _engine_of(group: groups.Group | str | None) -> Engine:
    found = groups.resolve(group)
    if found.engine is None:
        raise NotReady(f"this rank is not in group {found.name!r}; take a group that it is in")
    return found.engine


def _checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    size = tuple(as_ints([shape] if hasattr(shape, "__index__") else shape, "shape"))
    if any(length < 0 for length in size):
        raise ArgumentError(f"shape is {size}; lengths are 0 or more")
    return size


def _torch_of(like: Any) -> ModuleType | None:
    """The module torch if the result is one of its tensors; None if it is NumPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and (like is torch or isinstance(like, torch.Tensor)):
        return torch
    if like is None or like is np or isinstance(like, np.ndarray):
        return None
    raise ArgumentTypeError(
        f"like is {like if isinstance(like, ModuleType) else type(like)}; "
        "give a NumPy array, a torch tensor, or one of these two modules"
    )


def _numpy_dtype(dtype: Any, like: Any) -> np.dtype[Any]:
    if dtype is None:
        dtype = like.dtype if isinstance(like, np.ndarray) else np.float64
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"dtype is {dtype!r}: {error}") from error
    if found.hasobject:
        raise ArgumentTypeError(f"dtype is {dtype!r}; Python objects have no memory to share")
    return found


def _torch_dtype(torch: ModuleType, dtype: Any, like: Any) -> Any:
    if dtype is None:
        return torch.get_default_dtype() if like is torch else like.dtype
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, _name_of(dtype), None)
    if not isinstance(found, torch.dtype):
        raise ArgumentTypeError(f"dtype is {dtype!r}; give a dtype of torch")
    return found


def _name_of(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else _numpy_dtype(dtype, None).name
