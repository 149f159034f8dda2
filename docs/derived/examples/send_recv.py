"""Examples of send and recv."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore.communication import comm_func


def example_torch(rank):
    x, y = np.arange(4) + 10 * rank, np.empty(4, int)
    work = dist.isend(x, (rank + 1) % 4)
    dist.recv(y, (rank - 1) % 4)
    work.wait()
    print(y)


def example_mindspore(rank):
    x = np.arange(4) + 10 * rank
    work = comm_func.isend(x, (rank + 1) % 4)
    y = comm_func.recv(np.empty_like(x), (rank - 1) % 4)
    work.wait()
    print(y)


def template_torch(rank):
    x = np.full(2, rank)
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        sender = dist.recv(x, src=0)
        print(sender, x)


def template_mindspore(rank):
    x = np.full(2, rank)
    if rank == 0:
        comm_func.send(x, dst=1)
    elif rank == 1:
        y = comm_func.recv(x, src=0)
        print(x, y)


def any_source_torch(rank):
    x = np.full(2, rank)
    if rank == 3:
        dist.send(x, dst=1)
    elif rank == 1:
        print(dist.recv(x), x)  # from the rank that sends first


def any_source_mindspore(rank):
    x = np.full(2, rank)
    if rank == 3:
        comm_func.send(x, dst=1)
    elif rank == 1:
        print(comm_func.recv(x, src=3))  # without src: 0


def tag_torch(rank):
    x = np.full(2, rank)
    if rank == 0:
        dist.isend(np.full(2, 5), dst=1, tag=5)
        dist.isend(np.full(2, 6), dst=1, tag=6)
    elif rank == 1:
        dist.recv(x, src=0, tag=6)
        print(x)


def tag_mindspore(rank):
    x = np.full(2, rank)
    if rank == 0:
        comm_func.isend(np.full(2, 5), dst=1, tag=5)
        comm_func.isend(np.full(2, 6), dst=1, tag=6)
    elif rank == 1:
        print(comm_func.recv(x, src=0, tag=6))


def since_2_4_torch(rank):
    x = np.full(2, rank)
    if rank == 0:
        dist.isend(x, dst=1).wait()
    elif rank == 1:
        dist.irecv(x, src=0).wait()
        print(x)


def since_2_4_mindspore(rank):
    x = np.full(2, rank)
    if rank == 0:
        comm_func.isend(x, dst=1).wait()
    elif rank == 1:
        y, handle = comm_func.irecv(x, src=0)
        handle.wait()
        print(y)


def bad_group_torch(rank):
    pair = dist.new_group([0, 1])
    x = np.full(2, rank)
    if rank == 0:
        dist.send(x, dst=1, group=pair)
    elif rank == 1:
        print(dist.recv(x, src=0, group=pair))


def bad_group_mindspore(rank):
    x = np.full(2, rank)
    try:
        comm_func.recv(x, src=0, group="pair")
    except KeyError as error:
        print(isinstance(error, ValueError), error.args[0])


def op_name_torch(rank):
    x, y = np.full(2, rank), np.empty(2, int)
    send = dist.P2POp(dist.isend, x, (rank + 1) % 4)
    receive = dist.P2POp(dist.irecv, y, (rank - 1) % 4)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    print(y)


def op_name_mindspore(rank):
    x = np.full(2, rank)
    send = comm_func.P2POp("isend", x, (rank + 1) % 4)
    receive = comm_func.P2POp("irecv", np.empty_like(x), (rank - 1) % 4)
    print(comm_func.batch_isend_irecv([send, receive])[1])


def batch_torch(rank):
    x, y = np.full(2, rank), np.empty(2, int)
    send = dist.P2POp(dist.isend, x, (rank + 1) % 4)
    receive = dist.P2POp(dist.irecv, y, (rank - 1) % 4)
    works = dist.batch_isend_irecv([send, receive])
    for work in works:
        work.wait()
    print(len(works), y)


def batch_mindspore(rank):
    x, y = np.full(2, rank), np.zeros(2, int)
    send = comm_func.P2POp("isend", x, (rank + 1) % 4)
    receive = comm_func.P2POp("irecv", y, (rank - 1) % 4)
    results = comm_func.batch_isend_irecv([send, receive])
    print(y, results[1])


def empty_batch_torch(rank):
    print(dist.batch_isend_irecv([]))


def empty_batch_mindspore(rank):
    try:
        comm_func.batch_isend_irecv([])
    except TypeError as error:
        print(error)


def type_errors_torch(rank):
    try:
        dist.irecv("x", 0)
    except TypeError as error:
        print(error)


def type_errors_mindspore(rank):
    try:
        comm_func.irecv("x", 0)
    except TypeError as error:
        print(error)
