"""Primitives that stay as they are, with the reason above their calls."""
import torch
from unisono.mindspore import ops
from unisono.mindspore.communication import get_group_size, get_rank, init


class Chosen:
    """Which primitive is called is decided when the program runs."""

    def __init__(self, largest):
        if largest:
            self.combine = ops.AllReduce("max")
        else:
            self.combine = ops.AllReduce()

    def construct(self, x):
        return self.combine(x)


class Handed:
    """Another function gets the primitive."""

    def __init__(self):
        self.total = ops.AllReduce()

    def construct(self, x):
        return self.total(x) + list(map(self.total, [x]))[0]


class Base:
    def __init__(self):
        self.extreme = ops.AllReduce("max")

    def construct(self, x):
        return self.extreme(x)


class Derived(Base):
    """Gives the method above another primitive."""

    def __init__(self):
        super().__init__()
        self.extreme = ops.AllReduce("min")


class Conditions:
    """The order of evaluation, or whether a call is made, must not change."""

    def __init__(self):
        self.copy = ops.Broadcast(0)

    def construct(self, x):
        several = [self.copy((x + n,))[0] for n in range(2)]
        either = self.copy((x,))[0] if len(several) else x
        while self.copy((either,))[0].sum() < 10:
            either = either + 1
        return torch.cat([*several, either])


def in_order(x):
    copy = ops.Broadcast(1)
    plain = copy((x,))[0]
    return x.add_(1) + copy((x,))[0] + plain


def mixed(x):
    """The sum stays in its place, and so nothing after it can be moved before it."""
    return ops.AllReduce()(x) + ops.Reduce(0)(x)


def others(x):
    everything = ops.AllGatherV()(x, [2] * get_group_size())
    transposed = ops.AlltoAll(get_group_size(), 1, 0)(everything.reshape(2, -1))
    copied = ops.Broadcast(0)((x, x))[1]
    return torch.cat([everything, transposed.flatten(), copied])


def main():
    init()
    x = torch.ones(2) * (get_rank() + 1)
    answers = [Chosen(True).construct(x), Chosen(False).construct(x), Handed().construct(x)]
    answers += [Base().construct(x), Derived().construct(x), Conditions().construct(x)]
    return torch.cat([*answers, in_order(x), mixed(x), others(x)]).tolist()
