"""Examples of reduce_scatter."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint

#: These need torch or MindSpore: their output is in recorded.json.
RECORDED = {"reduce_scatter.gradient-operators"}


def example_torch(rank):
    inputs = [np.array([10 * rank + i]) for i in range(4)]
    y = np.empty(1, int)
    dist.reduce_scatter(y, inputs)
    print(y)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    y, _ = comm_func.reduce_scatter_tensor(x)
    print(y)


def list_or_tensor_torch(rank):
    inputs = [np.full(2, i) for i in range(4)]
    y = np.empty(2, int)
    dist.reduce_scatter(y, inputs)
    print(y)


def list_or_tensor_mindspore(rank):
    inputs = [np.full(2, i) for i in range(4)]
    y, _ = comm_func.reduce_scatter_tensor(np.concatenate(inputs))
    print(y)


def uneven_torch(rank):
    inputs = [np.full(i + 1, i) for i in range(4)]
    y = np.empty(rank + 1, int)
    dist.reduce_scatter(y, inputs)
    print(y)


def uneven_mindspore(rank):
    inputs = [np.full(i + 1, i) for i in range(4)]
    y = np.empty(rank + 1, int)
    x = np.concatenate(inputs)
    mint.reduce_scatter_tensor_uneven(y, x, [1, 2, 3, 4])
    print(y)


def gradient_operators_torch(rank):
    import torch

    from unisono.torch.distributed.nn import functional

    for op in (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        inputs = [torch.tensor([rank + 1.0], requires_grad=True) for _ in range(4)]
        functional.reduce_scatter(torch.empty(1), inputs, op).sum().backward()
        print(op, [x.grad.item() for x in inputs])


def gradient_operators_mindspore(rank):
    import mindspore as ms

    def loss(x, op):
        return comm_func.reduce_scatter_tensor(x, op)[0].sum()

    for op in ("avg", "max", "prod"):
        print(op, ms.grad(loss)(ms.Tensor([rank + 1.0] * 4), op))
