"""Examples of the collectives on objects."""

import unisono.torch.distributed as dist
from unisono.mindspore.mint import distributed as mint


def example_torch(rank):
    found = [None] * 4
    dist.all_gather_object(found, f"of {rank}")
    print(found)


def example_mindspore(rank):
    found = [None] * 4
    mint.all_gather_object(found, f"of {rank}")
    print(found)


def no_comm_func_torch(rank):
    objects = [{"rate": 0.1}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    print(objects)


def no_comm_func_mindspore(rank):
    objects = [{"rate": 0.1}] if rank == 0 else [None]
    mint.broadcast_object_list(objects, src=0)
    print(objects)


def pickle_torch(rank):
    found = [None] * 4
    dist.all_gather_object(found, "a" * rank)
    print(found)


def pickle_mindspore(rank):
    found = [None] * 4
    mint.all_gather_object(found, "a" * rank)
    print(found)


def sender_torch(rank):
    objects = [rank]
    if rank == 3:
        dist.send_object_list(objects, dst=1)
    elif rank == 1:
        print(dist.recv_object_list(objects, src=3), objects)


def sender_mindspore(rank):
    objects = [rank]
    if rank == 3:
        mint.send_object_list(objects, dst=1)
    elif rank == 1:
        print(mint.recv_object_list(objects, src=3), objects)


def any_source_torch(rank):
    objects = [rank]
    if rank == 3:
        dist.send_object_list(objects, dst=1)
    elif rank == 1:
        print(dist.recv_object_list(objects), objects)


def any_source_mindspore(rank):
    objects = [rank]
    if rank == 3:
        mint.send_object_list(objects, dst=1)
    elif rank == 1:
        print(mint.recv_object_list(objects, src=3), objects)
