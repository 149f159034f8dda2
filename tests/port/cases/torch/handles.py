"""Handles: the result is there after the wait."""
import torch
import torch.distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    fresh = torch.ones(2) * rank
    work = dist.all_reduce(fresh, async_op=True)
    work.wait()
    box = {"a": torch.ones(2) * rank}
    handle = dist.all_reduce(box["a"], async_op=True)
    other = rank + 1
    handle.wait()  # now it is there
    buckets, at = [torch.ones(1) * rank, torch.zeros(1)], 0
    started = dist.all_reduce(buckets[at], async_op=True)
    at += 1
    started.wait()
    waited = torch.ones(1) * rank
    dist.all_reduce(waited, async_op=True).wait()
    parts = [torch.zeros(1) for _ in range(size)]
    pending = dist.all_gather(parts, torch.ones(1) * rank, async_op=True)
    pending.wait()
    message = torch.ones(1) * rank
    if rank == 0:
        dist.send(message, dst=1)
    elif rank == 1:
        dist.recv(message, src=0)
    if rank == 1:
        sent = dist.isend(message + 5, 0)
        sent.wait()
    if rank == 0:
        arriving = torch.zeros(1)
        request = dist.irecv(arriving, 1)
        request.wait()
        message = arriving
    return fresh.tolist() + box["a"].tolist() + waited.tolist() + torch.cat(parts).tolist() + message.tolist() + [other] + torch.cat(buckets).tolist()
