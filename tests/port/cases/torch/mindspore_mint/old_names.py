"""Names that torch has given up, or found last: all mean the calls that the others know."""
import torch
import mindspore.mint.distributed as dist


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0) + 10 * rank
    whole = torch.empty(2 * size)
    dist.all_gather_into_tensor(whole, mine)
    total = torch.empty(2)
    dist.reduce_scatter_tensor(total, whole)
    again = torch.empty(2 * size)
    work = dist.all_gather_into_tensor(again, mine, async_op=True)
    work.wait()
    largest = torch.empty(2)
    dist.reduce_scatter_tensor(largest, again, op="max")
    joined = torch.empty(2 * size)
    dist.all_gather_into_tensor(joined, total)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, joined)
    return whole.tolist() + total.tolist() + again.tolist() + largest.tolist() + part.tolist()
