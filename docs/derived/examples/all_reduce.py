"""Examples of all_reduce."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops import communication

#: These need torch or MindSpore: their output is in recorded.json.
RECORDED = {"all_reduce.gradient-in-place", "all_reduce.gradient-operators"}


def example_torch(rank):
    x = np.arange(4) + 10 * rank
    dist.all_reduce(x)
    print(x)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    y, _ = comm_func.all_reduce(x)
    print(y)


def no_coalesced_torch(rank):
    a, b = np.full(2, rank), np.full(3, 1)
    dist.all_reduce_coalesced([a, b])
    print(a, b)


def no_coalesced_mindspore(rank):
    a, b = np.full(2, rank), np.full(3, 1)
    a, _ = comm_func.all_reduce(a)
    b, _ = comm_func.all_reduce(b)
    print(a, b)


def successor_in_place_torch(rank):
    x = np.full(2, rank)
    returned = dist.all_reduce(x)
    print(returned, x)


def successor_in_place_mindspore(rank):
    x = np.full(2, rank)
    returned = communication.all_reduce(x)
    print(returned, x)


def complex_product_torch(rank):
    x = np.full(1, 1 + 1j)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    print(x)


def complex_product_mindspore(rank):
    x = np.full(1, 1 + 1j)
    y, _ = comm_func.all_reduce(x, "prod")
    print(y)


def coalesced_handle_torch(rank):
    a, b = np.full(2, rank), np.full(3, 1)
    work = dist.all_reduce_coalesced([a, b], async_op=True)
    work.wait()
    print(work.is_completed(), a, b)


def coalesced_handle_mindspore(rank):
    a, b = np.full(2, rank), np.full(3, 1)
    a, first = comm_func.all_reduce(a, async_op=True)
    b, second = comm_func.all_reduce(b, async_op=True)
    first.wait()
    second.wait()
    print(a, b)


def gradient_in_place_torch(rank):
    from warnings import catch_warnings

    import torch

    x = torch.ones(1, requires_grad=True)
    y = x * (rank + 1)
    dist.all_reduce(y)
    with catch_warnings(record=True) as found:
        y.sum().backward()  # without the call
    print(y.tolist(), x.grad.tolist())
    print("warnings:", len(found))


def gradient_in_place_mindspore(rank):
    import mindspore as ms

    def loss(x):
        y, _ = comm_func.all_reduce(x * (rank + 1))
        return y.sum()

    x = ms.Tensor([1.0])
    y, gradient = ms.value_and_grad(loss)(x)
    print(y, gradient)  # of all ranks' losses


def gradient_operators_torch(rank):
    import torch

    from unisono.torch.distributed.nn import functional

    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        x = torch.tensor([rank + 1.0], requires_grad=True)
        functional.all_reduce(x, op).sum().backward()
        print(op, x.grad.tolist())


def gradient_operators_mindspore(rank):
    import mindspore as ms

    def loss(x, op):
        return comm_func.all_reduce(x, op)[0].sum()

    for op in ("avg", "max", "prod"):
        print(op, ms.grad(loss)(ms.Tensor([rank + 1.0]), op))
