"""Names that torch has given up, or found last: all mean the calls that the others know."""
import torch
import torch.distributed as dist
from torch.distributed import _all_gather_base, _reduce_scatter_base


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(2.0) + 10 * rank
    whole = torch.empty(2 * size)
    dist._all_gather_base(whole, mine)
    total = torch.empty(2)
    dist._reduce_scatter_base(total, whole)
    again = torch.empty(2 * size)
    work = _all_gather_base(again, mine, async_op=True)
    work.wait()
    largest = torch.empty(2)
    _reduce_scatter_base(largest, again, op=dist.ReduceOp.MAX)
    joined = torch.empty(2 * size)
    dist.all_gather_single(joined, total)
    part = torch.empty(2)
    dist.reduce_scatter_single(part, joined)
    return whole.tolist() + total.tolist() + again.tolist() + largest.tolist() + part.tolist()
