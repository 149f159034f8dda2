"""What stays as it is, with the reason above it."""
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def main():
    rank = dist.get_rank()
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    tensors = [torch.ones(1) * rank, torch.ones(2)]
    handles = []
    for one in tensors:
        handles.append(dist.all_reduce(one, async_op=True))
    for handle in handles:
        handle.wait()
    options = {"op": dist.ReduceOp.SUM}
    dist.all_reduce(tensors[0], **options)
    part = torch.zeros(1)
    dist.scatter(part, [torch.ones(1) * n for n in range(dist.get_world_size())] if rank == 0 else None, src=0)
    assert not isinstance(part, DTensor)
    uneven = [torch.zeros(n + 1) for n in range(dist.get_world_size())]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    tensors += uneven
    reduce = dist.all_reduce
    reduce(part)
    return bits.tolist() + torch.cat(tensors).tolist() + part.tolist()
