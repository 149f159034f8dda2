"""Data parallelism: each rank has a part of every batch, and gradients are averaged."""

import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Model, Parameter, Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from task import BATCH, CLIP, LEARNING_RATE, MOMENTUM, network_weights, rows

scaled_back = ops.MultitypeFuncGraph("scaled_back")


@scaled_back.register("Tensor", "Tensor")
def _scaled_back(scale, gradient):
    return gradient / scale


summed = ops.MultitypeFuncGraph("summed")


@summed.register("Function", "Int", "Tensor")
def _summed(all_reduce, size, gradient):
    return all_reduce(gradient) / size


class Network(nn.Cell):
    """Three matrices."""

    def __init__(self):
        super().__init__()
        for name, weight in network_weights().items():
            setattr(self, name, Parameter(Tensor(weight), name=name))

    def construct(self, x):
        hidden = ops.matmul(x, self.embed.T)
        hidden = ops.relu(ops.matmul(hidden, self.up.T) + self.up_bias)
        return ops.matmul(hidden, self.down.T) + self.down_bias


class CarefulStep(nn.TrainOneStepCell):
    """With a loss scale, a check for overflow on all ranks, and clipped gradients."""

    def __init__(self, network, optimizer, scale):
        super().__init__(network, optimizer, sens=scale)
        self.scale = Tensor(scale, ms.float32)
        self.hyper_map = ops.HyperMap()
        self.worst = ops.AllReduce(ops.ReduceOp.MAX)

    def construct(self, x, y):
        loss = self.network(x, y)
        scale = ops.fill(loss.dtype, loss.shape, self.sens)
        gradients = self.grad(self.network, self.weights)(x, y, scale)
        gradients = self.hyper_map(ops.partial(scaled_back, self.scale), gradients)
        gradients = self.grad_reducer(gradients)
        overflow = self.worst(1.0 - ops.isfinite(gradients[0]).all().astype(ms.float32))
        gradients = ops.clip_by_global_norm(gradients, CLIP)
        if overflow == 0:
            loss = ops.depend(loss, self.optimizer(gradients))
        return loss


class OwnStep(nn.Cell):
    """Without MindSpore's own reducer."""

    def __init__(self, network, optimizer):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.grad = ops.GradOperation(get_by_list=True)
        self.all_reduce = ops.AllReduce(op=ops.ReduceOp.SUM)
        self.size = get_group_size()
        self.hyper_map = ops.HyperMap()

    def construct(self, x, y):
        gradients = self.grad(self.network, self.optimizer.parameters)(x, y)
        gradients = self.hyper_map(ops.partial(summed, self.all_reduce, self.size), gradients)
        return self.optimizer(gradients)


def main():
    answers, mode, variant = sys.argv[1:]
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    rank, size = get_rank(), get_group_size()
    data = ds.NumpySlicesDataset(
        tuple(rows()), ["x", "y"], num_shards=size, shard_id=rank, shuffle=False
    )
    data = data.batch(BATCH // size, drop_remainder=True)
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), LEARNING_RATE, MOMENTUM)
    loss_of = nn.MSELoss()
    if variant == "model":
        Model(network, loss_of, optimizer).train(1, data, dataset_sink_mode=False)
    elif variant == "reducer":

        def forward(x, y):
            out = network(x)
            return loss_of(out, y), out

        gradients_of = ms.value_and_grad(forward, None, network.trainable_params(), has_aux=True)
        reducer = nn.DistributedGradReducer(optimizer.parameters)

        @ms.jit
        def step(x, y):
            (loss, _), gradients = gradients_of(x, y)
            return ops.depend(loss, optimizer(reducer(gradients)))

        for x, y in data:
            step(x, y)
    else:
        with_loss = nn.WithLossCell(network, loss_of)
        step = OwnStep(with_loss, optimizer)
        if variant == "careful":
            step = CarefulStep(with_loss, optimizer, 1024.0)
        step.set_train()
        for x, y in data.create_tuple_iterator():
            step(x, y)
    found = {name: getattr(network, name).asnumpy() for name in network_weights()}
    np.savez(f"{answers}{rank}.npz", **found)


if __name__ == "__main__":
    main()
