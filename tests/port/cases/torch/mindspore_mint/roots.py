"""One rank gets the result, and the others keep what they have."""
import torch
import torch.distributed as dist
import mindspore.mint.distributed as mint_dist


def main():
    rank, size = mint_dist.get_rank(), mint_dist.get_world_size()
    value = torch.ones(2) * (rank + 1)
    mint_dist.reduce(value, dst=1)
    if rank != 1:
        assert value.tolist() == [rank + 1.0] * 2
    root = size - 1
    more = torch.ones(1) * rank
    mint_dist.reduce(more, root, "max")
    gathered = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    # unisono port: left as it is: gather_list may be None on some ranks, and mint needs it on all
    dist.gather(torch.ones(1) * rank, gathered, dst=0)
    listed = [float(one) for one in gathered] if gathered else []
    return value.tolist() + more.tolist() + listed
