"""An average is a sum that is divided, also of whole numbers and for one rank."""
import torch
import mindspore.mint.distributed as dist


def main():
    rank = dist.get_rank()
    mean = torch.ones(2) * rank
    dist.all_reduce(mean, op="avg")
    whole = torch.arange(3) * rank
    dist.all_reduce(whole, op="avg")
    first = torch.ones(2) * (rank + 1)
    dist.reduce(first, 0, "avg")
    return [mean.tolist(), whole.tolist(), first.tolist()]
