"""mint has torch's shape: only names, operators and groups change."""
import torch
from unisono.mindspore.mint import distributed as dist


def main():
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([0, 1])
    value = torch.ones(2) * rank
    dist.all_reduce(value, op="max")
    if rank < 2:
        dist.all_reduce(value, group=group)
    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(parts, value)
    handle = dist.broadcast(value, 0, async_op=True)
    handle.wait()
    dist.reduce(value, 0)
    got = torch.zeros(2)
    messages = [dist.P2POp("isend", value, (rank + 1) % size)]
    messages.append(dist.P2POp(dist.irecv, got, (rank - 1) % size))
    for request in dist.batch_isend_irecv(messages):
        request.wait()
    value += got
    return torch.cat([value, *parts]).tolist() if rank == 0 else torch.cat(parts).tolist()
