"""Tensors that are known under another name keep their identity."""
import torch
import torch.distributed as dist


class Layer:
    def __init__(self, rank):
        self.grad = torch.ones(2) * rank
        self.parts = [torch.ones(1) * rank, torch.zeros(1)]

    def synchronize(self):
        dist.all_reduce(self.grad)
        dist.all_reduce(self.parts[0])


def add_up(tensor, group=None):
    dist.all_reduce(tensor, group=group)
    return tensor


def main():
    rank = dist.get_rank()
    layer = Layer(rank)
    alias = layer.grad
    layer.synchronize()
    given = torch.ones(2) * rank
    add_up(given)
    whole = torch.zeros(4) + rank
    half = whole[:2]
    dist.all_reduce(half)
    kept = []
    value = torch.ones(1) * rank
    kept.append(value)
    dist.all_reduce(value)
    for row in whole.reshape(2, 2):
        dist.broadcast(row, 0)
    dist.all_reduce(whole.view(-1))
    return alias.tolist() + layer.parts[0].tolist() + given.tolist() + whole.tolist() + kept[0].tolist()
