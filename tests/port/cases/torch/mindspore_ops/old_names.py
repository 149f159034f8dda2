"""Names that torch has given up, or found last: all mean the calls that the others know."""
import torch
import mindspore.communication as comm
from mindspore import ops
from torch.distributed import _all_gather_base


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    mine = torch.arange(2.0) + 10 * rank
    whole = torch.empty(2 * size)
    whole[...] = ops.AllGather()(mine).reshape(whole.shape)
    total = torch.empty(2)
    total[...] = ops.ReduceScatter()(whole).reshape(total.shape)
    again = torch.empty(2 * size)
    # unisono port: left as it is: primitives have no async_op; comm_func and mint have it
    work = _all_gather_base(again, mine, async_op=True)
    work.wait()
    largest = torch.empty(2)
    largest[...] = ops.ReduceScatter("max")(again).reshape(largest.shape)
    joined = torch.empty(2 * size)
    joined[...] = ops.AllGather()(total).reshape(joined.shape)
    part = torch.empty(2)
    part[...] = ops.ReduceScatter()(joined).reshape(part.shape)
    return whole.tolist() + total.tolist() + again.tolist() + largest.tolist() + part.tolist()
