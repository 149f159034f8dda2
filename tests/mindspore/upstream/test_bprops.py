"""Bprops of the program that call collectives, in graphs: in order, whatever `construct` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn  # noqa: E402  (after the check for MindSpore)

from tests.helpers import worlds  # noqa: E402
from tests.helpers.mindspore_cases import in_mode, place_of, with_delays  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402
from unisono.core.groups import Group  # noqa: E402
from unisono.errors import Unsupported  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402

# All calls of these networks have one kind and one shape, so that a swap would not be a mismatch
# but a wrong number.


class Copy(nn.Cell):
    """Nothing forward; the sum of the gradients backward."""

    def construct(self, x: Any) -> Any:
        return x

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (comm_func.all_reduce(dout)[0],)


class Sum(nn.Cell):
    """The sum of the operands forward, and of the gradients backward, by a primitive."""

    def __init__(self) -> None:
        super().__init__()
        self.total = ops.AllReduce()

    def construct(self, x: Any) -> Any:
        return self.total(x)

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (self.total(dout),)


class Again(nn.Cell):
    """A backward that calls twice, once with what does not depend on the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.total = ops.AllReduce()

    def construct(self, x: Any, y: Any) -> Any:
        return self.total(x), y

    def bprop(self, x: Any, y: Any, out: Any, dout: Any) -> Any:
        return self.total(x) + dout[0], self.total(dout[1])


class Scaled(nn.Cell):
    """A default argument."""

    def construct(self, x: Any, scale: Any = 3) -> Any:
        return x * scale

    def bprop(self, x: Any, scale: Any, out: Any, dout: Any) -> Any:
        return comm_func.all_reduce(dout * scale)[0], 0


class Product(nn.Cell):
    """Any number of arguments."""

    def construct(self, *factors: Any) -> Any:
        return factors[0] * factors[1]

    def bprop(self, x: Any, y: Any, out: Any, dout: Any) -> Any:
        total = comm_func.all_reduce(dout)[0]
        return total * y, total * x


class Half(nn.Cell):
    """Mixed precision; the operands here are small integers."""

    def __init__(self) -> None:
        super().__init__()
        self.to_float(mindspore.float16)

    def construct(self, x: Any) -> Any:
        return x * 2

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (comm_func.all_reduce(dout.astype(mindspore.float64))[0].astype(x.dtype) * 2,)


class Bprops(nn.Cell):
    """Cells whose bprops do not need each other, collectives between, and one at the end."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.layers = nn.CellList([Copy(), Sum()])
        self.pair = (Sum(), Again())
        self.copy = Copy()
        self.scaled, self.product, self.half = Scaled(), Product(), Half()
        self.total = ops.AllReduce()

    def construct(self, a: Any, b: Any, c: Any, d: Any) -> Any:
        rank = self.rank
        for cell in self.layers:
            a = cell(a * (rank + 1)) * (rank * 2)
        b = self.pair[0](b * rank) * (3 * rank + 1)
        b = self.scaled(b) + self.scaled(a, rank) + self.scaled(c, scale=2)
        d = self.product(d, self.half(d).astype(d.dtype))
        c, d = self.pair[1](c * (rank + 2), d)
        e = self.total(c * (5 * rank))
        a = self.copy(a) * (7 * rank)
        seen = self.total(mindspore.ops.stop_gradient(a + b + c) * 0)
        return (a + b * (rank + 11) + c * 13 + d * (17 * rank) + e * 19 + seen).sum()


def _ones(rank: int) -> Any:
    return Tensor(np.full((2, 3), rank + 1.0))


class Step(nn.Cell):
    """A gradient whose first gradient the program gives, and a call after it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.gradient = mindspore.ops.GradOperation(get_all=True, sens_param=True)
        self.total = ops.AllReduce()

    def construct(self, *operands: Any) -> Any:
        first = mindspore.ops.ones((), mindspore.float64) * (self.network.rank + 3)
        gradients = self.gradient(self.network)(*operands, first)
        return (*gradients, self.total(operands[0]))


class WithSens(nn.Cell):
    """The same, by `grad` or `value_and_grad` in the graph."""

    def __init__(self, gradient: Any, network: Any) -> None:
        super().__init__()
        self.gradient = gradient
        self.network = network

    def construct(self, *operands: Any) -> Any:
        first = mindspore.ops.ones((), mindspore.float64) * (self.network.rank + 3)
        return self.gradient(self.network, (0, 1, 2, 3), sens_param=True)(*operands, first)


def with_bprops(world: Group, kind: str, mode: str) -> list[Any]:
    """Gradients of such a network, outside graphs and inside."""
    place = place_of(world)
    assert place is not None
    network = Bprops(place.position)
    operands = [_ones(place.position) * number for number in (1, 2, 3, 4)]
    gradient = {
        "grad": lambda: mindspore.grad(network, (0, 1, 2, 3)),
        "value_and_grad": lambda: mindspore.value_and_grad(network, (0, 1, 2, 3)),
        "grad with sens_param": lambda: WithSens(mindspore.grad, network),
        "value_and_grad with sens_param": lambda: WithSens(mindspore.value_and_grad, network),
        "GradOperation": lambda: Step(network),
    }[kind]
    found = []
    for chosen in ("PyNative", mode):

        def run() -> None:
            result = in_mode(chosen, gradient())(*operands)  # noqa: B023  (runs at once)
            parts = result[1] if kind.startswith("value_and_grad") else result
            found.append([part.asnumpy() for part in parts])

        with_delays(run)
    return found


@pytest.mark.parametrize("mode", essential(1, ["jit", "graph"]))
@pytest.mark.parametrize(
    "kind",
    essential(
        1,
        [
            "grad with sens_param",
            "GradOperation",
            "grad",
            "value_and_grad",
            "value_and_grad with sens_param",
        ],
    ),
)
def test_bprops_of_the_program_run_in_order(
    all_worlds: worlds.Worlds, kind: str, mode: str
) -> None:
    for outside, inside in all_worlds.run("shm", 3, with_bprops, kind, mode):
        assert len(outside) >= 4
        for expected, found in zip(outside, inside, strict=True):
            np.testing.assert_allclose(found, expected, 1e-12)


# ---- forms that MindSpore has in graphs only -----------------------------------------------------


class Choice(nn.Cell):
    """Constants of several types."""

    def construct(self, x: Any, how: Any, axis: Any, nothing: Any) -> Any:
        return x.sum(axis) if how == "sum" else x

    def bprop(self, x: Any, how: Any, axis: Any, nothing: Any, out: Any, dout: Any) -> Any:
        return comm_func.all_reduce(x * 0 + dout)[0], how, axis, nothing


class Nested(nn.Cell):
    """A tuple of operands, and tuples of results."""

    def construct(self, pair: Any, y: Any) -> Any:
        return pair[0] * pair[1], (y, y * 2)

    def bprop(self, pair: Any, y: Any, out: Any, dout: Any) -> Any:
        total = comm_func.all_reduce(dout[0])[0]
        ofy = comm_func.all_reduce(dout[1][0] + 2 * dout[1][1])[0]
        return (total * pair[1], total * pair[0]), ofy


class ByKeyword(nn.Cell):
    """A keyword that bprop does not get."""

    def construct(self, x: Any, *, factor: Any = 2) -> Any:
        return x * factor

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (comm_func.all_reduce(dout)[0] * 2,)


class InGraphs(nn.Cell):
    def __init__(self, rank: int, by_keyword: bool) -> None:
        super().__init__()
        self.rank = rank
        self.by_keyword = by_keyword
        self.choice, self.nested, self.keyword = Choice(), Nested(), ByKeyword()

    def construct(self, x: Any, y: Any) -> Any:
        if self.by_keyword:
            return self.keyword(x, factor=y).sum()
        product, (once, twice) = self.nested((x, y), y)
        chosen = self.choice(x, "sum", 0, None) + self.choice(y, "all", 1, None)
        return ((product + once * twice + chosen + self.keyword(x)) * (self.rank + 1)).sum()


def in_graphs(world: Group, mode: str) -> list[Any]:
    place = place_of(world)
    assert place is not None
    rank = place.position
    operands = _ones(rank), _ones(rank) * 2
    gradient = in_mode(mode, mindspore.grad(InGraphs(rank, False), (0, 1)))
    refused = in_mode(mode, mindspore.grad(InGraphs(rank, True)))
    try:
        refused(*operands)
        error = "nothing"
    except Unsupported as raised:
        error = str(raised)
    return [*with_delays(lambda: [part.asnumpy() for part in gradient(*operands)]), error]


@pytest.mark.parametrize("mode", essential(1, ["jit", "graph"]))
def test_constants_tuples_and_keywords(all_worlds: worlds.Worlds, mode: str) -> None:
    total = 1 + 2 + 3  # of the gradients, rank + 1 each
    for rank, (of_x, of_y, error) in enumerate(all_worlds.run("shm", 3, in_graphs, mode)):
        x, y = rank + 1, 2 * (rank + 1)
        # Each line is one cell: nested, choice (a row of sums), keyword. Of y: what bprop makes of
        # the gradients of `once` and `twice`, each the other times the weight.
        of_once = sum((other + 1) * 4 * (other + 1) for other in range(3))
        of_twice = sum((other + 1) * 2 * (other + 1) for other in range(3))
        expected_x = total * y + 2 * total + 2 * total
        expected_y = total * x + of_once + 2 * of_twice + total
        np.testing.assert_allclose(of_x, np.full((2, 3), expected_x))
        np.testing.assert_allclose(of_y, np.full((2, 3), expected_y))
        assert "takes no tensor by keyword only" in error
