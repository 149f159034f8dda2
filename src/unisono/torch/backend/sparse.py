"""all_reduce of sparse tensors, which embeddings have as gradients."""

from __future__ import annotations

from typing import Any

import torch
from unisono.core import dispatch, objects
from unisono.core.buffers import view
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, Unsupported

__all__ = ["all_reduce"]


def all_reduce(tensor: Any, op: ReduceOp, group: Group, async_op: bool) -> Work | None:
    """Sum a sparse COO tensor over the group, in place; the sum holds every rank's entries.

    Ranks hold different entries, so they first tell each other how many: that much is exchanged
    before this returns. Entries travel as all_gather, and are added up when that has ended.
    """
    if tensor.layout is not torch.sparse_coo:
        raise Unsupported(f"a {tensor.layout} tensor cannot be reduced; use to_sparse_coo()")
    if op != ReduceOp.SUM:
        raise Unsupported(f"sparse tensors can only be summed, not reduced with {op!r}")
    own = tensor.detach().coalesce()
    shape = (tuple(own.shape), own.sparse_dim(), own.dtype)
    told = objects.all_gather(group, (shape, own._nnz()))
    for rank, (other, _) in enumerate(told):
        if other != shape:
            raise ArgumentError(f"rank {group.rank} has shape {shape}, but rank {rank} has {other}")
    counts = [count for _, count in told]
    indices = own.indices().t().contiguous()  # one row for each entry, so that rows can be joined
    values = own.values().contiguous()
    gathered = [_gather(rows, counts, group) for rows in (indices, values)]

    def add_up() -> None:
        (all_indices, _), (all_values, _) = gathered
        entries = all_indices.t(), all_values
        total = torch.sparse_coo_tensor(*entries, own.shape, check_invariants=False)
        with torch.no_grad():  # detach() would give a sparse tensor entries of its own
            tensor.copy_(total.coalesce())

    # Calls of one group end in their order, so that the last one's end is that of both.
    work = gathered[-1][1]
    work.then(add_up)
    work.value = [tensor]
    if async_op:
        return work
    work.wait()
    return None


def _gather(rows: Any, counts: list[int], group: Group) -> tuple[Any, Work]:
    """Every rank's rows in one tensor, once the work has ended."""
    whole = rows.new_empty((sum(counts), *rows.shape[1:]))
    width = rows.shape[1:].numel()
    parts = [count * width for count in counts]
    return whole, dispatch.all_gather(group, view(rows), view(whole), parts, blocking=False)
