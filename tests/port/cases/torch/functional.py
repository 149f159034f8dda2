"""The functions that return their results and have a gradient."""
import torch
import torch.distributed as dist
import torch.distributed.nn as dnn
from torch.distributed.nn import functional
from torch.distributed.nn.functional import all_gather, reduce


class Parallel:
    def __init__(self, group):
        self.group = group

    def forward(self, x):
        total = functional.all_reduce(x * 2, group=self.group) + dnn.all_reduce(x, dist.ReduceOp.AVG)
        largest = [functional.all_reduce(x + n, op=dist.ReduceOp.MAX) for n in range(2)]
        rows = torch.cat(all_gather(functional.all_reduce(x)))
        parts = functional.all_gather(x, group=dist.group.WORLD)
        scalars = torch.stack(all_gather(largest[0][0]))
        dist.broadcast(total, 1)  # in place
        return torch.cat([total, *largest, rows, *parts, scalars])


def rooted(x, root):
    only = reduce(x, root, group=None)
    rows = torch.arange(2.0 * dist.get_world_size()) + dist.get_rank()
    given = functional.scatter(list(rows.chunk(dist.get_world_size())), src=1)
    taken = functional.scatter(all_gather(x), root) if len(x) else x
    # Gradients or shapes differ: these stay.
    copied = functional.broadcast(x, 0)
    everything = functional.gather(x, dst=root)
    return torch.cat([only, given, taken, copied, *everything])


def exchanged(x, size):
    rows = torch.cat([x] * size) + dist.get_rank()
    part = functional.reduce_scatter(torch.empty_like(x), rows.chunk(size))
    memory = torch.empty(2 * size)
    swapped = functional.all_to_all_single(memory, rows)
    again = functional.all_to_all_single(torch.empty_like(rows), rows, [2] * size, [2] * size)
    same = functional.all_to_all_single(torch.empty_like(rows), rows) + again
    received = functional.all_to_all([torch.empty(2) for _ in range(size)], list(rows.chunk(size)))
    # The program reads the memory of the result, or the list may be uneven: these stay.
    read = torch.empty(2)
    functional.reduce_scatter(read, rows.chunk(size))
    uneven = functional.reduce_scatter(torch.empty(2), [rows[2 * n : 2 * n + 2] for n in range(size)])
    return torch.cat([part, swapped, same, *received, read, uneven])


def main():
    size = dist.get_world_size()
    x = torch.ones(2) * (dist.get_rank() + 1)
    layer = Parallel(dist.new_group(list(range(size))))
    return torch.cat([layer.forward(x), rooted(x, 1), exchanged(x, size)]).tolist()
