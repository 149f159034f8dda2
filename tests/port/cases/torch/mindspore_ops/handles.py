"""Handles: the result is there after the wait."""
import torch
import torch.distributed as dist
import mindspore.communication as comm
from mindspore import ops


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    fresh = torch.ones(2) * rank
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    work = dist.all_reduce(fresh, async_op=True)
    work.wait()
    box = {"a": torch.ones(2) * rank}
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    handle = dist.all_reduce(box["a"], async_op=True)
    other = rank + 1
    handle.wait()  # now it is there
    buckets, at = [torch.ones(1) * rank, torch.zeros(1)], 0
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    started = dist.all_reduce(buckets[at], async_op=True)
    at += 1
    started.wait()
    waited = torch.ones(1) * rank
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    dist.all_reduce(waited, async_op=True).wait()
    parts = [torch.zeros(1) for _ in range(size)]
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    pending = dist.all_gather(parts, torch.ones(1) * rank, async_op=True)
    pending.wait()
    message = torch.ones(1) * rank
    if rank == 0:
        ops.Send(0, 1)(message)
    elif rank == 1:
        message[...] = ops.Receive(0, 0, message.shape, message.dtype)()
    if rank == 1:
        # unisono port: left as it is: MindSpore has no primitive for isend; comm_func and mint have a call
        sent = dist.isend(message + 5, 0)
        sent.wait()
    if rank == 0:
        arriving = torch.zeros(1)
        # unisono port: left as it is: MindSpore has no primitive for irecv; comm_func and mint have a call
        request = dist.irecv(arriving, 1)
        request.wait()
        message = arriving
    return fresh.tolist() + box["a"].tolist() + waited.tolist() + torch.cat(parts).tolist() + message.tolist() + [other] + torch.cat(buckets).tolist()
