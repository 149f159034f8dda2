"""Primitives that are built in one place and called in another."""
import torch
from mindspore import ops
from mindspore.communication import GlobalComm, get_group_size, get_rank, init
from mindspore.mint.distributed import new_group
from mindspore.ops import operations as P


class Sum:
    """Keeps an argument of its own, because the method does not know it."""

    def __init__(self, group):
        # over the group
        self.all_reduce = ops.AllReduce(op=ops.ReduceOp.SUM, group=group)
        self.size = get_group_size(group)

    def construct(self, x):
        return self.all_reduce(x) / self.size


class Mixed:
    def __init__(self, group):
        self.group = group
        self.smallest = P.AllReduce("min", self.group)
        self.gather = ops.AllGather(group=GlobalComm.WORLD_COMM_GROUP)
        self.scatter = ops.ReduceScatter(ops.ReduceOp.MAX)
        self.copy = ops.Broadcast(0)
        self.reduce = ops.Reduce(1)
        self.exchange = ops.AlltoAll(split_count=get_group_size(), split_dim=0, concat_dim=0)
        self.wait = ops.Barrier()

    def construct(self, x):
        self.wait()
        x += self.smallest(x * 2)
        rows = self.gather(x)
        self.kept = self.scatter(rows)
        if self.smallest(x).sum() + self.kept.sum() > 1:
            rows = rows + self.copy((rows,))[0]
        copies = self.copy([x])
        for row in self.gather(self.smallest(x)):
            rows = rows + row.sum()
        return torch.cat([rows, self.kept, *copies, self.reduce(x), self.exchange(rows)])


reduce_max = ops.AllReduce("max")


def message(x):
    """Built and called at once, and in variables."""
    rank = get_rank()
    receive = ops.Receive(0, 0, [2], torch.float32)
    if rank == 0:
        ops.Send(sr_tag=0, dest_rank=1)(x)
    elif rank == 1:
        x = receive()
    return reduce_max(x) + ops.AllReduce()(x)


def uneven(x, size):
    counts = [1] * size
    return ops.AlltoAllV()(x, counts, counts)


def main():
    init()
    size = get_group_size()
    group = new_group(list(range(size)))
    x = torch.ones(2) * (get_rank() + 1)
    total = Sum(group).construct(x)
    mixed = Mixed(group).construct(total)
    return torch.cat([x, total, mixed, message(total), uneven(mixed[:size], size)]).tolist()
