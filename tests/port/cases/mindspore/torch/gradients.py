"""A gradient passes through primitives, and through comm_func in a forward pass."""
import torch
from mindspore import ops
import torch.distributed as dist
from torch.distributed.nn import functional


class Layer:
    def __init__(self):
        self.first = ops.Broadcast(0)

    def construct(self, x):
        summed = functional.all_reduce(x * 2)
        rows = torch.cat(torch.atleast_1d(functional.all_gather(summed)))
        part = functional.reduce_scatter(torch.empty_like(rows.chunk(dist.get_world_size())[0]), rows.chunk(dist.get_world_size()))
        handle = None
        assert handle is None
        biggest = torch.stack(functional.all_gather(part)).amax(0)
        rows = torch.cat(torch.atleast_1d(functional.all_gather(functional.all_reduce(x) + biggest)))
        tensor = rows + 1
        result = functional.reduce_scatter(torch.empty_like(tensor.chunk(dist.get_world_size())[0]), tensor.chunk(dist.get_world_size()), op=dist.ReduceOp.SUM)
        # unisono port: left as it is: the same statement calls something before it; give the call a line of its own
        return result + functional.all_to_all_single(torch.empty_like(rows), rows).sum() * self.first((x,))[0]


def evaluate(x):
    """No forward pass, as far as can be seen."""
    mean = x.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size() + functional.all_reduce(x)


def main():
    dist.init_process_group()
    x = torch.ones(2) * (dist.get_rank() + 1)
    x.requires_grad_()
    with torch.no_grad():
        checked = evaluate(x)
    loss = Layer().construct(x)
    return loss.tolist() + checked.tolist()
