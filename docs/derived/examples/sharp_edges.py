"""What goes wrong easily, and how it is right: `NAME_wrong` and `NAME_right`."""

import numpy as np

import unisono
import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func


def lost_result_wrong(rank):
    x = np.full(2, rank)
    comm_func.all_reduce(x)
    print(x)


def lost_result_right(rank):
    x = np.full(2, rank)
    x, _ = comm_func.all_reduce(x)
    print(x)


def second_name_wrong(rank):
    x = np.full(2, rank)
    saved = {"weight": x}
    x, _ = comm_func.all_reduce(x)
    print(saved["weight"])


def second_name_right(rank):
    x = np.full(2, rank)
    saved = {"weight": x}
    saved["weight"][:], _ = comm_func.all_reduce(x)
    print(saved["weight"])


def copy_wrong(rank):
    x = np.full(3, rank)
    dist.all_reduce(x[[0, 2]])  # an index by a list makes a copy
    print(x)


def copy_right(rank):
    x = np.full(3, rank)
    dist.all_reduce(x[::2])  # a slice is a view
    print(x)


def early_look_wrong(rank):
    x = np.full(2, rank)
    work = dist.all_reduce(x, async_op=True)
    early = x.copy()  # old, new or a mixture
    work.wait()
    print(early.shape, "but its values mean nothing")


def early_look_right(rank):
    x = np.full(2, rank)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    print(x.copy())


def some_ranks_wrong(rank):
    x = np.ones(2)
    try:
        if rank == 0:  # the others do not come
            dist.all_reduce(x)
    except unisono.PeerLost as error:
        print(type(error).__name__)


def some_ranks_right(rank):
    x = np.ones(2)
    dist.all_reduce(x)
    if rank == 0:
        print(x)


def group_ranks_wrong(rank):
    pair = dist.new_group([2, 3])
    if rank >= 2:
        try:
            dist.broadcast(np.ones(2), src=0, group=pair)
        except ValueError as error:
            print(error)


def group_ranks_right(rank):
    pair = dist.new_group([2, 3])
    if rank >= 2:
        x = np.full(2, rank)
        dist.broadcast(x, src=2, group=pair)  # or group_src=0
        print(x)


def small_integers_wrong(rank):
    x = np.full(1, 100, np.int8)
    dist.all_reduce(x)  # 400 does not fit: it wraps around
    print(x)


def small_integers_right(rank):
    x = np.full(1, 100, np.int8).astype(np.int32)
    dist.all_reduce(x)
    print(x)


def sum_or_mean_wrong(rank):
    gradient = np.full(2, 1.0)
    dist.all_reduce(gradient)  # four times as large as on one rank
    print(gradient)


def sum_or_mean_right(rank):
    gradient = np.full(2, 1.0)
    dist.all_reduce(gradient, dist.ReduceOp.AVG)
    print(gradient)
