"""New tensors for results, of the kind that the caller uses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core.arguments import as_ints
from unisono.core.buffers.kinds import describe, kind_of
from unisono.core.buffers.mindspore import empty_mindspore
from unisono.core.buffers.views import view
from unisono.core.engine import Work
from unisono.errors import ArgumentError, ArgumentTypeError

__all__ = ["Output", "output_like"]


class Output:
    """A new tensor for a result: `buffer` is what the engine writes, `finish` gives the tensor.

    A JAX array cannot be written, so its memory is a NumPy array until the call has ended.
    """

    __slots__ = ("_kind", "_tensor", "buffer")

    def __init__(self, tensor: Any, kind: str) -> None:
        self._tensor = tensor
        self._kind = kind
        self.buffer = view(tensor)

    def finish(self, work: Work | None = None) -> Any:
        """The tensor; where it cannot be written later, after waiting for `work`."""
        if self._kind != "jax":
            return self._tensor
        if work is not None:
            work.wait()
        return sys.modules["jax"].numpy.asarray(self._tensor)


def output_like(tensor: Any, shape: Sequence[int] | None = None) -> Output:
    """Make a new tensor for a result, of the same kind and dtype, with `shape` if it is given.

    >>> output_like(np.zeros((2, 3), np.float32), (4, 3)).buffer
    Buffer(float32 x 12)
    """
    kind = kind_of(tensor)
    if kind not in ("numpy", "torch", "mindspore", "jax", "cupy"):
        raise ArgumentTypeError(
            f"cannot make a tensor like {describe(tensor)}; "
            "pass a NumPy, torch, MindSpore, JAX or CuPy tensor"
        )
    asked = None if shape is None else as_ints(shape, "a shape")
    try:
        size = tuple(tensor.shape if asked is None else asked)
        made = _empty(kind, size, tensor)
    except ArgumentTypeError:
        raise
    except (
        ValueError,
        TypeError,
        RuntimeError,
        OverflowError,
    ) as error:  # each framework has its own texts
        if type(error).__name__ == "OutOfMemoryError":
            raise  # a GPU that is full is not the caller's mistake
        what = f"like {describe(tensor)}" if asked is None else f"of shape {tuple(asked)}"
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"cannot make a tensor {what}: {reason}") from None
    return Output(made, kind)


def _empty(kind: str, size: tuple[int, ...], like: Any) -> Any:
    if kind == "torch":
        return sys.modules["torch"].empty(size, dtype=like.dtype, device=like.device)
    if kind == "mindspore":
        return empty_mindspore(size, like)
    if kind == "cupy":
        with like.device:  # it need not be the current one
            return sys.modules["cupy"].empty(size, like.dtype)
    return np.empty(size, like.dtype)
