"""Examples of barrier."""

import datetime
import time

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint

WITHOUT = {"barrier.no-breakpoint": "terminal"}


def example_torch(rank):
    time.sleep(0.01 * rank)
    dist.barrier()
    print("all have arrived")


def example_mindspore(rank):
    time.sleep(0.01 * rank)
    comm_func.barrier()
    print("all have arrived")


def no_async_torch(rank):
    work = dist.barrier(async_op=True)
    work.wait()
    print("all have arrived")


def no_async_mindspore(rank):
    work = mint.barrier(async_op=True)
    work.wait()
    print("all have arrived")


def device_ids_torch(rank):
    print(dist.barrier(device_ids=[rank]))


def device_ids_mindspore(rank):
    print(mint.barrier(device_ids=[rank]))


def no_timeout_torch(rank):
    limit = datetime.timedelta(seconds=20)
    print(dist.barrier(timeout=limit))


def no_timeout_mindspore(rank):
    # UNISONO_TIMEOUT=20 is the limit of every call.
    print(comm_func.barrier())


def returns_none_torch(rank):
    print(dist.barrier())


def returns_none_mindspore(rank):
    print(comm_func.barrier())


def no_monitored_torch(rank):
    if rank == 2:
        time.sleep(2)
    else:
        limit = datetime.timedelta(seconds=1)
        try:
            dist.monitored_barrier(timeout=limit)
        except RuntimeError as error:
            print(type(error).__name__, error.ranks)


def no_monitored_mindspore(rank):
    # This job has UNISONO_TIMEOUT=1.
    if rank == 2:
        time.sleep(2)
    else:
        try:
            comm_func.barrier()
        except RuntimeError as error:
            print(type(error).__name__, error.ranks)
