"""What stays as it is, with the reason above it."""
import torch
from torch.distributed.nn import functional
from mindspore.communication import comm_func, create_group
import torch.distributed as dist


class Sum:
    def __init__(self):
        pass

    def __call__(self, value):
        return functional.all_reduce(value)


def main():
    if dist.get_rank() < 2:
        # unisono port: left as it is: Every rank of the world calls torch's new_group, unless use_local_synchronization is set; only members call MindSpor...
        create_group("pair", [0, 1])
        # unisono port: left as it is: the group is a name; torch needs the object
        value, _ = comm_func.all_reduce(torch.ones(1), group="pair")
    value = Sum()(torch.ones(2))
    result = value.clone()
    dist.all_reduce(result)
    return (result + 1).tolist()
