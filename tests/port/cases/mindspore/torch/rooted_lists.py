"""mint has lists on every rank, torch on the one that gathers or scatters."""
import torch
import torch.distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(2) * rank
    parts = [torch.zeros(2) for _ in range(size)]
    dist.gather(value, parts if dist.get_rank() == 1 else None, dst=1)
    objects = [None] * size
    dist.gather_object({"rank": rank}, objects if dist.get_rank() == 0 else None, dst=0)
    root = size - 1
    dist.scatter(value, [value + number for number in range(size)] if dist.get_rank() == root else None, root)
    listed = torch.cat(parts).tolist() if rank == 1 else []
    return listed, objects if rank == 0 else None, value.tolist()
