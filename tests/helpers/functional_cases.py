"""A use of each function of `nn.functional`, with operands, and directions in which these move.

`f` is a module, ours or torch's, `x` has one tensor for each rank, and `ranks` are those of the
world. A use returns a list of tensors.
"""

from __future__ import annotations

import functools

import torch

import unisono.torch.distributed as dist

SHAPE = (2, 3)


def use_all_reduce(f, group, ranks, x, op):
    return [f.all_reduce(x[0], op, group)]


def use_reduce(f, group, ranks, x, op):
    return [f.reduce(x[0], ranks[-1], op, group)]


def use_reduce_scatter(f, group, ranks, x, op):
    return [f.reduce_scatter(torch.empty_like(x[0]), x, op, group)]


def use_broadcast(f, group, ranks, x):
    return [f.broadcast(x[0], ranks[-1], group)]


def use_gather(f, group, ranks, x):
    return f.gather(x[0], ranks[-1], group)


def use_scatter(f, group, ranks, x):
    return [f.scatter(x, ranks[-1], group)]


def use_all_gather(f, group, ranks, x):
    return f.all_gather(x[0], group)


def use_all_gather_base(f, group, ranks, x):
    landing = x[0].new_empty(len(ranks) * SHAPE[0], *SHAPE[1:])
    return [f._all_gather_base(landing, x[0], group)]


def use_all_to_all(f, group, ranks, x):
    return f.all_to_all([torch.empty_like(part) for part in x], x, group)


def use_all_to_all_single(f, group, ranks, x):
    rank = ranks.index(dist.get_rank())
    sends = [1 + rank + peer for peer in range(len(ranks))]  # the same in both directions
    rows = torch.cat([part * (1 + time) for time in range(len(ranks)) for part in x])[: sum(sends)]
    return [f.all_to_all_single(torch.empty_like(rows), rows, sends, sends, group)]


MOVES = {
    "broadcast": use_broadcast,
    "gather": use_gather,
    "scatter": use_scatter,
    "all_gather": use_all_gather,
    "_all_gather_base": use_all_gather_base,
    "all_to_all": use_all_to_all,
    "all_to_all_single": use_all_to_all_single,
}
REDUCTIONS = {
    "all_reduce": use_all_reduce,
    "reduce": use_reduce,
    "reduce_scatter": use_reduce_scatter,
}
OPERATORS = {
    "SUM": dist.ReduceOp.SUM,
    "AVG": dist.ReduceOp.AVG,
    "MAX": dist.ReduceOp.MAX,
    "MIN": dist.ReduceOp.MIN,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "PREMUL_SUM": dist.ReduceOp.premul_sum(0.5),
}
CASES = {
    **MOVES,
    **{
        f"{name} {word}": functools.partial(use, op=op)
        for name, use in REDUCTIONS.items()
        for word, op in OPERATORS.items()
    },
}


def numbers(seed, shape, dtype):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (drawn + 0.1 * drawn.sign()).to(dtype)  # no operand of a product is nearly zero


def operands(ranks, dtype):
    """This rank's input, which no other rank has."""
    seed = 100 * (dist.get_rank() + 1)
    return [numbers(seed + index, SHAPE, dtype) for index in range(len(ranks))]


def loss_of(outputs):
    """A weighted sum that is not linear, so that second derivatives are not zero."""
    total = 0
    for index, output in enumerate(outputs):
        weights = numbers(7 * index + dist.get_rank(), output.shape, output.dtype)
        total = total + (weights * output * (output + 3)).sum()
    return total


def directions(ranks, dtype):
    """Which way the operands move: only those of one rank at a time, then all."""
    along = [numbers(1000 + index, SHAPE, dtype) for index in range(len(ranks))]
    still = [torch.zeros_like(part) for part in along]
    me = dist.get_rank()
    return [along if me == rank else still for rank in ranks] + [along]


def product(left, right):
    return sum((one * other).sum() for one, other in zip(left, right, strict=True))
