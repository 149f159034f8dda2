"""What the tests of the JAX face share: collectives by name, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import unisono.jax as collectives

__all__ = ["COLLECTIVES", "ROOT", "double_precision", "expected", "operand"]

ROOT = 1

#: Differentiable collectives of an array whose first length is a multiple of the ranks.
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_reduce": collectives.all_reduce,
    "all_reduce avg": lambda x: collectives.all_reduce(x, "avg"),
    "all_reduce premul": lambda x: collectives.all_reduce(x, collectives.ReduceOp.premul_sum(0.5)),
    "all_reduce max": lambda x: collectives.all_reduce(x, "max"),
    "all_reduce min": lambda x: collectives.all_reduce(x, collectives.ReduceOp.MIN),
    "all_reduce prod": lambda x: collectives.all_reduce(x, "prod"),
    "reduce": lambda x: collectives.reduce(x, ROOT),
    "reduce avg": lambda x: collectives.reduce(x, ROOT, "avg"),
    "broadcast": lambda x: collectives.broadcast(x, ROOT),
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "reduce_scatter avg": lambda x: collectives.reduce_scatter(x, "avg"),
    "gather": lambda x: collectives.gather(x, ROOT),
    "scatter": lambda x: collectives.scatter(x, ROOT),
    "all_to_all": collectives.all_to_all,
    "all_to_all splits": lambda x: collectives.all_to_all(x, *_splits(len(x))),
}


def _splits(rows: int) -> tuple[list[int], list[int]]:
    """All rows go to the next rank: nothing to the others."""
    rank, size = collectives.get_rank(), collectives.get_world_size()
    sends = [rows if other == (rank + 1) % size else 0 for other in range(size)]
    receives = [rows if other == (rank - 1) % size else 0 for other in range(size)]
    return receives, sends


def operand(rank: int, size: int, dtype: Any = np.float32) -> np.ndarray:
    """The array of a rank: no two numbers are the same on any rank."""
    return np.random.default_rng(rank).normal(size=(2 * size, 3)).astype(dtype)


def expected(name: str, rank: int, size: int, every: list[np.ndarray]) -> np.ndarray:
    """The result of a collective on one rank, from the operands of all."""
    share = len(every[0]) // size
    mine = slice(rank * share, (rank + 1) * share)
    joined = np.concatenate(every)
    results: dict[str, Callable[[], np.ndarray]] = {
        "all_reduce": lambda: np.sum(every, axis=0),
        "all_reduce avg": lambda: np.mean(every, axis=0),
        "all_reduce premul": lambda: np.sum(every, axis=0) / 2,
        "all_reduce max": lambda: np.max(every, axis=0),
        "all_reduce min": lambda: np.min(every, axis=0),
        "all_reduce prod": lambda: np.prod(every, axis=0),
        "reduce": lambda: np.sum(every, axis=0) * (rank == ROOT),
        "reduce avg": lambda: np.mean(every, axis=0) * (rank == ROOT),
        "broadcast": lambda: every[ROOT],
        "all_gather": lambda: joined,
        "reduce_scatter": lambda: np.sum(every, axis=0)[mine],
        "reduce_scatter avg": lambda: np.mean(every, axis=0)[mine],
        "gather": lambda: joined if rank == ROOT else joined[:0],
        "scatter": lambda: every[ROOT][mine],
        "all_to_all": lambda: np.concatenate([one[mine] for one in every]),
        "all_to_all splits": lambda: every[rank - 1],
    }
    return results[name]()


@contextmanager
def double_precision() -> Iterator[None]:
    """float64 in JAX, which has it only when asked."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
