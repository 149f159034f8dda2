"""The functions that return their results and have a gradient."""
import torch
import mindspore.mint.distributed as dist
from torch.distributed.nn import functional
from mindspore import ops
import mindspore.communication as comm


class Parallel:
    def __init__(self, group):
        self.all_reduce_2 = ops.AllReduce()
        self.all_reduce_max = ops.AllReduce("max")
        self.all_gather = ops.AllGather()
        self.broadcast = ops.Broadcast(1)
        self.group = group
        self.all_reduce = ops.AllReduce(group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)

    def forward(self, x):
        total = self.all_reduce(x * 2) + (self.all_reduce_2(x) / comm.get_group_size())
        largest = [self.all_reduce_max(x + n) for n in range(2)]
        rows = self.all_gather(self.all_reduce_2(x))
        parts = self.all_gather(x).reshape(comm.get_group_size(), *x.shape).unbind()
        scalars = torch.stack(self.all_gather(largest[0][0]).reshape(comm.get_group_size(), *largest[0][0].shape).unbind())
        total = self.broadcast((total,))[0]  # in place
        return torch.cat([total, *largest, rows, *parts, scalars])


def rooted(x, root):
    only = ops.Reduce(root)(x)
    rows = torch.arange(2.0 * comm.get_group_size()) + comm.get_rank()
    given = ops.CollectiveScatter(1)(rows)
    taken = ops.CollectiveScatter(root)(torch.cat(ops.AllGather()(x).reshape(comm.get_group_size(), *x.shape).unbind())) if len(x) else x
    # Gradients or shapes differ: these stay.
    # unisono port: left as it is: the gradients differ: torch adds them up at src, in MindSpore each rank keeps its own
    copied = functional.broadcast(x, 0)
    # unisono port: left as it is: ranks other than dst get a list of zeros, and MindSpore's result means nothing there
    everything = functional.gather(x, dst=root)
    return torch.cat([only, given, taken, copied, *everything])


def exchanged(x, size):
    rows = torch.cat([x] * size) + comm.get_rank()
    part = ops.ReduceScatter()(rows)
    memory = torch.empty(2 * size)
    swapped = ops.AlltoAll(comm.get_group_size(), 0, 0)(rows).reshape(memory.shape)
    # unisono port: left as it is: The lists of the primitive AlltoAllV count blocks of block_size elements of a flat tensor; torch counts rows, whatev...
    again = functional.all_to_all_single(torch.empty_like(rows), rows, [2] * size, [2] * size)
    same = ops.AlltoAll(comm.get_group_size(), 0, 0)(rows) + again
    # unisono port: left as it is: MindSpore has no primitive for all_to_all; comm_func and mint have a call
    received = functional.all_to_all([torch.empty(2) for _ in range(size)], list(rows.chunk(size)))
    # The program reads the memory of the result, or the list may be uneven: these stay.
    read = torch.empty(2)
    # unisono port: left as it is: the result is in 'read' too, and MindSpore returns another
    functional.reduce_scatter(read, rows.chunk(size))
    # unisono port: left as it is: the parts of the list may differ in size, and MindSpore divides one tensor into equal parts; pass x.chunk(n)
    uneven = functional.reduce_scatter(torch.empty(2), [rows[2 * n : 2 * n + 2] for n in range(size)])
    return torch.cat([part, swapped, same, *received, read, uneven])


def main():
    size = comm.get_group_size()
    x = torch.ones(2) * (comm.get_rank() + 1)
    layer = Parallel(dist.new_group(list(range(size))))
    return torch.cat([layer.forward(x), rooted(x, 1), exchanged(x, size)]).tolist()
