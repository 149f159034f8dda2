"""ZeRO: optimizer states, gradients and weights in parts, one part on each rank."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.communication.management import GlobalComm
from mindspore.ops import ReduceOp
from mindspore.ops import functional as F  # noqa: N812  (as people name it)
from task import LEARNING_RATE, MOMENTUM, batches, network_weights

part_of_gradient = ops.MultitypeFuncGraph("part_of_gradient")
assign_whole = ops.MultitypeFuncGraph("assign_whole")


@part_of_gradient.register("Function", "Function", "Int", "Tensor", "Bool")
def _part_of_gradient(of_part, of_whole, size, gradient, is_split):
    if is_split:
        return of_part(gradient) / size
    return of_whole(gradient) / size


@assign_whole.register("Function", "Tensor", "Tensor", "Bool")
def _assign_whole(all_gather, weight, part, is_split):
    if is_split:
        part = all_gather(part)
    return F.assign(weight, part)


def is_split(array):
    return len(array) % get_group_size() == 0


def part(array):
    return np.split(array, get_group_size())[get_rank()] if is_split(array) else array


class SumThenCut(nn.Cell):
    """This rank's part of an all-reduced gradient."""

    def __init__(self, group):
        super().__init__()
        self.all_reduce = ops.AllReduce(op=ReduceOp.SUM, group=group)
        self.cut = ops.Split(0, get_group_size(group))
        self.rank = get_rank(group)

    def construct(self, gradient):
        return self.cut(self.all_reduce(gradient))[self.rank]


class WholeWeight(nn.Cell):
    """All parts of a weight forward; the part of the mean gradient backward."""

    def __init__(self, group):
        super().__init__()
        self.all_gather = ops.AllGather(group)
        self.reduce_scatter = ops.ReduceScatter(ReduceOp.SUM, group)
        self.size = get_group_size(group)

    def construct(self, weight):
        return self.all_gather(weight)

    def bprop(self, weight, out, dout):
        return (self.reduce_scatter(dout) / self.size,)


class AveragedWeight(nn.Cell):
    """A weight that is on every rank forward; the mean gradient backward."""

    def __init__(self, group):
        super().__init__()
        self.all_reduce = ops.AllReduce(ReduceOp.SUM, group)
        self.size = get_group_size(group)

    def construct(self, weight):
        return ops.identity(weight)

    def bprop(self, weight, out, dout):
        return (self.all_reduce(dout) / self.size,)


class Network(nn.Cell):
    """Three matrices; in stage 3, each is made whole where it is used."""

    def __init__(self, stage, group):
        super().__init__()
        for name, weight in network_weights().items():
            kept = part(weight) if stage == 3 else weight
            setattr(self, name, Parameter(Tensor(kept), name=name))
            use = ops.Identity()
            if stage == 3:
                use = WholeWeight(group) if is_split(weight) else AveragedWeight(group)
            setattr(self, f"use_{name}", use)

    def construct(self, x, y):
        hidden = ops.matmul(x, self.use_embed(self.embed).T)
        hidden = ops.matmul(hidden, self.use_up(self.up).T) + self.use_up_bias(self.up_bias)
        out = ops.matmul(ops.relu(hidden), self.use_down(self.down).T)
        return ops.mse_loss(out + self.use_down_bias(self.down_bias), y)


class PartsStep(nn.Cell):
    """A step of stage 1 or 2: the optimizer has parts, and whole weights are assigned after it."""

    def __init__(self, network, stage, group):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ParameterTuple(network.trainable_params())
        self.is_split = tuple(is_split(weight.asnumpy()) for weight in self.weights)
        self.parts = ParameterTuple(
            [
                Parameter(Tensor(part(weight.asnumpy())), name=f"part.{weight.name}")
                for weight in self.weights
            ]
        )
        self.optimizer = nn.Momentum(self.parts, LEARNING_RATE, MOMENTUM)
        self.of_whole = ops.AllReduce(op=ReduceOp.SUM, group=group)
        self.of_part = ops.ReduceScatter(op=ReduceOp.SUM, group=group)
        if stage == 1:
            self.of_part = SumThenCut(group)
        self.all_gather = ops.AllGather(group=group)
        self.all_gather.add_prim_attr("fusion", 1)
        self.size = get_group_size(group)
        self.hyper_map = ops.HyperMap()
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.grad(self.network, self.weights)(x, y)
        gradients = self.hyper_map(
            F.partial(part_of_gradient, self.of_part, self.of_whole, self.size),
            gradients,
            self.is_split,
        )
        loss = F.depend(loss, self.optimizer(gradients))
        assigned = self.hyper_map(
            F.partial(assign_whole, self.all_gather), self.weights, self.parts, self.is_split
        )
        return F.depend(loss, assigned)


def main():
    answers, mode, variant = sys.argv[1:]
    stage = int(variant)
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    init()
    rank, size = get_rank(), get_group_size()
    group = GlobalComm.WORLD_COMM_GROUP
    network = Network(stage, group)
    if stage == 3:
        optimizer = nn.Momentum(network.trainable_params(), LEARNING_RATE, MOMENTUM)
        step = nn.TrainOneStepCell(network, optimizer)
    else:
        step = PartsStep(network, stage, group)
        optimizer = step.optimizer
    for x, y in batches():
        step(Tensor(np.split(x, size)[rank]), Tensor(np.split(y, size)[rank]))
    found = {}
    for name, first in network_weights().items():
        weight = Tensor(getattr(network, name).asnumpy())
        if weight.shape != first.shape:
            weight = ops.AllGather(group)(weight)
        found[name] = weight.asnumpy()
    for name, state in zip(network_weights(), optimizer.moments, strict=True):
        found[f"moments_{name}"] = state.asnumpy()
    np.savez(f"{answers}{rank}.npz", **found)


if __name__ == "__main__":
    main()
