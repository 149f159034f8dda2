"""One rank gets the result, and the others keep what they have."""
import torch
import unisono.torch.distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(2) * (rank + 1)
    dist.reduce(value, dst=1)
    if rank != 1:
        assert value.tolist() == [rank + 1.0] * 2
    root = size - 1
    more = torch.ones(1) * rank
    dist.reduce(more, root, dist.ReduceOp.MAX)
    gathered = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.ones(1) * rank, gathered, dst=0)
    listed = [float(one) for one in gathered] if gathered else []
    return value.tolist() + more.tolist() + listed
