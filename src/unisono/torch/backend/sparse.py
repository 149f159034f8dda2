"""all_reduce of sparse tensors, which are the gradients of embeddings."""

from __future__ import annotations

from typing import Any

import torch

from unisono.core import dispatch, objects
from unisono.core.buffers import view
from unisono.core.engine import AllOf, ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, Unsupported

__all__ = ["all_reduce"]


def all_reduce(group: Group, tensor: Any, op: ReduceOp, timeout: float | None) -> Work:
    """Start to sum a sparse COO tensor over the group, in place; it gets every rank's entries.

    Ranks hold different entries, so they exchange how many before this returns. The entries are
    exchanged by all_gather, and added up when that has ended.
    """
    if tensor.layout is not torch.sparse_coo:
        raise Unsupported(f"a {tensor.layout} tensor cannot be reduced; use to_sparse_coo()")
    if op != ReduceOp.SUM:
        raise Unsupported(f"sparse tensors can only be summed, not reduced with {op!r}")
    own = tensor.detach().coalesce()
    shape = (tuple(own.shape), own.sparse_dim(), own.dtype)
    every = objects.all_gather(group, (shape, own._nnz()), timeout=timeout)
    for rank, (other, _) in enumerate(every):
        if other != shape:
            raise ArgumentError(f"rank {group.rank} has shape {shape}, but rank {rank} has {other}")
    counts = [count for _, count in every]
    indices = own.indices().t().contiguous()  # one row for each entry, so that rows can be joined
    values = own.values().contiguous()
    all_indices, indices_work = _gather(group, indices, counts, timeout)
    all_values, values_work = _gather(group, values, counts, timeout)

    def add_up() -> None:
        entries = all_indices.t(), all_values
        total = torch.sparse_coo_tensor(*entries, own.shape, check_invariants=False)
        with torch.no_grad():  # detach() would give a sparse tensor entries of its own
            tensor.copy_(total.coalesce())

    work = AllOf([indices_work, values_work])
    work.then(add_up)
    return work


def _gather(group: Group, rows: Any, counts: list[int], timeout: float | None) -> tuple[Any, Work]:
    """Every rank's rows in one tensor, once the work has ended."""
    whole = rows.new_empty((sum(counts), *rows.shape[1:]))
    width = rows.shape[1:].numel()
    parts = [count * width for count in counts]
    work = dispatch.all_gather(
        group, view(rows), view(whole), parts, blocking=False, timeout=timeout
    )
    return whole, work
