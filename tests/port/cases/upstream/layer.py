"""A layer with tensors of MindSpore, and collectives in the words of torch."""

import mindspore
import numpy as np
import torch.distributed as dist


class Layer(mindspore.nn.Cell):
    def __init__(self, group):
        super().__init__()
        self.group = group

    def construct(self, x):
        total = x * 2
        alias = x
        dist.all_reduce(x, group=self.group)
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        dist.broadcast(total, 1)
        dist.reduce(x, dst=0)
        rows = mindspore.mint.zeros(2 * dist.get_world_size())
        dist.all_gather_into_tensor(rows, total)
        part = mindspore.mint.zeros(2)
        dist.reduce_scatter_tensor(part, rows)
        swapped = mindspore.mint.zeros(2)
        dist.all_to_all_single(swapped, part)
        if dist.get_rank() == 0:
            dist.send(x * 10, 1)
        else:
            dist.recv(part, 0)
        return alias, total, rows, part, swapped


def main():
    rank = dist.get_rank()
    answers = Layer(None)(mindspore.Tensor(np.full(2, rank + 1.0, np.float32)))
    return [answer.asnumpy().tolist() for answer in answers]
