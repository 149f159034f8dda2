"""Examples of starting, ranks and groups, and of differences that many collectives share."""

import asyncio
import os
import warnings

import numpy as np

import unisono
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication

#: These need torch or MindSpore: their output is in recorded.json.
RECORDED = {"groups.gradients", "groups.no-gradient"}
#: These are programs of their own, one process without a launcher.
ALONE = {"groups.alone", "groups.backends", "groups.before-init", "groups.start"}


def alone_torch(rank):
    dist.init_process_group()
    print(dist.get_rank(), dist.get_world_size())


def alone_mindspore(rank):
    comm.init()
    print(comm.get_rank(), comm.get_group_size())


def backends_torch(rank):
    dist.init_process_group("nccl")
    print(dist.get_backend())


def backends_mindspore(rank):
    comm.init("hccl")
    print(dist.get_backend())


def before_init_torch(rank):
    try:
        dist.get_rank()
    except ValueError as error:
        print(str(error).partition(";")[0])


def before_init_mindspore(rank):
    print(comm.get_rank(), comm.get_group_size())


def start_torch(rank):
    dist.init_process_group(rank=0, world_size=1)
    print(dist.get_rank(), dist.get_world_size())


def start_mindspore(rank):
    os.environ.update(RANK="0", WORLD_SIZE="1")  # as a launcher does
    comm.init()
    print(comm.get_rank(), comm.get_group_size())


def comm_name_torch(rank):
    print(hasattr(dist, "get_comm_name"))


def comm_name_mindspore(rank):
    print(repr(comm.get_comm_name("hccl_world_group")))


def switch_torch(rank):
    x = np.full(2, rank)
    print(dist.all_reduce(x), x)


def switch_mindspore(rank):
    x = np.full(2, rank)
    communication.set_comm_ops_inplace(False)
    y, _ = communication.all_reduce(x)
    print(x, y)


def no_question_torch(rank):
    print(dist.is_available(), dist.is_initialized())


def no_question_mindspore(rank):
    print(mint.is_initialized(), comm.GlobalComm.INITED)


def new_tensor_torch(rank):
    x = np.full(2, rank)
    dist.all_reduce(x)
    print(x)


def new_tensor_mindspore(rank):
    x = np.full(2, rank)
    comm_func.all_reduce(x)  # the result is lost
    y, _ = comm_func.all_reduce(x)
    print(x, y)


def tuple_or_handle_torch(rank):
    x = np.full(2, rank)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    print(x)


def tuple_or_handle_mindspore(rank):
    x = np.full(2, rank)
    y, handle = comm_func.all_reduce(x, async_op=True)
    handle.wait()
    print(y)


def handles_torch(rank):
    async def total():
        x = np.full(2, rank)
        await dist.all_reduce(x, async_op=True)
        return x

    print(asyncio.run(total()))


def handles_mindspore(rank):
    async def total():
        x = np.full(2, rank)
        y, handle = comm_func.all_reduce(x, async_op=True)
        await handle
        return y

    print(asyncio.run(total()))


def object_or_name_torch(rank):
    even = dist.new_group([0, 2])
    if rank in (0, 2):
        x = np.full(2, rank)
        dist.all_reduce(x, group=even)
        print(x)


def object_or_name_mindspore(rank):
    if rank in (0, 2):
        comm.create_group("even", [0, 2])
        x = np.full(2, rank)
        print(comm_func.all_reduce(x, group="even")[0])


def world_torch(rank):
    x = np.full(2, rank)
    dist.all_reduce(x, group=dist.group.WORLD)
    print(x)


def world_mindspore(rank):
    x = np.full(2, rank)
    for name in (None, "hccl_world_group", "nccl_world_group"):
        y, _ = comm_func.all_reduce(x, group=name)
    print(y)


def operators_torch(rank):
    x = np.full(2, rank + 1)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    print(x)


def operators_mindspore(rank):
    x = np.full(2, rank + 1)
    y, _ = comm_func.all_reduce(x, "prod")
    print(y)


def outside_torch(rank):
    pair = dist.new_group([0, 1])
    x = np.full(2, rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(dist.all_reduce(x, group=pair), x, dist.get_rank(pair))


def outside_mindspore(rank):
    if rank in (0, 1):
        comm.create_group("pair", [0, 1])
    x = np.full(2, rank)
    try:
        print(comm_func.all_reduce(x, group="pair")[0])
    except RuntimeError as error:
        print(type(error).__name__)


def members_only_torch(rank):
    pair = dist.new_group([0, 1])  # every rank calls it
    print(dist.get_rank(pair))


def members_only_mindspore(rank):
    try:
        comm.create_group("pair", [0, 1])  # only members may
        print(comm.get_rank("pair"))
    except RuntimeError as error:
        print(error)


def rank_order_torch(rank):
    pair = dist.new_group([3, 1])
    print(dist.get_rank(pair))


def rank_order_mindspore(rank):
    if rank in (3, 1):
        comm.create_group("pair", [3, 1])
        print(comm.get_rank("pair"))


def world_ranks_torch(rank):
    pair = dist.new_group([2, 3])
    if rank in (2, 3):
        x = np.full(2, rank)
        dist.broadcast(x, src=3, group=pair)
        print(x)


def world_ranks_mindspore(rank):
    if rank in (2, 3):
        comm.create_group("pair", [2, 3])
        x = np.full(2, rank)
        print(comm_func.broadcast(x, src=3, group="pair"))


def group_root_torch(rank):
    pair = dist.new_group([2, 3])
    if rank in (2, 3):
        x = np.full(2, rank)
        dist.broadcast(x, group_src=1, group=pair)
        print(x)


def group_root_mindspore(rank):
    if rank in (2, 3):
        comm.create_group("pair", [2, 3])
        src = comm.get_world_rank_from_group_rank("pair", 1)
        x = np.full(2, rank)
        print(comm_func.broadcast(x, src=src, group="pair"))


def init_twice_torch(rank):
    dist.init_process_group()
    try:
        dist.init_process_group()
    except ValueError as error:
        print(error)


def init_twice_mindspore(rank):
    comm.init()
    print(comm.init())


def release_torch(rank):
    every = dist.new_group([0, 1, 2, 3])
    dist.destroy_process_group(every)
    dist.destroy_process_group()
    print(dist.is_initialized())


def release_mindspore(rank):
    comm.create_group("every", [0, 1, 2, 3])
    comm.destroy_group("every")
    comm.release()
    print(comm.GlobalComm.INITED)


def local_rank_torch(rank):
    print(dist.get_node_local_rank(fallback_rank=rank))


def local_rank_mindspore(rank):
    print(comm.get_local_rank(), comm.get_local_rank_size())


def argument_order_torch(rank):
    pair = dist.new_group([2, 3])
    if rank == 2:
        print(dist.get_group_rank(pair, 3), dist.get_global_rank(pair, 1))


def argument_order_mindspore(rank):
    if rank in (2, 3):
        comm.create_group("pair", [2, 3])
        inside = comm.get_group_rank_from_world_rank(3, "pair")
        print(inside, comm.get_world_rank_from_group_rank("pair", 1))


def no_subgroups_torch(rank):
    mine, _ = dist.new_subgroups(2)
    print(dist.get_process_group_ranks(mine))


def no_subgroups_mindspore(rank):
    mine = [0, 1] if rank < 2 else [2, 3]
    comm.create_group(f"from {mine[0]}", mine)
    print(comm.get_process_group_ranks(f"from {mine[0]}"))


def backend_name_torch(rank):
    print(dist.get_backend())


def backend_name_mindspore(rank):
    print(mint.get_backend())


def shrink_by_itself_torch(rank):
    if rank == 3:
        return  # this rank ends
    dist.shrink_group([3])
    x = np.full(2, rank)
    dist.all_reduce(x)
    print(dist.get_world_size(), x)


def shrink_by_itself_mindspore(rank):
    if rank != 3:
        comm.create_group("without 3", [0, 1, 2])
        x = np.full(2, rank)
        print(comm_func.all_reduce(x, group="without 3")[0])


def split_anywhere_torch(rank):
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    x = np.full(2, rank)
    dist.all_reduce(x, group=half)
    print(x)


def split_anywhere_mindspore(rank):
    half = [0, 1] if rank < 2 else [2, 3]
    comm.create_group(f"from {half[0]}", half)
    x = np.full(2, rank)
    print(comm_func.all_reduce(x, group=f"from {half[0]}")[0])


def local_size_torch(rank):
    print(dist.get_world_size())


def local_size_mindspore(rank):
    print(comm.get_local_rank_size())


def gradients_torch(rank):
    import torch

    from unisono.torch.distributed.nn import functional

    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        x = torch.tensor([float(rank)], requires_grad=True)
        y = functional.broadcast(x, src=3, group=pair)
        y.sum().backward()  # the root adds both gradients up
        print(y.tolist(), x.grad.tolist())


def gradients_mindspore(rank):
    import mindspore as ms

    def loss(x):
        return comm_func.broadcast(x, 3, "pair").sum()

    if rank in (1, 3):
        comm.create_group("pair", [1, 3])
        y, gradient = ms.value_and_grad(loss)(ms.Tensor([float(rank)]))
        print(y, gradient)  # each rank keeps its own


def no_gradient_torch(rank):
    import torch

    x = torch.ones(1, requires_grad=True)
    parts = [torch.empty(1) for _ in range(4)]
    dist.all_gather(parts, x * rank)
    try:
        torch.cat(parts).sum().backward()
    except RuntimeError as error:
        print(str(error).splitlines()[0])


def no_gradient_mindspore(rank):
    import mindspore as ms

    def loss(x):
        parts = [ms.ops.zeros(1) for _ in range(4)]
        mint.all_gather(parts, x * rank)
        return ms.ops.cat(parts).sum()

    try:
        ms.grad(loss)(ms.Tensor([1.0]))
    except unisono.Unsupported as error:
        print(error)
