"""Tensors that are known under another name keep their identity."""
import torch
from mindspore.communication import comm_func
import mindspore.communication as comm


class Layer:
    def __init__(self, rank):
        self.grad = torch.ones(2) * rank
        self.parts = [torch.ones(1) * rank, torch.zeros(1)]

    def synchronize(self):
        self.grad[...] = comm_func.all_reduce(self.grad)[0]
        self.parts[0][...] = comm_func.all_reduce(self.parts[0])[0]


def add_up(tensor, group=None):
    tensor[...] = comm_func.all_reduce(tensor, group=group if group is not None else comm.GlobalComm.WORLD_COMM_GROUP)[0]
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
    half[...] = comm_func.all_reduce(half)[0]
    kept = []
    value = torch.ones(1) * rank
    kept.append(value)
    value[...] = comm_func.all_reduce(value)[0]
    for row in whole.reshape(2, 2):
        row[...] = comm_func.broadcast(row, 0)
    tensor_2 = whole.view(-1)
    tensor_2[...] = comm_func.all_reduce(tensor_2)[0]
    return alias.tolist() + layer.parts[0].tolist() + given.tolist() + whole.tolist() + kept[0].tolist()
