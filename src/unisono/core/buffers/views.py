"""`view`: which function shows which kind of tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unisono.core.buffers.buffer import Buffer
from unisono.core.buffers.cupy import view_cupy
from unisono.core.buffers.kinds import kind_of
from unisono.core.buffers.mindspore import view_mindspore
from unisono.core.buffers.numpy import (
    refuse_masked,
    view_array_like,
    view_dlpack,
    view_memory,
    view_numpy,
)
from unisono.core.buffers.torch import view_torch
from unisono.core.fast import registration

__all__ = ["view"]

_Viewer = Callable[[Any], Buffer]

_BY_KIND: dict[str, _Viewer] = {
    "numpy": view_numpy,
    "torch": view_torch,
    "mindspore": view_mindspore,
    "jax": view_array_like,
    "cupy": view_cupy,
    "dlpack": view_dlpack,
    "memory": view_memory,
}
_BY_CLASS: dict[type, _Viewer] = {np.ndarray: view_numpy}  # grows with what is seen


def view(tensor: Any) -> Buffer:
    """Show `tensor` as flat memory, without a copy where it is contiguous.

    >>> view(np.arange(6.0).reshape(2, 3))
    Buffer(float64 x 6)
    """
    viewer = _BY_CLASS.get(type(tensor))
    if viewer is None:
        viewer = _BY_CLASS[type(tensor)] = _find_viewer(tensor)
    return viewer(tensor)


def _find_viewer(tensor: Any) -> _Viewer:
    kind = kind_of(tensor)
    if kind == "torch":
        registration.learn_torch()
    if kind == "numpy" and isinstance(tensor, np.ma.MaskedArray):
        return refuse_masked
    return _BY_KIND[kind]
