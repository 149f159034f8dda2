"""Full names, an import inside a function, and one that may fail."""
import torch

try:
    import torch.distributed as dist
except ImportError:
    dist = None


def rank():
    from torch.distributed import get_rank
    return get_rank() if dist is not None and torch.distributed.is_initialized() else 0


def main():
    total = torch.ones(2) + rank()
    torch.distributed.all_reduce(total, torch.distributed.ReduceOp.MIN)
    with torch.no_grad(): torch.distributed.all_reduce(total)
    return total.tolist()
