"""Examples of scatter."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint


def example_torch(rank):
    y = np.empty(1, int)
    parts = [np.array([10 + i]) for i in range(4)] if rank == 1 else None
    dist.scatter(y, parts, src=1)
    print(y)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    y = comm_func.scatter_tensor(x, src=1)
    print(y)


def list_or_tensor_torch(rank):
    tensor = np.empty(2, int)  # one part, to be filled
    parts = [np.full(2, i) for i in range(4)] if rank == 1 else None
    dist.scatter(tensor, parts, src=1)
    print(tensor)


def list_or_tensor_mindspore(rank):
    tensor = np.repeat([0, 1, 2, 3], 2)  # the whole, to be divided
    print(comm_func.scatter_tensor(tensor, src=1))


def full_shape_everywhere_torch(rank):
    tensor = np.empty(1, int)
    parts = [np.full(1, i) for i in range(4)] if rank == 1 else None
    dist.scatter(tensor, parts, src=1)
    print(tensor)


def full_shape_everywhere_mindspore(rank):
    tensor = np.arange(4) if rank == 1 else np.empty(4, int)
    print(comm_func.scatter_tensor(tensor, src=1))


def no_async_torch(rank):
    tensor = np.empty(1, int)
    parts = [np.full(1, i) for i in range(4)] if rank == 1 else None
    work = dist.scatter(tensor, parts, src=1, async_op=True)
    work.wait()
    print(tensor)


def no_async_mindspore(rank):
    tensor = np.empty(1, int)
    parts = [np.full(1, i) for i in range(4)]
    work = mint.scatter(tensor, parts, src=1, async_op=True)
    work.wait()
    print(tensor)
