"""One layer for each collective that has a gradient, as MindSpore writes them."""

from mindspore import nn, ops
from mindspore.communication import comm_func, get_group_size


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x):
        return self.all_reduce(x) / get_group_size() + self.all_reduce(x * x)


class Largest(Sum):
    def __init__(self):
        super().__init__()
        self.largest = ops.AllReduce(ops.ReduceOp.MAX)

    def construct(self, x):
        return self.largest(x)


class Smallest(Sum):
    def __init__(self):
        super().__init__()
        self.smallest = ops.AllReduce("min")

    def construct(self, x):
        return self.smallest(x * 2)


class Product(Sum):
    def __init__(self):
        super().__init__()
        self.product = ops.AllReduce("prod")

    def construct(self, x):
        return self.product(x)


class Gathered(Sum):
    def __init__(self):
        super().__init__()
        self.gather = ops.AllGather()

    def construct(self, x):
        return self.gather(x) + self.gather(x.sum()).sum()


class Scattered(Sum):
    def __init__(self):
        super().__init__()
        self.scatter = ops.ReduceScatter()

    def construct(self, x):
        parts = self.scatter(x)
        return parts * self.scatter(x * x)


class OnRoot(Sum):
    def __init__(self):
        super().__init__()
        self.reduce = ops.Reduce(1)

    def construct(self, x):
        return self.reduce(x) + x


class Copied(Sum):
    def __init__(self):
        super().__init__()
        self.copy = ops.Broadcast(1)

    def construct(self, x):
        return self.copy((x,))[0] * x


class Divided(Sum):
    def __init__(self):
        super().__init__()
        self.divide = ops.CollectiveScatter(1)

    def construct(self, x):
        return self.divide(x)


class Exchanged(Sum):
    def __init__(self):
        super().__init__()
        self.exchange = ops.AlltoAll(get_group_size(), 0, 0)
        self.rows = ops.AlltoAllV()

    def construct(self, x):
        y = self.exchange(x)
        return y + self.rows(y * x, [2, 2], [2, 2])


class Nested(Sum):
    def __init__(self):
        super().__init__()
        self.total = ops.AllReduce()
        self.reduce = ops.Reduce(0)
        self.copy = ops.Broadcast(0)
        self.exchange = ops.AlltoAll(get_group_size(), 0, 0)

    def construct(self, x):
        x = self.exchange(self.total(x) * x)
        return self.copy((self.reduce(self.total(x * 2)) + self.total(x),))[0]


class Functions(Sum):
    """The functions of comm_func have the same gradients."""

    def construct(self, x):
        y, _ = comm_func.all_reduce(x)
        y = y + comm_func.all_reduce(x * x, op="max")[0]
        part, handle = comm_func.reduce_scatter_tensor(y)
        y = y * comm_func.all_gather_into_tensor(comm_func.all_gather_into_tensor(part[:1])[0])[0]
        y = y + comm_func.reduce(x, 0) + comm_func.broadcast(x, 1)
        y = y * comm_func.all_to_all_single_with_output_shape((4,), y)[0]
        pieces, _ = comm_func.all_to_all_with_output_shape([(2,), (2,)], list(y.chunk(2)))
        assert handle is None
        return pieces[0] * pieces[1]


LAYERS = [
    Sum, Largest, Smallest, Product, Gathered, Scattered, OnRoot, Copied, Divided, Exchanged,
    Nested, Functions,
]  # fmt: skip
OPERANDS = [[1.0, 5.0, 2.0, 8.0], [4.0, 3.0, 7.0, 6.0]]
