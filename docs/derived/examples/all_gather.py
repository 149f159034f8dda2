"""Examples of all_gather."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint


def example_torch(rank):
    x = np.array([10 * rank])
    parts = [np.empty_like(x) for _ in range(4)]
    dist.all_gather(parts, x)
    print(np.concatenate(parts))


def example_mindspore(rank):
    x = np.array([10 * rank])
    y, _ = comm_func.all_gather_into_tensor(x)
    print(y)


def list_or_tensor_torch(rank):
    x = np.full((1, 2), rank)
    parts = [np.empty_like(x) for _ in range(4)]
    dist.all_gather(parts, x)
    print(len(parts), parts[2])


def list_or_tensor_mindspore(rank):
    x = np.full((1, 2), rank)
    y, _ = comm_func.all_gather_into_tensor(x)
    parts = np.split(y, 4)
    print(y.shape, parts[2])


def stacked_torch(rank):
    x = np.full(2, rank)
    stacked = np.empty((4, 2), int)
    dist.all_gather_into_tensor(stacked, x)
    print(stacked.tolist())


def stacked_mindspore(rank):
    x = np.full(2, rank)
    joined, _ = comm_func.all_gather_into_tensor(x)
    print(joined.reshape(4, 2).tolist())


def uneven_torch(rank):
    x = np.full(rank + 1, rank)
    parts = [np.empty(n + 1, int) for n in range(4)]
    dist.all_gather(parts, x)
    print(*parts)


def uneven_mindspore(rank):
    x = np.full(rank + 1, rank)
    y = np.empty(1 + 2 + 3 + 4, int)
    mint.all_gather_into_tensor_uneven(y, x, [1, 2, 3, 4])
    print(y)


def no_coalesced_torch(rank):
    inputs = [np.full(1, rank), np.full(2, -rank)]
    outputs = [[np.empty_like(x) for x in inputs] for _ in range(4)]
    dist.all_gather_coalesced(outputs, inputs)
    print(*outputs[3])


def no_coalesced_mindspore(rank):
    inputs = [np.full(1, rank), np.full(2, -rank)]
    outputs = [comm_func.all_gather_into_tensor(x)[0] for x in inputs]
    print(*outputs)
