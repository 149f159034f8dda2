"""A fresh tensor in a name: the name is bound to what comes back."""
import torch
import unisono.torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    total = torch.ones(3) * (dist.get_rank() + 1)  # each rank has its own
    dist.all_reduce(
        total,  # the sum of all
        op=dist.ReduceOp.SUM,
    )
    largest = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    mean = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if dist.get_world_size() > 1: dist.all_reduce(total)
    copied = torch.arange(4.0) + dist.get_rank()
    dist.broadcast(copied, src=dist.get_world_size() - 1)
    dist.barrier()
    return total.tolist() + largest.tolist() + mean.tolist() + copied.tolist()
