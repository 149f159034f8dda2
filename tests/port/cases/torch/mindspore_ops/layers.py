"""Methods of classes: a primitive can be built in __init__."""
import torch
from mindspore import ops
import mindspore.communication as comm
import mindspore.mint.distributed as dist

ROOT = 1


class Column:
    """A text."""

    def __init__(self, group, size):
        super().__init__()
        self.all_reduce_2 = ops.AllReduce()
        self.broadcast = ops.Broadcast(ROOT)
        self.broadcast_2 = ops.Broadcast(1)
        self.all_gather_2 = ops.AllGather()
        self.barrier = ops.Barrier()
        self.reduce = ops.Reduce(0)
        self.group = group
        self.all_reduce = ops.AllReduce(group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)
        self.all_reduce_max = ops.AllReduce("max", self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)
        if size < 1:
            return
        self.size = size

    def all_gather(self):
        return "a method of its own"

    def forward(self, x):
        total = x * 2
        total = self.all_reduce(total)
        x[...] = self.all_reduce_max(x)
        total = self.all_reduce_2(total)
        total = self.all_reduce_2(total)
        total = self.broadcast((total,))[0]
        x[...] = self.broadcast_2((x,))[0]
        parts = [torch.zeros_like(x) for _ in range(self.size)]
        for part_2, piece in zip(parts, self.all_gather_2(x).chunk(len(parts))):
            part_2[...] = piece
        self.barrier()
        return torch.cat([x, total, *parts])

    def part(self, x, group):
        mine = torch.zeros(1)
        mine[...] = ops.ReduceScatter(group=group)(x).reshape(mine.shape)
        result = self.reduce(mine)
        if comm.get_rank() == 0:
            mine[...] = result
        def again(self):
            self[...] = ops.AllReduce()(self)
        again(mine)
        return mine

    @staticmethod
    def check(x):
        x[...] = ops.AllReduce()(x)
        return x


class Row(Column):
    def __init__(self, group, size): super().__init__(group, size)

    def forward(self, x):
        x[...] = ops.AllReduce()(x)
        return x


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    group = dist.new_group(list(range(size)))
    layer = Column(group, size)
    x = torch.ones(size) * (rank + 1)
    answers = [layer.forward(x), layer.part(x, group), Column.check(x), Row(group, 2).forward(x)]
    return torch.cat(answers).tolist()
