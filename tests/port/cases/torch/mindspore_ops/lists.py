"""Lists that torch fills, and tensors for results of another shape."""
import torch
from torch import distributed as dist
import mindspore.communication as comm
from mindspore import ops


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    mine = torch.arange(2.0) + 10 * rank
    everyone = [torch.empty_like(mine) for _ in range(size)]
    for part_2, piece in zip(everyone, ops.AllGather()(mine).chunk(len(everyone))):
        part_2[...] = piece
    big = torch.zeros(2 * size)
    tensors = list(big.chunk(size))
    for part_2, piece in zip(tensors, ops.AllGather()(mine).chunk(len(tensors))):
        part_2[...] = piece
    joined = torch.empty(2 * size)
    joined[...] = ops.AllGather()(mine).reshape(joined.shape)
    part = torch.empty(2)
    part[...] = ops.ReduceScatter()(torch.cat([mine + other for other in range(size)])).reshape(part.shape)
    part[...] = ops.ReduceScatter("max")(torch.arange(2.0 * size)).reshape(part.shape)
    scalars = [torch.zeros(()) for _ in range(size)]
    for part_2, piece in zip(scalars, ops.AllGather()(torch.tensor(1.0 + rank)).chunk(len(scalars))):
        part_2[...] = piece
    received = [torch.zeros(1) for _ in range(size)]
    # unisono port: left as it is: MindSpore has no primitive for all_to_all; comm_func and mint have a call
    dist.all_to_all(received, [torch.full((1,), 10.0 * rank + other) for other in range(size)])
    exchanged = torch.empty(size)
    exchanged[...] = ops.AlltoAll(comm.get_group_size(), 0, 0)(torch.arange(float(size)) + 100 * rank).reshape(exchanged.shape)
    results = torch.cat(everyone + received + [big, joined, part, exchanged])
    return [float(s) for s in scalars] + results.tolist()
