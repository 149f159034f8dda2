"""Tensors that are known under another name keep their identity."""
import torch
from mindspore import ops
import mindspore.communication as comm


class Layer:
    def __init__(self, rank):
        self.all_reduce = ops.AllReduce()
        self.grad = torch.ones(2) * rank
        self.parts = [torch.ones(1) * rank, torch.zeros(1)]

    def synchronize(self):
        self.grad[...] = self.all_reduce(self.grad)
        self.parts[0][...] = self.all_reduce(self.parts[0])


def add_up(tensor, group=None):
    tensor[...] = ops.AllReduce(group=group if group is not None else comm.GlobalComm.WORLD_COMM_GROUP)(tensor)
    return tensor


def main():
    rank = comm.get_rank()
    layer = Layer(rank)
    alias = layer.grad
    layer.synchronize()
    given = torch.ones(2) * rank
    add_up(given)
    whole = torch.zeros(4) + rank
    half = whole[:2]
    half[...] = ops.AllReduce()(half)
    kept = []
    value = torch.ones(1) * rank
    kept.append(value)
    value[...] = ops.AllReduce()(value)
    for row in whole.reshape(2, 2):
        row[...] = ops.Broadcast(0)((row,))[0]
    tensor_2 = whole.view(-1)
    tensor_2[...] = ops.AllReduce()(tensor_2)
    return alias.tolist() + layer.parts[0].tolist() + given.tolist() + whole.tolist() + kept[0].tolist()
