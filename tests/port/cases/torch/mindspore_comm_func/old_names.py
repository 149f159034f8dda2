"""Names that torch has given up, or found last: all mean the calls that the others know."""
import torch
import mindspore.communication as comm
from mindspore.communication import comm_func


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    mine = torch.arange(2.0) + 10 * rank
    whole = torch.empty(2 * size)
    whole[...] = comm_func.all_gather_into_tensor(mine)[0].reshape(whole.shape)
    total = torch.empty(2)
    total[...] = comm_func.reduce_scatter_tensor(whole)[0].reshape(total.shape)
    again = torch.empty(2 * size)
    result, work = comm_func.all_gather_into_tensor(mine, async_op=True)
    work.wait()
    again[...] = result.reshape(again.shape)
    largest = torch.empty(2)
    largest[...] = comm_func.reduce_scatter_tensor(again, op="max")[0].reshape(largest.shape)
    joined = torch.empty(2 * size)
    joined[...] = comm_func.all_gather_into_tensor(total)[0].reshape(joined.shape)
    part = torch.empty(2)
    part[...] = comm_func.reduce_scatter_tensor(joined)[0].reshape(part.shape)
    return whole.tolist() + total.tolist() + again.tolist() + largest.tolist() + part.tolist()
