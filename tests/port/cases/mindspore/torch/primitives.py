"""Primitives that are built in one place and called in another."""
import torch
from torch.distributed.nn import functional
import torch.distributed as dist


class Sum:
    """Keeps an argument of its own, because the method does not know it."""

    def __init__(self, group):
        # over the group
        self.all_reduce_group = group
        self.size = dist.get_world_size(group)

    def construct(self, x):
        return functional.all_reduce(x, op=dist.ReduceOp.SUM, group=self.all_reduce_group) / self.size


class Mixed:
    def __init__(self, group):
        self.group = group

    def construct(self, x):
        dist.barrier()
        x += torch.stack(functional.all_gather(x * 2, group=self.group)).amin(0)
        rows = torch.cat(torch.atleast_1d(functional.all_gather(x)))
        result = rows.new_empty((rows.shape[0] // dist.get_world_size(), *rows.shape[1:]))
        dist.reduce_scatter_tensor(result, rows, op=dist.ReduceOp.MAX)
        self.kept = result
        if torch.stack(functional.all_gather(x, group=self.group)).amin(0).sum() + self.kept.sum() > 1:
            result_2 = rows.clone()
            dist.broadcast(result_2, src=0)
            rows = rows + result_2
        result_3 = x.clone()
        dist.broadcast(result_3, src=0)
        copies = (result_3,)
        for row in torch.cat(torch.atleast_1d(functional.all_gather(torch.stack(functional.all_gather(x, group=self.group)).amin(0)))):
            rows = rows + row.sum()
        result_4 = functional.reduce(x, dst=1)
        if dist.get_rank() != 1:
            result_4.zero_()
        return torch.cat([rows, self.kept, *copies, result_4, functional.all_to_all_single(torch.empty_like(rows), rows)])


def message(x):
    """Built and called at once, and in variables."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(x, dst=1, tag=0)
    elif rank == 1:
        x = torch.empty([2], dtype=torch.float32)
        dist.recv(x, src=0, tag=0)
    return torch.stack(functional.all_gather(x)).amax(0) + functional.all_reduce(x)


def uneven(x, size):
    counts = [1] * size
    return functional.all_to_all_single(x.new_empty(sum(counts)), x, output_split_sizes=counts, input_split_sizes=counts)


def main():
    dist.init_process_group()
    size = dist.get_world_size()
    group = dist.new_group(list(range(size)))
    x = torch.ones(2) * (dist.get_rank() + 1)
    total = Sum(group).construct(x)
    mixed = Mixed(group).construct(total)
    return torch.cat([x, total, mixed, message(total), uneven(mixed[:size], size)]).tolist()
