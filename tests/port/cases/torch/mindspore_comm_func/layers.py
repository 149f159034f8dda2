"""Methods of classes: a primitive can be built in __init__."""
import torch
from mindspore.communication import comm_func
import mindspore.communication as comm
import mindspore.mint.distributed as dist

ROOT = 1


class Column:
    """A text."""

    def __init__(self, group, size):
        super().__init__()
        self.group = group
        if size < 1:
            return
        self.size = size

    def all_gather(self):
        return "a method of its own"

    def forward(self, x):
        total = x * 2
        total, _ = comm_func.all_reduce(total, group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)
        x[...] = comm_func.all_reduce(x, op="max", group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)[0]
        total, _ = comm_func.all_reduce(total)
        total, _ = comm_func.all_reduce(total, op="sum")
        total = comm_func.broadcast(total, ROOT)
        x[...] = comm_func.broadcast(x, src=1)
        parts = [torch.zeros_like(x) for _ in range(self.size)]
        for part_2, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
            part_2[...] = piece
        comm_func.barrier()
        return torch.cat([x, total, *parts])

    def part(self, x, group):
        mine = torch.zeros(1)
        mine[...] = comm_func.reduce_scatter_tensor(x, group=group)[0].reshape(mine.shape)
        result = comm_func.reduce(mine, 0)
        if comm.get_rank() == 0:
            mine[...] = result
        def again(self):
            self[...] = comm_func.all_reduce(self)[0]
        again(mine)
        return mine

    @staticmethod
    def check(x):
        x[...] = comm_func.all_reduce(x)[0]
        return x


class Row(Column):
    def __init__(self, group, size): super().__init__(group, size)

    def forward(self, x):
        x[...] = comm_func.all_reduce(x)[0]
        return x


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    group = dist.new_group(list(range(size)))
    layer = Column(group, size)
    x = torch.ones(size) * (rank + 1)
    answers = [layer.forward(x), layer.part(x, group), Column.check(x), Row(group, 2).forward(x)]
    return torch.cat(answers).tolist()
