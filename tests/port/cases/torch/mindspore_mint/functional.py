"""The functions that return their results and have a gradient."""
import torch
import torch.distributed as dist
import mindspore.mint.distributed as mint_dist
import torch.distributed.nn as dnn
from torch.distributed.nn import functional
from torch.distributed.nn.functional import all_gather, reduce


class Parallel:
    def __init__(self, group):
        self.group = group

    def forward(self, x):
        # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
        total = functional.all_reduce(x * 2, group=self.group) + dnn.all_reduce(x, dist.ReduceOp.AVG)
        # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
        largest = [functional.all_reduce(x + n, op=dist.ReduceOp.MAX) for n in range(2)]
        # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
        rows = torch.cat(all_gather(functional.all_reduce(x)))
        # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
        parts = functional.all_gather(x, group=dist.group.WORLD)
        # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
        scalars = torch.stack(all_gather(largest[0][0]))
        mint_dist.broadcast(total, 1)  # in place
        return torch.cat([total, *largest, rows, *parts, scalars])


def rooted(x, root):
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    only = reduce(x, root, group=None)
    rows = torch.arange(2.0 * mint_dist.get_world_size()) + mint_dist.get_rank()
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    given = functional.scatter(list(rows.chunk(mint_dist.get_world_size())), src=1)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    taken = functional.scatter(all_gather(x), root) if len(x) else x
    # Gradients or shapes differ: these stay.
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    copied = functional.broadcast(x, 0)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    everything = functional.gather(x, dst=root)
    return torch.cat([only, given, taken, copied, *everything])


def exchanged(x, size):
    rows = torch.cat([x] * size) + mint_dist.get_rank()
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    part = functional.reduce_scatter(torch.empty_like(x), rows.chunk(size))
    memory = torch.empty(2 * size)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    swapped = functional.all_to_all_single(memory, rows)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    again = functional.all_to_all_single(torch.empty_like(rows), rows, [2] * size, [2] * size)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    same = functional.all_to_all_single(torch.empty_like(rows), rows) + again
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    received = functional.all_to_all([torch.empty(2) for _ in range(size)], list(rows.chunk(size)))
    # The program reads the memory of the result, or the list may be uneven: these stay.
    read = torch.empty(2)
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    functional.reduce_scatter(read, rows.chunk(size))
    # unisono port: left as it is: mint's calls write in place and have no gradient; mindspore:comm_func has one
    uneven = functional.reduce_scatter(torch.empty(2), [rows[2 * n : 2 * n + 2] for n in range(size)])
    return torch.cat([part, swapped, same, *received, read, uneven])


def main():
    size = mint_dist.get_world_size()
    x = torch.ones(2) * (mint_dist.get_rank() + 1)
    layer = Parallel(mint_dist.new_group(list(range(size))))
    return torch.cat([layer.forward(x), rooted(x, 1), exchanged(x, size)]).tolist()
