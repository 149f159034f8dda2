"""An average is a sum that is divided, also of whole numbers and for one rank."""
import torch
import mindspore.communication as comm
from mindspore.communication import comm_func


def main():
    rank = comm.get_rank()
    mean = torch.ones(2) * rank
    mean[...] = comm_func.all_reduce(mean, op="sum")[0] / comm.get_group_size()
    whole = torch.arange(3) * rank
    whole[...] = comm_func.all_reduce(whole, op="sum")[0] / comm.get_group_size()
    first = torch.ones(2) * (rank + 1)
    result = comm_func.reduce(first, 0, "sum")
    if comm.get_rank() == 0:
        first[...] = result / comm.get_group_size()
    return [mean.tolist(), whole.tolist(), first.tolist()]
