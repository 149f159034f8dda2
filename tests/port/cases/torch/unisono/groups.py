"""Groups are objects in torch and names in MindSpore."""
import torch
import unisono.torch.distributed as dist
from unisono.torch.distributed import all_reduce, new_group


class Layout:
    def __init__(self, pair: dist.ProcessGroup | None):
        self.pair: dist.ProcessGroup = pair


def layout(pair=None) -> Layout:
    return Layout(pair)


def mean(x: torch.Tensor, group: dist.ProcessGroup = None) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.AVG, group=group)
    return x


def end(group=None):
    dist.destroy_process_group(group)


def main():
    rank = dist.get_rank()
    pair = new_group([0, 1])
    all_reduce(torch.ones(1), group=new_group(backend="gloo"))
    alone = [new_group([one], backend="gloo") for one in range(dist.get_world_size())]
    end(alone[rank])
    value = torch.ones(1) * (rank + 1)
    if rank < 2:
        all_reduce(value, group=pair)
        dist.broadcast(value, 1, pair)
        assert dist.get_world_size(pair) == 2
        assert dist.get_group_rank(pair, 1) == 1
    everyone = torch.ones(1)
    all_reduce(everyone, group=dist.group.WORLD)
    all_reduce(everyone, group=None)
    all_reduce(everyone, group=layout().pair)
    if rank < 2:
        all_reduce(value, group=layout(pair).pair)
        mean(value, pair)
    mean(everyone)
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": rank})
    return value.tolist() + everyone.tolist() + [one["rank"] for one in objects]
