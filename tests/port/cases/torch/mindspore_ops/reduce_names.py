"""A fresh tensor in a name: the name is bound to what comes back."""
import torch
import mindspore.communication as comm
from mindspore import ops


def main():
    comm.init()
    total = torch.ones(3) * (comm.get_rank() + 1)  # each rank has its own
    total = ops.AllReduce()(
        total,  # the sum of all
    )
    largest = torch.tensor([float(comm.get_rank())])
    largest = ops.AllReduce("max")(largest)
    mean = torch.full((2,), float(comm.get_rank()))
    mean[...] = ops.AllReduce()(mean) / comm.get_group_size()
    if comm.get_group_size() > 1: total = ops.AllReduce()(total)
    copied = torch.arange(4.0) + comm.get_rank()
    copied = ops.Broadcast(comm.get_group_size() - 1)((copied,))[0]
    ops.Barrier()()
    return total.tolist() + largest.tolist() + mean.tolist() + copied.tolist()
