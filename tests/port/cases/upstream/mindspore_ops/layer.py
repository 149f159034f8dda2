"""A layer with tensors of MindSpore, and collectives in the words of torch."""

import mindspore
import numpy as np
from mindspore import ops
import mindspore.communication as comm


class Layer(mindspore.nn.Cell):
    def __init__(self, group):
        super().__init__()
        self.all_reduce_max = ops.AllReduce("max")
        self.broadcast = ops.Broadcast(1)
        self.reduce = ops.Reduce(0)
        self.all_gather = ops.AllGather()
        self.reduce_scatter = ops.ReduceScatter()
        self.send = ops.Send(0, 1)
        self.group = group
        self.all_reduce = ops.AllReduce(group=self.group if self.group is not None else comm.GlobalComm.WORLD_COMM_GROUP)

    def construct(self, x):
        total = x * 2
        alias = x
        x[...] = self.all_reduce(x)
        total = self.all_reduce_max(total)
        total = self.broadcast((total,))[0]
        result = self.reduce(x)
        if comm.get_rank() == 0:
            x[...] = result
        rows = mindspore.mint.zeros(2 * comm.get_group_size())
        rows[...] = self.all_gather(total).reshape(rows.shape)
        part = mindspore.mint.zeros(2)
        part[...] = self.reduce_scatter(rows).reshape(part.shape)
        swapped = mindspore.mint.zeros(2)
        swapped[...] = ops.AlltoAll(comm.get_group_size(), 0, 0)(part).reshape(swapped.shape)
        if comm.get_rank() == 0:
            self.send(x * 10)
        else:
            part[...] = ops.Receive(0, 0, part.shape, part.dtype)()
        return alias, total, rows, part, swapped


def main():
    rank = comm.get_rank()
    answers = Layer(None)(mindspore.Tensor(np.full(2, rank + 1.0, np.float32)))
    return [answer.asnumpy().tolist() for answer in answers]
