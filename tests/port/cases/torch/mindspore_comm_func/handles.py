"""Handles: the result is there after the wait."""
import torch
import mindspore.communication as comm
from mindspore.communication import comm_func


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    fresh = torch.ones(2) * rank
    fresh, work = comm_func.all_reduce(fresh, async_op=True)
    work.wait()
    box = {"a": torch.ones(2) * rank}
    result, handle = comm_func.all_reduce(box["a"], async_op=True)
    other = rank + 1
    handle.wait()  # now it is there
    box["a"][...] = result
    buckets, at = [torch.ones(1) * rank, torch.zeros(1)], 0
    tensor = buckets[at]
    result_2, started = comm_func.all_reduce(buckets[at], async_op=True)
    at += 1
    started.wait()
    tensor[...] = result_2
    waited = torch.ones(1) * rank
    result_3, handle_2 = comm_func.all_reduce(waited, async_op=True)
    handle_2.wait()
    waited[...] = result_3
    parts = [torch.zeros(1) for _ in range(size)]
    result_4, pending = comm_func.all_gather_into_tensor(torch.ones(1) * rank, async_op=True)
    pending.wait()
    for part, piece in zip(parts, result_4.chunk(len(parts))):
        part[...] = piece
    message = torch.ones(1) * rank
    if rank == 0:
        comm_func.send(message, dst=1)
    elif rank == 1:
        message[...] = comm_func.recv(message, src=0)
    if rank == 1:
        sent = comm_func.isend(message + 5, 0)
        sent.wait()
    if rank == 0:
        arriving = torch.zeros(1)
        arriving, request = comm_func.irecv(arriving, 1)
        request.wait()
        message = arriving
    return fresh.tolist() + box["a"].tolist() + waited.tolist() + torch.cat(parts).tolist() + message.tolist() + [other] + torch.cat(buckets).tolist()
