"""An average is a sum that is divided, also of whole numbers and for one rank."""
import torch
import mindspore.communication as comm
from mindspore import ops


def main():
    rank = comm.get_rank()
    mean = torch.ones(2) * rank
    mean[...] = ops.AllReduce()(mean) / comm.get_group_size()
    whole = torch.arange(3) * rank
    whole[...] = ops.AllReduce()(whole) / comm.get_group_size()
    first = torch.ones(2) * (rank + 1)
    result = ops.Reduce(0)(first)
    if comm.get_rank() == 0:
        first[...] = result / comm.get_group_size()
    return [mean.tolist(), whole.tolist(), first.tolist()]
