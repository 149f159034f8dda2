"""Lists that torch fills, and tensors for results of another shape."""
import torch
import mindspore.mint.distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0) + 10 * rank
    everyone = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(everyone, mine)
    big = torch.zeros(2 * size)
    dist.all_gather(list(big.chunk(size)), mine)
    joined = torch.empty(2 * size)
    dist.all_gather_into_tensor(joined, mine)
    part = torch.empty(2)
    dist.reduce_scatter(part, [mine + other for other in range(size)])
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size), op="max")
    scalars = [torch.zeros(()) for _ in range(size)]
    dist.all_gather(scalars, torch.tensor(1.0 + rank))
    received = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(received, [torch.full((1,), 10.0 * rank + other) for other in range(size)])
    exchanged = torch.empty(size)
    dist.all_to_all_single(exchanged, torch.arange(float(size)) + 100 * rank)
    results = torch.cat(everyone + received + [big, joined, part, exchanged])
    return [float(s) for s in scalars] + results.tolist()
