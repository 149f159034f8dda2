"""Lists that torch fills, and tensors for results of another shape."""
import torch
import mindspore.communication as comm
from mindspore.communication import comm_func


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    mine = torch.arange(2.0) + 10 * rank
    everyone = [torch.empty_like(mine) for _ in range(size)]
    for part_2, piece in zip(everyone, comm_func.all_gather_into_tensor(mine)[0].chunk(len(everyone))):
        part_2[...] = piece
    big = torch.zeros(2 * size)
    tensors = list(big.chunk(size))
    for part_2, piece in zip(tensors, comm_func.all_gather_into_tensor(mine)[0].chunk(len(tensors))):
        part_2[...] = piece
    joined = torch.empty(2 * size)
    joined[...] = comm_func.all_gather_into_tensor(mine)[0].reshape(joined.shape)
    part = torch.empty(2)
    part[...] = comm_func.reduce_scatter_tensor(torch.cat([mine + other for other in range(size)]))[0].reshape(part.shape)
    part[...] = comm_func.reduce_scatter_tensor(torch.arange(2.0 * size), op="max")[0].reshape(part.shape)
    scalars = [torch.zeros(()) for _ in range(size)]
    for part_2, piece in zip(scalars, comm_func.all_gather_into_tensor(torch.tensor(1.0 + rank))[0].chunk(len(scalars))):
        part_2[...] = piece
    received = [torch.zeros(1) for _ in range(size)]
    for part_2, piece in zip(received, comm_func.all_to_all_with_output_shape([part_2.shape for part_2 in received], [torch.full((1,), 10.0 * rank + other) for other in range(size)])[0]):
        part_2[...] = piece
    exchanged = torch.empty(size)
    exchanged, _ = comm_func.all_to_all_single_with_output_shape(exchanged.shape, torch.arange(float(size)) + 100 * rank)
    results = torch.cat(everyone + received + [big, joined, part, exchanged])
    return [float(s) for s in scalars] + results.tolist()
