"""comm_func in the forward pass, where a gradient has to pass, and elsewhere."""
import torch
from mindspore.communication import comm_func
from torch.distributed.nn import functional
import math
import torch.distributed as dist


class Layer:
    def __init__(self, root):
        self.root = root

    def construct(self, x):
        total = functional.all_reduce(x)
        total = math.prod(functional.all_gather(total))
        nothing = None
        rows = torch.cat(torch.atleast_1d(functional.all_gather(functional.all_reduce(x * 2))))
        several = [functional.all_reduce(x + n) for n in range(2)]
        part = functional.reduce_scatter(torch.empty_like(rows.chunk(dist.get_world_size())[0]), rows.chunk(dist.get_world_size())) if nothing is None else total
        small = rows.new_empty((rows.shape[0] // dist.get_world_size(), *rows.shape[1:]))
        dist.reduce_scatter_tensor(small, rows, op=dist.ReduceOp.MIN)
        result_2 = functional.reduce(x, self.root)
        if dist.get_rank() != self.root:
            result_2.zero_()
        result_3 = x.clone()
        dist.broadcast(result_3, self.root)
        only = result_2 + result_3
        given = functional.scatter(rows.chunk(dist.get_world_size()), 1)
        swapped = functional.all_to_all_single(rows.new_empty(rows.shape), rows)
        return torch.cat([total, rows, *several, part, small, only, given, swapped])

    def left(self, x):
        result = x.clone()
        handle = dist.all_reduce(result, async_op=True)
        handle.wait()
        # unisono port: left as it is: torch's scatter works with lists that only one rank has; write the two sides by hand
        return result + comm_func.scatter_tensor(torch.cat([x] * dist.get_world_size()))


class Left:
    """Torch has no function with a gradient for these."""

    def construct(self, x):
        # unisono port: left as it is: torch's functions with a gradient return no handle
        result, handle = comm_func.all_reduce(x, async_op=True)
        handle.wait()
        # unisono port: left as it is: torch's gradient of reduce is wrong for min
        smallest = comm_func.reduce(x, 0, "min")
        return torch.cat([result, smallest])


def helper(x):
    result_4 = x.clone()
    dist.all_reduce(result_4)
    return result_4


def main():
    x = torch.ones(2) * (dist.get_rank() + 1)
    layer = Layer(1)
    return torch.cat([layer.construct(x), layer.left(x), Left().construct(x), helper(x)]).tolist()
