"""Methods of classes: a primitive can be built in __init__."""
import torch
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
        dist.all_reduce(total, group=self.group)
        dist.all_reduce(x, op="max", group=self.group)
        dist.all_reduce(total)
        dist.all_reduce(total, op="sum")
        dist.broadcast(total, ROOT)
        dist.broadcast(x, src=1)
        parts = [torch.zeros_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        dist.barrier()
        return torch.cat([x, total, *parts])

    def part(self, x, group):
        mine = torch.zeros(1)
        dist.reduce_scatter_tensor(mine, x, group=group)
        dist.reduce(mine, 0)
        def again(self):
            dist.all_reduce(self)
        again(mine)
        return mine

    @staticmethod
    def check(x):
        dist.all_reduce(x)
        return x


class Row(Column):
    def __init__(self, group, size): super().__init__(group, size)

    def forward(self, x):
        dist.all_reduce(x)
        return x


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    layer = Column(group, size)
    x = torch.ones(size) * (rank + 1)
    answers = [layer.forward(x), layer.part(x, group), Column.check(x), Row(group, 2).forward(x)]
    return torch.cat(answers).tolist()
