"""One layer for each collective that has a gradient, as MindSpore writes them."""

from mindspore import nn
from torch.distributed.nn import functional
import torch
import math
import torch.distributed as dist


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return functional.all_reduce(x) / dist.get_world_size() + functional.all_reduce(x * x)


class Largest(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return torch.stack(functional.all_gather(x)).amax(0)


class Smallest(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return torch.stack(functional.all_gather(x * 2)).amin(0)


class Product(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return math.prod(functional.all_gather(x))


class Gathered(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return torch.cat(torch.atleast_1d(functional.all_gather(x))) + torch.cat(torch.atleast_1d(functional.all_gather(x.sum()))).sum()


class Scattered(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        parts = functional.reduce_scatter(torch.empty_like(x.chunk(dist.get_world_size())[0]), x.chunk(dist.get_world_size()))
        tensor = x * x
        result = functional.reduce_scatter(torch.empty_like(tensor.chunk(dist.get_world_size())[0]), tensor.chunk(dist.get_world_size()))
        return parts * result


class OnRoot(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        result_2 = functional.reduce(x, dst=1)
        if dist.get_rank() != 1:
            result_2.zero_()
        return result_2 + x


class Copied(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        result_3 = x.clone()
        dist.broadcast(result_3, src=1)
        return result_3 * x


class Divided(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        return functional.scatter(x.chunk(dist.get_world_size()), src=1)


class Exchanged(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        y = functional.all_to_all_single(torch.empty_like(x), x)
        tensor_2 = y * x
        result_4 = functional.all_to_all_single(tensor_2.new_empty(sum([2, 2])), tensor_2, output_split_sizes=[2, 2], input_split_sizes=[2, 2])
        return y + result_4


class Nested(Sum):
    def __init__(self):
        super().__init__()

    def construct(self, x):
        tensor_3 = functional.all_reduce(x) * x
        x = functional.all_to_all_single(torch.empty_like(tensor_3), tensor_3)
        result_5 = functional.reduce(functional.all_reduce(x * 2), dst=0)
        if dist.get_rank() != 0:
            result_5.zero_()
        result_6 = result_5 + functional.all_reduce(x)
        dist.broadcast(result_6, src=0)
        return result_6


class Functions(Sum):
    """The functions of comm_func have the same gradients."""

    def construct(self, x):
        y = functional.all_reduce(x)
        y = y + torch.stack(functional.all_gather(x * x)).amax(0)
        part = functional.reduce_scatter(torch.empty_like(y.chunk(dist.get_world_size())[0]), y.chunk(dist.get_world_size()))
        handle = None
        y = y * torch.cat(torch.atleast_1d(functional.all_gather(torch.cat(torch.atleast_1d(functional.all_gather(part[:1]))))))
        result_7 = functional.reduce(x, 0)
        if dist.get_rank() != 0:
            result_7.zero_()
        result_8 = x.clone()
        dist.broadcast(result_8, 1)
        y = y + result_7 + result_8
        y = y * functional.all_to_all_single(y.new_empty((4,)), y)
        tensor_4 = list(y.chunk(2))
        pieces = functional.all_to_all([tensor_4[0].new_empty(part_2) for part_2 in [(2,), (2,)]], tensor_4)
        assert handle is None
        return pieces[0] * pieces[1]


LAYERS = [
    Sum, Largest, Smallest, Product, Gathered, Scattered, OnRoot, Copied, Divided, Exchanged,
    Nested, Functions,
]  # fmt: skip
OPERANDS = [[1.0, 5.0, 2.0, 8.0], [4.0, 3.0, 7.0, 6.0]]
