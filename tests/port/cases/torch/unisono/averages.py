"""An average is a sum that is divided, also of whole numbers and for one rank."""
import torch
import unisono.torch.distributed as dist


def main():
    rank = dist.get_rank()
    mean = torch.ones(2) * rank
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    whole = torch.arange(3) * rank
    dist.all_reduce(whole, op=dist.ReduceOp.AVG)
    first = torch.ones(2) * (rank + 1)
    dist.reduce(first, 0, dist.ReduceOp.AVG)
    return [mean.tolist(), whole.tolist(), first.tolist()]
