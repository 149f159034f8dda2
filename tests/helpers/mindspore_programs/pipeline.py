"""A pipeline: each rank has some of the layers, and activations and gradients are messages."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.communication.comm_func import irecv, isend, recv, send
from task import INPUTS, LAYERS, LEARNING_RATE, MOMENTUM, layer_batches, layer_weights

PARTS = 4  # of every batch, which follow one another through the pipeline


class Stage(nn.Cell):
    """The layers of this rank; on the last one, the loss."""

    def __init__(self, rank, size):
        super().__init__()
        chosen = list(layer_weights().items())[rank * LAYERS // size : (rank + 1) * LAYERS // size]
        self.layers = ms.ParameterTuple(
            [Parameter(Tensor(weight), name=name) for name, weight in chosen]
        )

    def construct(self, x):
        for weight in self.layers:
            x = ops.tanh(ops.matmul(x, weight.T))
        return x


class WithLoss(nn.Cell):
    """The last stage."""

    def __init__(self, stage):
        super().__init__(auto_prefix=False)
        self.stage = stage

    def construct(self, x, y):
        return ops.mse_loss(self.stage(x), y)


class Messages:
    """How activations and gradients travel: whole, tensor by tensor."""

    def __init__(self, variant):
        self.variant = variant
        self.sent = []

    def send(self, tensor, to, tag):
        if self.variant == "comm_func":
            send(tensor, to, tag=tag)
        elif self.variant == "mint":
            mint.distributed.send(tensor.contiguous(), to, tag=tag)
        else:
            self.sent.append((isend(tensor, to, tag=tag), tensor))

    def receive(self, shape, origin, tag):
        empty = ms.numpy.empty(shape, dtype=ms.float32)
        if self.variant == "comm_func":
            return recv(empty, origin, tag=tag)
        if self.variant == "mint":
            mint.distributed.recv(empty, origin, tag=tag)
            return empty
        result, handle = irecv(empty, origin, tag=tag)
        handle.wait()
        return result

    def wait(self):
        for handle, _ in self.sent:
            handle.wait()
        self.sent.clear()


def train_by_hand(stage, optimizer, variant):
    """All parts of a batch go forward, then all go backward."""
    rank, size = get_rank(), get_group_size()
    messages = Messages(variant)
    backward = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
    with_loss = WithLoss(stage)
    for x, y in layer_batches():
        xs, ys = np.split(x, PARTS), np.split(y, PARTS)
        shape = xs[0].shape
        inputs, totals = [], None
        for number in range(PARTS):
            if rank == 0:
                inputs.append(Tensor(xs[number]))
            else:
                inputs.append(messages.receive(shape, rank - 1, number))
            if rank < size - 1:
                messages.send(stage(inputs[-1]), rank + 1, number)
        for number in reversed(range(PARTS)):
            if rank == size - 1:
                scale = Tensor(1 / PARTS, ms.float32)
                (of_input, _), of_weights = backward(with_loss, optimizer.parameters)(
                    inputs[number], Tensor(ys[number]), scale
                )
            else:
                gradient = messages.receive(shape, rank + 1, PARTS + number)
                (of_input,), of_weights = backward(stage, optimizer.parameters)(
                    inputs[number], gradient
                )
            if rank > 0:
                messages.send(of_input, rank - 1, PARTS + number)
            if totals is None:
                totals = of_weights
            else:
                totals = tuple(a + b for a, b in zip(totals, of_weights, strict=True))
        messages.wait()
        optimizer(totals)


class Linked(nn.Cell):
    """A stage between its two messages, whose backward sends the gradients."""

    def __init__(self, stage, shape):
        super().__init__(auto_prefix=False)
        self.rank, self.size = get_rank(), get_group_size()
        self.stage = stage
        if self.rank > 0:
            self.receive = ops.Receive(
                sr_tag=0, src_rank=self.rank - 1, shape=shape, dtype=ms.float32
            )
        if self.rank < self.size - 1:
            self.send = ops.Send(sr_tag=0, dest_rank=self.rank + 1)

    def construct(self, x, y):
        if self.rank > 0:
            x = self.receive(x)
        out = self.stage(x)
        if self.rank < self.size - 1:
            return self.send(out).sum()
        return ops.mse_loss(out, y)


def train_linked(stage, optimizer):
    """MindSpore differentiates the messages."""
    rank = get_rank()
    place = Parameter(Tensor(np.ones((), np.float32)), name="place")  # makes x need a gradient
    linked = Linked(stage, layer_batches()[0][0].shape)

    def forward(x, y):
        return linked(x * place, y)

    backward = ms.value_and_grad(forward, None, (*optimizer.parameters, place))
    for x, y in layer_batches():
        given = Tensor(x if rank == 0 else np.zeros_like(x))
        _, gradients = backward(given, Tensor(y))
        optimizer(gradients[:-1])


def main():
    answers, mode, variant = sys.argv[1:]
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    init()
    rank, size = get_rank(), get_group_size()
    stage = Stage(rank, size)
    optimizer = nn.Momentum(stage.trainable_params(), LEARNING_RATE, MOMENTUM)
    if variant == "primitive":
        train_linked(stage, optimizer)
    else:
        train_by_hand(stage, optimizer, variant)
    found = {weight.name: weight.asnumpy() for weight in stage.layers}
    assert all(weight.shape == (INPUTS, INPUTS) for weight in found.values())
    np.savez(f"{answers}{rank}.npz", **found)


if __name__ == "__main__":
    main()
