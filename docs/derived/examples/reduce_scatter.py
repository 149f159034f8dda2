"""Examples of reduce_scatter."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint

WITHOUT = {"reduce_scatter.gradient-operators": "mindspore"}


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
