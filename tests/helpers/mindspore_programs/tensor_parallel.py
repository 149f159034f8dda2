"""Tensor parallelism: the columns of one matrix and the rows of the next, with their bprops."""

import sys

import mindspore as ms
import mindspore.communication.comm_func as comm_func
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init
from task import LEARNING_RATE, MOMENTUM, batches, network_weights


class CopyToRanks(nn.Cell):
    """Nothing forward; the sum of all gradients backward."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def construct(self, x):
        return ops.stop_gradient(x)

    def bprop(self, x, out, dout):
        return (comm_func.all_reduce(dout, group=self.group)[0],)


class SumOfRanks(nn.Cell):
    """The sum forward; nothing backward."""

    def __init__(self, group):
        super().__init__()
        self.all_reduce = ops.AllReduce(op=ops.ReduceOp.SUM, group=group)

    def construct(self, x):
        return self.all_reduce(x)

    def bprop(self, x, out, dout):
        return (dout,)


class GatherColumns(nn.Cell):
    """All columns forward; this rank's gradients backward."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.size = get_group_size(group)
        self.rank = get_rank(group)

    def construct(self, x):
        joined = comm_func.all_gather_into_tensor(x, group=self.group)[0]
        return ops.cat(ops.split(joined, x.shape[0], axis=0), axis=-1)

    def bprop(self, x, out, dout):
        # Not ops.split: MindSpore cannot compile it in both construct and bprop of a cell.
        return (ops.Split(-1, self.size)(dout)[self.rank],)


class ScatterColumns(nn.Cell):
    """This rank's columns forward; all gradients backward."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.size = get_group_size(group)
        self.rank = get_rank(group)
        self.gather = ops.AllGather(group)

    def construct(self, x):
        return mint.chunk(x, self.size, -1)[self.rank].contiguous()

    def bprop(self, x, out, dout):
        joined = self.gather(dout.swapaxes(0, 1).contiguous())
        return (joined.swapaxes(0, 1),)


class Nothing(nn.Cell):
    """In place of the cells above, where MindSpore differentiates the collectives itself."""

    def construct(self, x):
        return x


class Network(nn.Cell):
    """A matrix on every rank, then a column layer and a row layer."""

    def __init__(self, group, variant):
        super().__init__()
        size, rank = get_group_size(group), get_rank(group)
        weights = network_weights()
        weights["up"] = np.split(weights["up"], size)[rank]
        weights["up_bias"] = np.split(weights["up_bias"], size)[rank]
        weights["down"] = np.split(weights["down"], size, axis=1)[rank]
        for name, weight in weights.items():
            setattr(self, name, Parameter(Tensor(weight), name=name))
        self.copy, self.between, self.sum = CopyToRanks(group), Nothing(), SumOfRanks(group)
        if variant == "gather":
            self.between = nn.SequentialCell(GatherColumns(group), ScatterColumns(group))
        if variant == "built_in":
            self.copy, self.sum = Nothing(), ops.AllReduce(group=group)

    def construct(self, x):
        embedded = self.copy(ops.matmul(x, self.embed.T))
        hidden = ops.relu(ops.matmul(embedded, self.up.T) + self.up_bias)
        hidden = self.between(hidden)
        return self.sum(ops.matmul(hidden, self.down.T)) + self.down_bias


class Step(nn.Cell):
    """One step of the training."""

    def __init__(self, network, optimizer, divisor, averaged):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.divisor = network, optimizer, divisor
        self.averaged = averaged
        self.gradients_of = ms.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x, y):
        return ops.mse_loss(self.network(x), y) / self.divisor

    def construct(self, x, y):
        loss, gradients = self.gradients_of(x, y)
        gradients = self.averaged(gradients)
        return ops.depend(loss, self.optimizer(gradients))


class Averaged(nn.Cell):
    """The mean, or with `names` the sum, of gradients over a group."""

    def __init__(self, group, parameters, names=()):
        super().__init__()
        self.all_reduce = ops.AllReduce(group=group)
        self.divisor = 1 if names else get_group_size(group)
        self.chosen = tuple(not names or parameter.name in names for parameter in parameters)

    def construct(self, gradients):
        result = ()
        for chosen, gradient in zip(self.chosen, gradients):  # noqa: B905  (for the compiler)
            if chosen:
                gradient = self.all_reduce(gradient) / self.divisor
            result += (gradient,)
        return result


def groups(variant):
    """The group of a tensor's parts, and the group that shares the data, if there are both."""
    size, rank = get_group_size(), get_rank()
    if variant != "hybrid":
        create_group("tensor", list(range(size)))
        return "tensor", None, 0
    for first in range(0, size, 2):
        if rank // 2 == first // 2:
            create_group(f"tensor{first}", [first, first + 1])
    create_group(f"data{rank % 2}", list(range(rank % 2, size, 2)))
    return f"tensor{rank // 2 * 2}", f"data{rank % 2}", rank // 2


def main():
    answers, mode, variant = sys.argv[1:]
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    init()
    rank = get_rank()
    group, data_group, part = groups(variant)
    parts = get_group_size(data_group) if data_group else 1
    network = Network(group, variant)
    parameters = network.trainable_params()
    optimizer = nn.Momentum(parameters, LEARNING_RATE, MOMENTUM)
    divisor, averaged = 1, Nothing()
    if data_group:
        averaged = Averaged(data_group, parameters)
    if variant == "built_in":
        # MindSpore differentiates the sum of all ranks' losses.
        divisor = get_group_size(group)
        averaged = Averaged(group, parameters, ("embed", "down_bias"))
    step = Step(network, optimizer, divisor, averaged)
    for x, y in batches():
        step(Tensor(np.split(x, parts)[part]), Tensor(np.split(y, parts)[part]))
    whole = {name: getattr(network, name).asnumpy() for name in ("embed", "down_bias")}
    for name, axis in (("up", 0), ("up_bias", 0), ("down", 1)):
        # Not AllGather: on a CPU, MindSpore itself has it for the world only.
        parts = [np.zeros_like(getattr(network, name).asnumpy())] * get_group_size(group)
        parts[get_rank(group)] = getattr(network, name).asnumpy()
        joined = Tensor(np.concatenate(parts, axis))
        whole[name] = ops.AllReduce(group=group)(joined).asnumpy()
    np.savez(f"{answers}{rank}.npz", **whole)


if __name__ == "__main__":
    main()
