"""Collectives on JAX arrays, eager and inside `jit`, `grad`, `vmap` and loops, in program order.

Functions take an array and return a new one. Gradients are those of the sum of all ranks' losses.
A group is an object or a name of either dialect, or None for the world; roots and peers are ranks
of the world, as in both dialects.
"""

from __future__ import annotations

from unisono.core.registry import install_command as _install_command

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError(
        f"unisono.jax needs JAX, which cannot be imported here: {_install_command('jax')}"
    ) from _error
# Older ones leave the backward collective out on ranks that do not use a result: others would wait.
if _jax.__version_info__ < (0, 7, 2):
    raise ImportError(f"unisono.jax needs JAX 0.7.2 or newer; this is {_jax.__version__}")

from unisono.core.engine import ReduceOp
from unisono.jax.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from unisono.jax.failures import original_errors
from unisono.jax.groups import close, get_rank, get_world_size, init, new_group
from unisono.jax.messages import recv, send

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "close",
    "gather",
    "get_rank",
    "get_world_size",
    "init",
    "new_group",
    "original_errors",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]
