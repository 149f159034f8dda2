"""Random calls of the PyTorch dialect, the same for every module that has its functions.

A verb takes the module, the group, this rank's number in it, a draw and a form for tensors. It
returns what must agree with another module's results, and how closely.
"""

from __future__ import annotations

import random

import numpy as np
import torch

# Gloo reduces these; the rest, and averages of integers, are compared with NumPy.
GLOO_SUMS = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
MOVED = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "complex64")
INTEGER_OPERATORS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
FLOAT_OPERATORS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
ROUNDING = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-5, "float64": 1e-12}


class Draw:
    """Everything random about one call: the same on all ranks, except for the contents."""

    def __init__(self, seed, call, ranks):
        self.dice = random.Random(f"{seed}/{call}")
        self.key = (seed, call)
        self.ranks = ranks

    def tensor(self, rank, shape, dtype, slot=0):
        """What `rank` holds in `slot`: as a torch tensor, whatever it becomes later."""
        number = np.random.default_rng([*self.key, rank, slot])
        if dtype == "bool":
            values = number.integers(0, 2, shape).astype(bool)
        elif "int" in dtype:
            values = number.integers(0 if dtype[0] == "u" else -9, 100, shape).astype(dtype)
        elif "complex" in dtype:
            values = (number.normal(size=shape) + 1j * number.normal(size=shape)).astype(dtype)
        else:
            return torch.from_numpy(np.array(number.normal(size=shape))).to(getattr(torch, dtype))
        return torch.from_numpy(np.array(values))

    def shape(self, first=None):
        tail = [self.dice.choice([1, 2, 3, 5]) for _ in range(self.dice.randrange(3))]
        return [first if first is not None else self.dice.choice([1, 2, 4, 7]), *tail]


def torch_only(tensor):
    return tensor.clone()


def as_numpy(tensor):
    return tensor.clone().numpy() if tensor.dtype is not torch.bfloat16 else tensor.clone()


def with_gaps(tensor):
    """The same numbers as every second element of a larger tensor."""
    wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def numpy_with_gaps(tensor):
    return with_gaps(tensor).numpy() if tensor.dtype is not torch.bfloat16 else with_gaps(tensor)


FORMS = (torch_only, as_numpy, with_gaps, numpy_with_gaps)


def reduction(draw):
    """A dtype that Gloo reduces and an operator for it."""
    dtype = draw.dice.choice(GLOO_SUMS)
    return dtype, draw.dice.choice(INTEGER_OPERATORS if "int" in dtype else FLOAT_OPERATORS)


def all_reduce(d, group, rank, draw, form):
    dtype, operator = reduction(draw)
    x = form(draw.tensor(rank, draw.shape(), dtype))
    d.all_reduce(x, getattr(d.ReduceOp, operator), group)
    return [x], closeness(dtype, operator)


def reduce(d, group, rank, draw, form):
    dtype, operator = reduction(draw)
    root = draw.dice.randrange(len(draw.ranks))
    x = form(draw.tensor(rank, draw.shape(), dtype))
    d.reduce(x, draw.ranks[root], getattr(d.ReduceOp, operator), group)
    return [x] if rank == root else [], closeness(dtype, operator)


def all_reduce_coalesced(d, group, rank, draw, form):
    dtype, operator = reduction(draw)
    every = [form(draw.tensor(rank, draw.shape(), dtype, slot)) for slot in range(3)]
    d.all_reduce_coalesced(every, getattr(d.ReduceOp, operator), group)
    return every, closeness(dtype, operator)


def reduce_scatter(d, group, rank, draw, form):
    dtype, operator = reduction(draw)
    shape = draw.shape()
    parts = [form(draw.tensor(rank, shape, dtype, slot)) for slot in range(len(draw.ranks))]
    out = form(draw.tensor(9, shape, dtype))
    d.reduce_scatter(out, parts, getattr(d.ReduceOp, operator), group)
    return [out], closeness(dtype, operator)


def reduce_scatter_single(d, group, rank, draw, form):
    dtype, operator = reduction(draw)
    shape = draw.shape()
    whole = form(draw.tensor(rank, [shape[0] * len(draw.ranks), *shape[1:]], dtype))
    out = form(draw.tensor(9, shape, dtype))
    d.reduce_scatter_single(out, whole, getattr(d.ReduceOp, operator), group)
    return [out], closeness(dtype, operator)


def broadcast(d, group, rank, draw, form):
    x = form(draw.tensor(rank, draw.shape(), draw.dice.choice(MOVED)))
    root = draw.dice.randrange(len(draw.ranks))
    given = draw.dice.choice([{"src": draw.ranks[root]}, {"group_src": root}])
    d.broadcast(x, group=group, **given)
    return [x], None


def all_gather(d, group, rank, draw, form):
    dtype, shape = draw.dice.choice(MOVED), draw.shape()
    parts = [form(draw.tensor(9, shape, dtype)) for _ in draw.ranks]
    work = d.all_gather(parts, form(draw.tensor(rank, shape, dtype)), group, async_op=True)
    work.wait()
    return parts, None


def all_gather_single(d, group, rank, draw, form):
    dtype, shape = draw.dice.choice(MOVED), draw.shape()
    joined = [shape[0] * len(draw.ranks), *shape[1:]]
    out = form(draw.tensor(9, joined, dtype))  # Gloo cannot stack
    d.all_gather_single(out, form(draw.tensor(rank, shape, dtype)), group)
    return [out], None


def all_gather_coalesced(d, group, rank, draw, form):
    dtype, shapes = draw.dice.choice(MOVED), [draw.shape(), draw.shape()]
    rows = [[form(draw.tensor(9, shape, dtype)) for shape in shapes] for _ in draw.ranks]
    inputs = [form(draw.tensor(rank, shape, dtype, i)) for i, shape in enumerate(shapes)]
    d.all_gather_coalesced(rows, inputs, group)
    return [tensor for row in rows for tensor in row], None


def gather(d, group, rank, draw, form):
    dtype, shape, root = draw.dice.choice(MOVED), draw.shape(), draw.dice.randrange(2)
    parts = [form(draw.tensor(9, shape, dtype)) for _ in draw.ranks] if rank == root else None
    if "complex" in dtype:  # torch forgets to view complex numbers as pairs here, and fails
        return [], None
    d.gather(form(draw.tensor(rank, shape, dtype)), parts, group=group, group_dst=root)
    return parts or [], None


def scatter(d, group, rank, draw, form):
    dtype, shape, root = draw.dice.choice(MOVED), draw.shape(), draw.dice.randrange(2)
    parts = None
    if rank == root:
        parts = [form(draw.tensor(rank, shape, dtype, slot)) for slot in range(len(draw.ranks))]
    out = form(draw.tensor(9, shape, dtype))
    d.scatter(out, parts, draw.ranks[root], group)
    return [out], None


def all_to_all(d, group, rank, draw, form):
    dtype, shape = draw.dice.choice(MOVED), draw.shape()
    size = len(draw.ranks)
    inputs = [form(draw.tensor(rank, shape, dtype, slot)) for slot in range(size)]
    outputs = [form(draw.tensor(9, shape, dtype)) for _ in range(size)]
    d.all_to_all(outputs, inputs, group)
    return outputs, None


def all_to_all_single(d, group, rank, draw, form):
    dtype, tail, size = draw.dice.choice(MOVED), draw.shape()[1:], len(draw.ranks)
    table = [[draw.dice.randrange(4) for _ in range(size)] for _ in range(size)]
    equal = draw.dice.random() < 0.3
    if equal:
        table = [[2] * size] * size
    sends, receives = table[rank], [row[rank] for row in table]
    out = form(draw.tensor(9, [sum(receives), *tail], dtype))
    rows = form(draw.tensor(rank, [sum(sends), *tail], dtype))
    splits = (None, None) if equal else (receives, sends)
    d.all_to_all_single(out, rows, *splits, group=group)
    return [out], None


def ring(d, group, rank, draw, form):
    dtype, shape, size = draw.dice.choice(MOVED), draw.shape(), len(draw.ranks)
    x, y = form(draw.tensor(rank, shape, dtype)), form(draw.tensor(9, shape, dtype))
    to, back = (rank + 1) % size, (rank - 1) % size
    works = [d.irecv(y, group=group, group_src=back), d.isend(x, draw.ranks[to], group)]
    for work in works:
        work.wait()
    return [y], None


def objects(d, group, rank, draw, form):
    every = [None] * len(draw.ranks)
    d.all_gather_object(every, ("from", rank), group)
    gathered = [None] * len(draw.ranks) if rank == 1 else None
    d.gather_object(rank, gathered, group=group, group_dst=1)
    out, things = [None], ([[i] for i in draw.ranks] if rank == 0 else None)
    d.scatter_object_list(out, things, group=group, group_src=0)
    spread = [rank, str(rank)]
    d.broadcast_object_list(spread, group=group, group_src=1)
    return [(every, gathered, out, spread)], None


VERBS = (
    all_reduce,
    reduce,
    all_reduce_coalesced,
    reduce_scatter,
    reduce_scatter_single,
    broadcast,
    all_gather,
    all_gather_single,
    all_gather_coalesced,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    ring,
    objects,
)


def closeness(dtype, operator):
    """How far apart two results may be; None where not a bit may differ."""
    return ROUNDING.get(dtype) if operator in ("SUM", "PRODUCT", "AVG") else None


def differ(ours, theirs, tolerance):
    if isinstance(ours, tuple):
        return ours != theirs
    left, right = torch.as_tensor(ours), theirs
    if left.shape != right.shape or left.dtype != right.dtype:
        return True
    if tolerance is None:
        return bits(left) != bits(right)
    return not torch.allclose(left.double(), right.double(), rtol=tolerance, atol=tolerance)


def bits(tensor):
    """The bytes of the numbers, without those in the gaps between them."""
    packed = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return packed.flatten().view(torch.uint8).tolist()
