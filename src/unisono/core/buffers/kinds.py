"""Which framework made a tensor."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from unisono.core import dtypes
from unisono.errors import ArgumentTypeError

__all__ = ["describe", "is_tensor", "kind_of", "unknown_dtype"]


def kind_of(tensor: Any) -> str:
    """Name the framework, or the protocol; only frameworks that are imported are asked.

    >>> kind_of(np.zeros(3)), kind_of(bytearray(3))
    ('numpy', 'memory')
    """
    if isinstance(tensor, np.ndarray):
        return "numpy"
    for name in ("torch", "mindspore"):
        framework = sys.modules.get(name)
        if framework is not None and isinstance(tensor, getattr(framework, "Tensor", ())):
            return name
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return "jax"
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(tensor, cupy.ndarray):
        return "cupy"
    if hasattr(tensor, "__dlpack__"):
        return "dlpack"
    try:
        memoryview(tensor)
    except TypeError:
        raise ArgumentTypeError(
            f"expected a tensor (NumPy, torch, MindSpore, JAX, DLPack or a buffer), "
            f"got {describe(tensor)}"
        ) from None
    return "memory"


def is_tensor(thing: Any) -> bool:
    """Tell whether `view` can show it: a tensor of any kind, or a buffer."""
    try:
        kind_of(thing)
    except ArgumentTypeError:
        return False
    return True


def describe(tensor: Any) -> str:
    """Name the class of something, for an error."""
    kind = type(tensor)
    return f"{getattr(kind, '__module__', 'nowhere')}.{kind.__qualname__}"


def unknown_dtype(dtype: object) -> ArgumentTypeError:
    """The error for a tensor of this dtype, which no engine moves."""
    names = ", ".join(known.name for known in dtypes.DTYPES)
    return ArgumentTypeError(f"dtype {dtype} cannot be moved; use one of {names}")
