"""Primitives that are built in one place and called in another."""
import torch
import torch.distributed as dist


class Sum:
    """Keeps an argument of its own, because the method does not know it."""

    def __init__(self, group):
        # over the group
        self.all_reduce_group = group
        self.size = dist.get_world_size(group)

    def construct(self, x):
        result = x.clone()
        dist.all_reduce(result, op=dist.ReduceOp.SUM, group=self.all_reduce_group)
        return result / self.size


class Mixed:
    def __init__(self, group):
        self.group = group

    def construct(self, x):
        dist.barrier()
        result_2 = x * 2
        dist.all_reduce(result_2, op=dist.ReduceOp.MIN, group=self.group)
        x += result_2
        rows = x.new_empty((dist.get_world_size(), *x.shape)).reshape(-1, *x.shape[1:])
        dist.all_gather_into_tensor(rows, x)
        result_3 = rows.new_empty((rows.shape[0] // dist.get_world_size(), *rows.shape[1:]))
        dist.reduce_scatter_tensor(result_3, rows, op=dist.ReduceOp.MAX)
        self.kept = result_3
        result_4 = x.clone()
        dist.all_reduce(result_4, op=dist.ReduceOp.MIN, group=self.group)
        if result_4.sum() + self.kept.sum() > 1:
            result_5 = rows.clone()
            dist.broadcast(result_5, src=0)
            rows = rows + result_5
        result_6 = x.clone()
        dist.broadcast(result_6, src=0)
        copies = (result_6,)
        result_7 = x.clone()
        dist.all_reduce(result_7, op=dist.ReduceOp.MIN, group=self.group)
        result_8 = result_7.new_empty((dist.get_world_size(), *result_7.shape)).reshape(-1, *result_7.shape[1:])
        dist.all_gather_into_tensor(result_8, result_7)
        for row in result_8:
            rows = rows + row.sum()
        result_9 = x.clone()
        dist.reduce(result_9, dst=1)
        if dist.get_rank() != 1:
            result_9.zero_()
        result_10 = rows.new_empty(rows.shape)
        dist.all_to_all_single(result_10, rows)
        return torch.cat([rows, self.kept, *copies, result_9, result_10])


def message(x):
    """Built and called at once, and in variables."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(x, dst=1, tag=0)
    elif rank == 1:
        x = torch.empty([2], dtype=torch.float32)
        dist.recv(x, src=0, tag=0)
    result_11 = x.clone()
    dist.all_reduce(result_11, op=dist.ReduceOp.MAX)
    result_12 = x.clone()
    dist.all_reduce(result_12)
    return result_11 + result_12


def uneven(x, size):
    counts = [1] * size
    result_13 = x.new_empty(sum(counts))
    dist.all_to_all_single(result_13, x, output_split_sizes=counts, input_split_sizes=counts)
    return result_13


def main():
    dist.init_process_group()
    size = dist.get_world_size()
    group = dist.new_group(list(range(size)))
    x = torch.ones(2) * (dist.get_rank() + 1)
    total = Sum(group).construct(x)
    mixed = Mixed(group).construct(total)
    return torch.cat([x, total, mixed, message(total), uneven(mixed[:size], size)]).tolist()
