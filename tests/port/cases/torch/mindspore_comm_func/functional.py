"""The functions that return their results and have a gradient."""
import torch
import mindspore.mint.distributed as dist
from torch.distributed.nn import functional
from mindspore.communication import comm_func
import mindspore.communication as comm


class Parallel:
    def __init__(self, group):
        self.group = group

    def forward(self, x):
        total = comm_func.all_reduce(x * 2, group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)[0] + (comm_func.all_reduce(x, "sum")[0] / comm.get_group_size())
        largest = [comm_func.all_reduce(x + n, op="max")[0] for n in range(2)]
        rows = comm_func.all_gather_into_tensor(comm_func.all_reduce(x)[0])[0]
        parts = comm_func.all_gather_into_tensor(x)[0].reshape(comm.get_group_size(), *x.shape).unbind()
        scalars = torch.stack(comm_func.all_gather_into_tensor(largest[0][0])[0].reshape(comm.get_group_size(), *largest[0][0].shape).unbind())
        total = comm_func.broadcast(total, 1)  # in place
        return torch.cat([total, *largest, rows, *parts, scalars])


def rooted(x, root):
    only = comm_func.reduce(x, root)
    rows = torch.arange(2.0 * comm.get_group_size()) + comm.get_rank()
    given = comm_func.scatter_tensor(rows, src=1)
    taken = comm_func.scatter_tensor(torch.cat(comm_func.all_gather_into_tensor(x)[0].reshape(comm.get_group_size(), *x.shape).unbind()), root) if len(x) else x
    # Gradients or shapes differ: these stay.
    # unisono port: left as it is: the gradients differ: torch adds them up at src, in MindSpore each rank keeps its own
    copied = functional.broadcast(x, 0)
    # unisono port: left as it is: ranks other than dst get a list of zeros, and MindSpore's result means nothing there
    everything = functional.gather(x, dst=root)
    return torch.cat([only, given, taken, copied, *everything])


def exchanged(x, size):
    rows = torch.cat([x] * size) + comm.get_rank()
    part = comm_func.reduce_scatter_tensor(rows)[0]
    memory = torch.empty(2 * size)
    swapped = comm_func.all_to_all_single_with_output_shape(memory.shape, rows)[0]
    again = comm_func.all_to_all_single_with_output_shape(rows.shape, rows, [2] * size, [2] * size)[0]
    same = comm_func.all_to_all_single_with_output_shape(rows.shape, rows)[0] + again
    received = comm_func.all_to_all_with_output_shape([part_2.shape for part_2 in [torch.empty(2) for _ in range(size)]], list(rows.chunk(size)))[0]
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
