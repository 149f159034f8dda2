"""Examples of gather."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint


def example_torch(rank):
    x = np.array([10 * rank])
    parts = [np.empty_like(x) for _ in range(4)] if rank == 1 else None
    dist.gather(x, parts, dst=1)
    if rank == 1:
        print(np.concatenate(parts))


def example_mindspore(rank):
    x = np.array([10 * rank])
    y = comm_func.gather_into_tensor(x, dst=1)
    if rank == 1:
        print(y)


def list_or_tensor_torch(rank):
    x = np.full((1, 2), rank)
    parts = [np.empty_like(x) for _ in range(4)] if rank == 1 else None
    dist.gather(x, parts, dst=1)
    if rank == 1:
        print(*parts)


def list_or_tensor_mindspore(rank):
    x = np.full((1, 2), rank)
    y = comm_func.gather_into_tensor(x, dst=1)
    if rank == 1:
        print(*np.split(y, 4))


def placeholder_torch(rank):
    x = np.full(2, rank)
    parts = [np.empty_like(x) for _ in range(4)] if rank == 1 else None
    dist.gather(x, parts, dst=1)
    print(parts and np.concatenate(parts))


def placeholder_mindspore(rank):
    x = np.full(2, rank)
    y = comm_func.gather_into_tensor(x, dst=1)
    print(y)


def no_async_torch(rank):
    x = np.full(1, rank)
    parts = [np.empty_like(x) for _ in range(4)] if rank == 1 else None
    work = dist.gather(x, parts, dst=1, async_op=True)
    work.wait()
    print(parts)


def no_async_mindspore(rank):
    x = np.full(1, rank)
    parts = [np.zeros_like(x) for _ in range(4)]
    work = mint.gather(x, parts, dst=1, async_op=True)
    work.wait()
    print(parts if rank == 1 else None)


def list_everywhere_torch(rank):
    x = np.full(1, rank)
    parts = [np.empty_like(x) for _ in range(4)] if rank == 1 else None
    dist.gather(x, parts, dst=1)
    print(parts)


def list_everywhere_mindspore(rank):
    x = np.full(1, rank)
    parts = [np.zeros_like(x) for _ in range(4)]
    mint.gather(x, parts, dst=1)
    print(parts)
