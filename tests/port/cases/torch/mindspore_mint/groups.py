"""Groups are objects in torch and names in MindSpore."""
import torch
import mindspore.mint.distributed as dist


class Layout:
    def __init__(self, pair: str | None):
        self.pair: str = pair


def layout(pair=None) -> Layout:
    return Layout(pair)


def mean(x: torch.Tensor, group: str = None) -> torch.Tensor:
    dist.all_reduce(x, op="avg", group=group)
    return x


def end(group=None):
    dist.destroy_process_group(group)


def main():
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=dist.new_group(ranks=list(range(dist.get_world_size()))))
    alone = [dist.new_group([one]) for one in range(dist.get_world_size())]
    end(alone[rank])
    value = torch.ones(1) * (rank + 1)
    if rank < 2:
        dist.all_reduce(value, group=pair)
        dist.broadcast(value, 1, pair)
        assert dist.get_world_size(pair) == 2
        assert dist.get_group_rank(pair, 1) == 1
    everyone = torch.ones(1)
    dist.all_reduce(everyone)
    dist.all_reduce(everyone)
    dist.all_reduce(everyone, group=layout().pair)
    if rank < 2:
        dist.all_reduce(value, group=layout(pair).pair)
        mean(value, pair)
    mean(everyone)
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": rank})
    return value.tolist() + everyone.tolist() + [one["rank"] for one in objects]
