"""Primitives that stay as they are, with the reason above their calls."""
import torch
from mindspore import ops
from torch.distributed.nn import functional
import torch.distributed as dist


class Chosen:
    """Which primitive is called is decided when the program runs."""

    def __init__(self, largest):
        if largest:
            self.combine = ops.AllReduce("max")
        else:
            # unisono port: left as it is: 'self.combine' gets its value in more than one place, so which primitive is called is not known
            self.combine = ops.AllReduce()

    def construct(self, x):
        # unisono port: left as it is: 'self.combine' gets its value in more than one place, so which primitive is called is not known
        return self.combine(x)


class Handed:
    """Another function gets the primitive."""

    def __init__(self):
        self.total = ops.AllReduce()

    def construct(self, x):
        # unisono port: left as it is: the program also uses 'self.total' without calling it
        return self.total(x) + list(map(self.total, [x]))[0]


class Base:
    def __init__(self):
        self.extreme = ops.AllReduce("max")

    def construct(self, x):
        # unisono port: left as it is: code outside the class uses 'extreme' too, and may mean this primitive
        return self.extreme(x)


class Derived(Base):
    """Gives the method above another primitive."""

    def __init__(self):
        super().__init__()
        # unisono port: left as it is: code outside the class uses 'extreme' too, and may mean this primitive
        self.extreme = ops.AllReduce("min")


class Conditions:
    """The order of evaluation, or whether a call is made, must not change."""

    def __init__(self):
        self.copy = ops.Broadcast(0)

    def construct(self, x):
        # unisono port: left as it is: the primitive stays, because another call of it stays
        several = [self.copy((x + n,))[0] for n in range(2)]
        # unisono port: left as it is: the primitive stays, because another call of it stays
        either = self.copy((x,))[0] if len(several) else x
        # unisono port: left as it is: a statement before this one would not always do the same; give the call a line of its own
        while self.copy((either,))[0].sum() < 10:
            either = either + 1
        return torch.cat([*several, either])


def in_order(x):
    copy = ops.Broadcast(1)
    # unisono port: left as it is: the primitive stays, because another call of it stays
    plain = copy((x,))[0]
    # unisono port: left as it is: the same statement calls something before it; give the call a line of its own
    return x.add_(1) + copy((x,))[0] + plain


def mixed(x):
    """The sum stays in its place, and so nothing after it can be moved before it."""
    # unisono port: left as it is: the same statement calls something before it; give the call a line of its own
    return functional.all_reduce(x) + ops.Reduce(0)(x)


def others(x):
    # unisono port: left as it is: torch.distributed has no call that does what AllGatherV does
    everything = ops.AllGatherV()(x, [2] * dist.get_world_size())
    # unisono port: left as it is: torch has AlltoAll only with split_dim=0
    transposed = ops.AlltoAll(dist.get_world_size(), 1, 0)(everything.reshape(2, -1))
    # unisono port: left as it is: it does not pass a tuple with one tensor
    copied = ops.Broadcast(0)((x, x))[1]
    return torch.cat([everything, transposed.flatten(), copied])


def main():
    dist.init_process_group()
    x = torch.ones(2) * (dist.get_rank() + 1)
    answers = [Chosen(True).construct(x), Chosen(False).construct(x), Handed().construct(x)]
    answers += [Base().construct(x), Derived().construct(x), Conditions().construct(x)]
    return torch.cat([*answers, in_order(x), mixed(x), others(x)]).tolist()
