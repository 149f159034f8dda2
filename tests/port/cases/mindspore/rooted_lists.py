"""mint has lists on every rank, torch on the one that gathers or scatters."""
import torch
from mindspore.mint import distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(2) * rank
    parts = [torch.zeros(2) for _ in range(size)]
    dist.gather(value, parts, dst=1)
    objects = [None] * size
    dist.gather_object({"rank": rank}, objects)
    root = size - 1
    dist.scatter(value, [value + number for number in range(size)], root)
    listed = torch.cat(parts).tolist() if rank == 1 else []
    return listed, objects if rank == 0 else None, value.tolist()
