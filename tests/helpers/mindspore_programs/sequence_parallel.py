"""Sequence parallelism: places of a sequence on the ranks, but heads inside the attention."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common._grad_function import _Function
from mindspore.communication import GlobalComm, comm_func
from mindspore.mint.distributed import get_rank, get_world_size, init_process_group
from task import HEADS, LEARNING_RATE, MOMENTUM, attention_weights, sequences


class _Exchange(_Function):
    """An exchange of equal rows, differentiated by hand."""

    @staticmethod
    def forward(ctx, x):
        out = ops.zeros_like(x)
        mint.distributed.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = ops.zeros_like(gradient)
        mint.distributed.all_to_all_single(out, gradient.contiguous())
        return out


class ExchangeByPrimitive(nn.Cell):
    """Cut one dimension and join the other: the primitive does both."""

    def __init__(self, split_dim, concat_dim):
        super().__init__()
        self.exchange = ops.AlltoAll(
            split_count=get_world_size(),
            split_dim=split_dim,
            concat_dim=concat_dim,
            group=GlobalComm.WORLD_COMM_GROUP,
        )

    def construct(self, x):
        return self.exchange(x)


class ExchangeByFunction(nn.Cell):
    """The same with a function that exchanges rows."""

    def __init__(self, split_dim, concat_dim, by_hand):
        super().__init__()
        self.size = get_world_size()
        self.split_dim, self.concat_dim, self.by_hand = split_dim, concat_dim, by_hand

    def construct(self, x):
        x = ops.stack(ops.split(x, x.shape[self.split_dim] // self.size, axis=self.split_dim))
        if self.by_hand:
            x = _Exchange.apply(x.contiguous())
        else:
            x, _ = comm_func.all_to_all_single_with_output_shape(x.shape, x, async_op=False)
        parts = ops.split(x, 1, axis=0)
        return ops.cat([part.squeeze(0) for part in parts], axis=self.concat_dim)


class Attention(nn.Cell):
    """(batch, places of this rank, hidden) in and out."""

    def __init__(self, variant):
        super().__init__()
        for name, weight in attention_weights().items():
            setattr(self, name, Parameter(Tensor(weight), name=name))
        if variant == "primitive":
            self.to_heads, self.to_places = ExchangeByPrimitive(2, 1), ExchangeByPrimitive(1, 2)
        else:
            by_hand = variant == "by_hand"
            self.to_heads = ExchangeByFunction(2, 1, by_hand)
            self.to_places = ExchangeByFunction(1, 2, by_hand)

    def apart(self, x, weight):
        batch, places, width = x.shape
        projected = ops.matmul(x, weight.T).reshape(batch, places, HEADS, width // HEADS)
        return self.to_heads(projected).transpose(0, 2, 1, 3)

    def construct(self, x):
        query = self.apart(x, self.query)
        key = self.apart(x, self.key)
        value = self.apart(x, self.value)
        scores = ops.matmul(query, key.transpose(0, 1, 3, 2)) * query.shape[-1] ** -0.5
        mixed = ops.matmul(ops.softmax(scores, axis=-1), value).transpose(0, 2, 1, 3)
        return ops.matmul(self.to_places(mixed).reshape(x.shape), self.out.T)


def main():
    answers, mode, variant = sys.argv[1:]
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    init_process_group()
    rank, size = get_rank(), get_world_size()
    network = Attention(variant)
    optimizer = nn.Momentum(network.trainable_params(), LEARNING_RATE, MOMENTUM)

    def forward(x, y):
        return ops.mse_loss(network(x), y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    for x, y in sequences():
        x, y = (Tensor(np.split(array, size, axis=1)[rank]) for array in (x, y))
        _, gradients = gradients_of(x, y)
        for gradient in gradients:
            mint.distributed.all_reduce(gradient)
        optimizer(tuple(gradient / size for gradient in gradients))
    found = {name: getattr(network, name).asnumpy() for name in attention_weights()}
    np.savez(f"{answers}{rank}.npz", **found)


if __name__ == "__main__":
    main()
