"""One rank gets the result, and the others keep what they have."""
import torch
import mindspore.communication as comm
from mindspore import ops


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    value = torch.ones(2) * (rank + 1)
    result = ops.Reduce(1)(value)
    if comm.get_rank() == 1:
        value[...] = result
    if rank != 1:
        assert value.tolist() == [rank + 1.0] * 2
    root = size - 1
    more = torch.ones(1) * rank
    result = ops.Reduce(root, "max")(more)
    if comm.get_rank() == root:
        more[...] = result
    gathered = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    result = ops.CollectiveGather(0)(torch.ones(1) * rank)
    if gathered:
        for part, piece in zip(gathered, result.chunk(len(gathered))):
            part[...] = piece
    listed = [float(one) for one in gathered] if gathered else []
    return value.tolist() + more.tolist() + listed
