"""A fresh tensor in a name: the name is bound to what comes back."""
import torch
import mindspore.communication as comm
from mindspore.communication import comm_func


def main():
    comm.init()
    total = torch.ones(3) * (comm.get_rank() + 1)  # each rank has its own
    total, _ = comm_func.all_reduce(
        total,  # the sum of all
        op="sum",
    )
    largest = torch.tensor([float(comm.get_rank())])
    largest, _ = comm_func.all_reduce(largest, "max")
    mean = torch.full((2,), float(comm.get_rank()))
    mean[...] = comm_func.all_reduce(mean, op="sum")[0] / comm.get_group_size()
    if comm.get_group_size() > 1: total, _ = comm_func.all_reduce(total)
    copied = torch.arange(4.0) + comm.get_rank()
    copied = comm_func.broadcast(copied, src=comm.get_group_size() - 1)
    comm_func.barrier()
    return total.tolist() + largest.tolist() + mean.tolist() + copied.tolist()
