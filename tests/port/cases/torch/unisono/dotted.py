"""Full names, an import inside a function, and one that may fail."""
import torch
import unisono.torch.distributed as torch_dist

try:
    import torch.distributed as dist
except ImportError:
    dist = None


def rank():
    from unisono.torch.distributed import get_rank
    return get_rank() if dist is not None and torch_dist.is_initialized() else 0


def main():
    total = torch.ones(2) + rank()
    torch_dist.all_reduce(total, torch_dist.ReduceOp.MIN)
    with torch.no_grad(): torch_dist.all_reduce(total)
    return total.tolist()
