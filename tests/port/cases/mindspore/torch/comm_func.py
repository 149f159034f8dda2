"""comm_func returns new tensors, and its arguments stay as they were."""
import torch
import torch.distributed as dist


def main():
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(2) * rank
    total = value.clone()
    dist.all_reduce(total)
    largest = value.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    value = value.clone()
    dist.all_reduce(value, op=dist.ReduceOp.PRODUCT)
    kept = total
    total = total.clone()
    handle = dist.all_reduce(total, async_op=True)
    handle.wait()
    everyone = largest.new_empty((dist.get_world_size(), *largest.shape)).reshape(-1, *largest.shape[1:])
    dist.all_gather_into_tensor(everyone, largest)
    result = everyone.new_empty((dist.get_world_size(), *everyone.shape)).reshape(-1, *everyone.shape[1:])
    dist.all_gather_into_tensor(result, everyone)
    everyone = result
    tensor = torch.arange(2.0 * size)
    part = tensor.new_empty((tensor.shape[0] // dist.get_world_size(), *tensor.shape[1:]))
    dist.reduce_scatter_tensor(part, tensor)
    numbers = torch.arange(2.0 * size) + rank
    part = numbers.new_empty((numbers.shape[0] // dist.get_world_size(), *numbers.shape[1:]))
    dist.reduce_scatter_tensor(part, numbers)
    copied = part.clone()
    dist.broadcast(copied, src=0)
    reduced = part.clone()
    dist.reduce(reduced, 1)
    if dist.get_rank() != 1:
        reduced.zero_()
    tensor_2 = torch.arange(float(size)) * rank
    swapped = tensor_2.new_empty((size,))
    dist.all_to_all_single(swapped, tensor_2)
    pieces = torch.arange(float(size)) + 10 * rank
    swapped = pieces.new_empty((size,))
    dist.all_to_all_single(swapped, pieces)
    several = list(pieces.chunk(size))
    received = tuple(several[0].new_empty(part_2) for part_2 in [(1,)] * size)
    dist.all_to_all(list(received), several)
    dist.barrier()
    tensors = [value, total, kept, largest, everyone, part, copied, reduced, swapped, *received]
    return torch.cat(tensors).tolist()
