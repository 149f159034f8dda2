"""comm_func returns new tensors, and its arguments stay as they were."""
import torch
import mindspore.communication as comm
from mindspore import ops
from mindspore.communication import GlobalComm, comm_func, get_group_size
from mindspore.communication.management import get_rank


def main():
    comm.init()
    rank, size = get_rank(), get_group_size()
    value = torch.ones(2) * rank
    total, _ = comm_func.all_reduce(value)
    largest = comm_func.all_reduce(value, ops.ReduceOp.MAX)[0]
    value, _ = comm_func.all_reduce(value, op="prod", group=GlobalComm.WORLD_COMM_GROUP)
    kept = total
    total, handle = comm_func.all_reduce(total, async_op=True)
    handle.wait()
    everyone, _ = comm_func.all_gather_into_tensor(largest)
    everyone, _ = comm_func.all_gather_into_tensor(everyone)
    part, _ = comm_func.reduce_scatter_tensor(torch.arange(2.0 * size))
    numbers = torch.arange(2.0 * size) + rank
    part, _ = comm_func.reduce_scatter_tensor(numbers)
    copied = comm_func.broadcast(part)
    reduced = comm_func.reduce(part, 1)
    swapped, _ = comm_func.all_to_all_single_with_output_shape((size,), torch.arange(float(size)) * rank)
    pieces = torch.arange(float(size)) + 10 * rank
    swapped, _ = comm_func.all_to_all_single_with_output_shape((size,), pieces)
    several = list(pieces.chunk(size))
    received, _ = comm_func.all_to_all_with_output_shape([(1,)] * size, several)
    comm_func.barrier()
    tensors = [value, total, kept, largest, everyone, part, copied, reduced, swapped, *received]
    return torch.cat(tensors).tolist()
