"""Full names, an import inside a function, and one that may fail."""
import torch
import mindspore.mint.distributed as mint_dist

try:
    import torch.distributed as dist
except ImportError:
    dist = None


def rank():
    import mindspore.mint.distributed as mint_dist
    return mint_dist.get_rank() if dist is not None and mint_dist.is_initialized() else 0


def main():
    total = torch.ones(2) + rank()
    mint_dist.all_reduce(total, "min")
    with torch.no_grad(): mint_dist.all_reduce(total)
    return total.tolist()
