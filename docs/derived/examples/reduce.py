"""Examples of reduce."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint

#: These need torch or MindSpore: their output is in recorded.json.
RECORDED = {"reduce.gradient-operators"}


def example_torch(rank):
    x = np.arange(4) + 10 * rank
    dist.reduce(x, dst=1)
    if rank == 1:
        print(x)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    y = comm_func.reduce(x, dst=1)
    if rank == 1:
        print(y)


def no_async_torch(rank):
    x = np.full(2, rank)
    work = dist.reduce(x, dst=1, async_op=True)
    work.wait()
    print(x)


def no_async_mindspore(rank):
    x = np.full(2, rank)
    work = mint.reduce(x, 1, async_op=True)
    work.wait()
    print(x)


def placeholder_torch(rank):
    x = np.full(2, rank)
    dist.reduce(x, dst=1)
    print(x)


def placeholder_mindspore(rank):
    x = np.full(2, rank)
    y = comm_func.reduce(x, dst=1)
    print(x, y)


def dst_in_group_torch(rank):
    pair = dist.new_group([2, 3])
    if rank in (2, 3):
        x = np.full(2, rank)
        dist.reduce(x, dst=3, group=pair)
        print(x)


def dst_in_group_mindspore(rank):
    if rank in (2, 3):
        comm.create_group("pair", [2, 3])
        x = np.full(2, rank)
        print(comm_func.reduce(x, dst=3, group="pair"))


def gradient_operators_torch(rank):
    import torch

    from unisono.torch.distributed.nn import functional

    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        x = torch.tensor([rank + 1.0], requires_grad=True)
        functional.reduce(x, dst=1, op=op).sum().backward()
        print(op, x.grad.tolist())


def gradient_operators_mindspore(rank):
    import mindspore as ms

    def loss(x, op):
        return comm_func.reduce(x, 1, op).sum()

    for op in ("avg", "max", "prod"):
        print(op, ms.grad(loss)(ms.Tensor([rank + 1.0]), op))
