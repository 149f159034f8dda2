"""comm_func in the forward pass, where a gradient has to pass, and elsewhere."""
import torch
from mindspore.communication import comm_func, get_group_size, get_rank


class Layer:
    def __init__(self, root):
        self.root = root

    def construct(self, x):
        total, _ = comm_func.all_reduce(x)
        total, nothing = comm_func.all_reduce(total, "prod")
        rows = comm_func.all_gather_into_tensor(comm_func.all_reduce(x * 2)[0])[0]
        several = [comm_func.all_reduce(x + n)[0] for n in range(2)]
        part = comm_func.reduce_scatter_tensor(rows)[0] if nothing is None else total
        small, _ = comm_func.reduce_scatter_tensor(rows, op="min")
        only = comm_func.reduce(x, self.root) + comm_func.broadcast(x, self.root)
        given = comm_func.scatter_tensor(rows, 1)
        swapped, _ = comm_func.all_to_all_single_with_output_shape(rows.shape, rows)
        return torch.cat([total, rows, *several, part, small, only, given, swapped])

    def left(self, x):
        result, handle = comm_func.all_reduce(x, async_op=True)
        handle.wait()
        return result + comm_func.scatter_tensor(torch.cat([x] * get_group_size()))


class Left:
    """Torch has no function with a gradient for these."""

    def construct(self, x):
        result, handle = comm_func.all_reduce(x, async_op=True)
        handle.wait()
        smallest = comm_func.reduce(x, 0, "min")
        return torch.cat([result, smallest])


def helper(x):
    return comm_func.all_reduce(x)[0]


def main():
    x = torch.ones(2) * (get_rank() + 1)
    layer = Layer(1)
    return torch.cat([layer.construct(x), layer.left(x), Left().construct(x), helper(x)]).tolist()
