"""What stays as it is, with the reason above it."""
import torch
import torch.distributed as dist
import mindspore.communication as comm
from torch.distributed.tensor import DTensor


def main():
    rank = comm.get_rank()
    bits = torch.tensor([1 << rank])
    # unisono port: left as it is: MindSpore has no operator BOR
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    tensors = [torch.ones(1) * rank, torch.ones(2)]
    handles = []
    for one in tensors:
        # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
        handles.append(dist.all_reduce(one, async_op=True))
    for handle in handles:
        handle.wait()
    # unisono port: left as it is: ReduceOp is used as a value, and mindspore writes it in another way
    options = {"op": dist.ReduceOp.SUM}
    # unisono port: left as it is: it passes arguments with * or **, so which ones is not known here
    dist.all_reduce(tensors[0], **options)
    part = torch.zeros(1)
    # unisono port: left as it is: Every rank passes a tensor of the full shape to MindSpore; on ranks other than src only its shape and dtype are read...
    dist.scatter(part, [torch.ones(1) * n for n in range(comm.get_group_size())] if rank == 0 else None, src=0)
    # unisono port: left as it is: the mapping table has what torch.distributed has itself, and not what torch.distributed.tensor has
    assert not isinstance(part, DTensor)
    uneven = [torch.zeros(n + 1) for n in range(comm.get_group_size())]
    # unisono port: left as it is: the tensors of tensor_list may differ in size, and comm_func needs equal ones; mint has functions for uneven ones
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    tensors += uneven
    # unisono port: left as it is: the function is used as a value, so how it is called is not known here
    reduce = dist.all_reduce
    # unisono port: left as it is: it is called through the variable 'reduce'
    reduce(part)
    return bits.tolist() + torch.cat(tensors).tolist() + part.tolist()
