"""Examples of all_reduce."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops import communication

WITHOUT = {
    "all_reduce.gradient-in-place": "torch",
    "all_reduce.gradient-operators": "mindspore",
}


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
