"""Messages from one rank to another."""

from __future__ import annotations

from typing import Any

import jax

from unisono.core import dtypes
from unisono.core.arguments import as_int
from unisono.core.groups import Group
from unisono.errors import ArgumentTypeError
from unisono.jax.call_site import user_line
from unisono.jax.collective import Collective
from unisono.jax.collectives import as_array
from unisono.jax.groups import members, rank_in_group
from unisono.jax.primitive import bind

__all__ = ["recv", "send"]


def send(x: Any, dst: int, group: Group | str | None = None, tag: int = 0) -> None:
    """Send `x` to rank `dst`, which receives it with the same tag."""
    ranks = members(group, "send")
    peer = rank_in_group(ranks, dst, "dst")
    bind(Collective("send", ranks, user_line(), peer=peer, tag=as_int(tag, "tag")), as_array(x))


def recv(like: Any, src: int, group: Group | str | None = None, tag: int = 0) -> Any:
    """Receive an array from rank `src`, of the shape and dtype of `like`.

    `like` is an array or a `jax.ShapeDtypeStruct`; nothing else of it matters.
    """
    ranks = members(group, "recv")
    peer = rank_in_group(ranks, src, "src")
    shape, dtype = getattr(like, "shape", None), getattr(like, "dtype", None)
    if shape is None or dtype is None:
        raise ArgumentTypeError(f"like must have a shape and a dtype, got {type(like).__name__}")
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if dtypes.of(dtype) is None:
        raise ArgumentTypeError(f"like has dtype {dtype}, which cannot be moved")
    message = Collective(
        "recv",
        ranks,
        user_line(),
        peer=peer,
        tag=as_int(tag, "tag"),
        shape=tuple(shape),
        dtype=dtype,
    )
    return bind(message)
