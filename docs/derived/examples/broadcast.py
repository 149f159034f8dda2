"""Examples of broadcast."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint


def example_torch(rank):
    x = np.arange(4) + 10 * rank
    dist.broadcast(x, src=1)
    print(x)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    y = comm_func.broadcast(x, src=1)
    print(y)


def no_async_torch(rank):
    x = np.full(2, rank)
    work = dist.broadcast(x, src=1, async_op=True)
    work.wait()
    print(x)


def no_async_mindspore(rank):
    x = np.full(2, rank)
    work = mint.broadcast(x, 1, async_op=True)
    work.wait()
    print(x)


def template_torch(rank):
    x = np.full(2, rank)
    dist.broadcast(x, src=1)
    print(x)


def template_mindspore(rank):
    x = np.full(2, rank)
    y = comm_func.broadcast(x, src=1)
    print(x, y)


def tuple_torch(rank):
    a, b = np.full(1, rank), np.full(2, -rank)
    dist.broadcast(a, src=1)
    dist.broadcast(b, src=1)
    print(a, b)


def tuple_mindspore(rank):
    a, b = np.full(1, rank), np.full(2, -rank)
    copy = ops.Broadcast(1)
    a, b = copy((a, b))
    print(a, b)
