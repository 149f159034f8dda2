"""Gradients through collectives: those of the sum of all ranks' losses, by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn  # noqa: E402  (after the check for MindSpore)

from tests.helpers import worlds  # noqa: E402
from tests.helpers.mindspore_cases import (  # noqa: E402
    CASES,
    MODES,
    SCALARS,
    Loss,
    in_mode,
    operand,
    place_of,
    with_delays,
)
from tests.helpers.mindspore_jobs import MINDSPORE_ALONE, run_job  # noqa: E402
from tests.helpers.thorough import essential, essential_rows  # noqa: E402
from unisono.core.groups import Group  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402

_STEP = 1e-5

#: Ranks of the world, the members of a group of it, not in order, and modes; None is the world.
#: A group of two is reversed and leaves a rank out. Both ways to a graph compile the same one, so
#: that each meets the world and a group, but not every size.
GROUPS = essential_rows(
    1,
    [
        (3, None, MODES),
        (4, None, ("PyNative", "graph")),
        (3, [2, 0], ("PyNative", "graph")),
        (4, [3, 0, 2], ("PyNative", "jit")),
    ],
)

#: One case for each formula of a backward; the others share one with these.
ESSENTIAL = (
    "AllReduce sum",
    "AllReduce max",
    "AllReduce prod",
    "AllReduce avg",
    "ReduceScatter min",
    "ReduceScatter prod",
    "Reduce max",
    "Reduce prod",
    "AllGather",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "AlltoAll 2 1",
    "AlltoAllV",
    "AllGatherV",
    "ReduceScatterV avg",
    "Send and Receive",
    "all_reduce",
    "all_to_all_with_output_shape",
    "all_to_all_single_with_output_shape with splits",
)

# As upstream, the gradient of a broadcast passes through unchanged on every rank; that of the sum
# of all losses would be their sum at the root, and zero elsewhere.
UNCHANGED = ("Broadcast", "Broadcast of a tuple", "broadcast")


def slopes(
    world: Group,
    name: str,
    members: Sequence[int] | None,
    scalar: bool,
    modes: Sequence[str] = MODES,
) -> dict[str, Any] | None:
    """Gradients in each mode, and this rank's losses a little before and after its operand."""
    place = place_of(world, members)
    if place is None:
        return None
    case = CASES[name](place)
    shape = () if scalar else case.shape
    loss = Loss(case, place) if not scalar else Loss(type(case)(case.call, ()), place)
    x = operand(place, shape)
    found: dict[str, Any] = {"gradients": {}, "losses": [], "operand": x}
    for mode in modes:
        gradient = in_mode(mode, mindspore.grad(loss))(Tensor(x))
        assert isinstance(gradient, Tensor) and gradient.shape == shape, (mode, gradient)
        found["gradients"][mode] = gradient.asnumpy()
    generator = np.random.default_rng([3, place.position])
    found["directions"] = [generator.normal(size=shape) for _ in range(3)]
    for direction in found["directions"]:
        before, after = (loss(Tensor(x + sign * _STEP * direction)) for sign in (-1, 1))
        found["losses"].append((before.asnumpy(), after.asnumpy()))
    found["weights"] = loss.weights.asnumpy()
    return found


def check_slopes(found: list[dict[str, Any]], modes: Sequence[str] = MODES) -> None:
    """Gradients agree with the change of the sum of all losses, along some directions."""
    for mode in modes:
        for number in range(3):
            change = sum(after - before for before, after in (f["losses"][number] for f in found))
            along = sum(
                float((f["gradients"][mode] * f["directions"][number]).sum()) for f in found
            )
            np.testing.assert_allclose(along, change / (2 * _STEP), 1e-6, 1e-7, err_msg=mode)


@pytest.mark.parametrize(("n", "members", "modes"), GROUPS)
@pytest.mark.parametrize("name", essential(len(ESSENTIAL), dict.fromkeys([*ESSENTIAL, *CASES])))
def test_gradient(
    all_worlds: worlds.Worlds,
    name: str,
    n: int,
    members: Sequence[int] | None,
    modes: Sequence[str],
) -> None:
    answers = all_worlds.run("shm", n, slopes, name, members, False, modes)
    found = [answer for answer in answers if answer is not None]
    assert len(found) == (n if members is None else len(members))
    if name in UNCHANGED:
        for f in found:
            factor = 3 if name == "Broadcast of a tuple" else 1
            for mode in modes:
                np.testing.assert_allclose(
                    f["gradients"][mode], factor * f["weights"] * 2 * f["operand"], 1e-12
                )
        return
    check_slopes(found, modes)


@pytest.mark.parametrize("name", SCALARS)
def test_gradient_without_dimensions(all_worlds: worlds.Worlds, name: str) -> None:
    found = all_worlds.run("shm", 3, slopes, name, None, True)
    if name in UNCHANGED:
        for f in found:
            for mode in MODES:
                np.testing.assert_allclose(f["gradients"][mode], f["weights"] * 2 * f["operand"])
        return
    check_slopes(found)


# ---- what programs do with gradients -------------------------------------------------------------


def float32(world: Group) -> dict[str, Any]:
    """For each case: the gradient in float32, and in float64."""
    place = place_of(world)
    assert place is not None
    found = {}
    for name, make in CASES.items():
        if name == "Send and Receive":  # its dtype is an argument
            continue
        case = make(place)
        x = operand(place, case.shape, np.float32)
        both = []
        for dtype in (np.float32, np.float64):
            gradient = mindspore.grad(Loss(case, place, dtype))(Tensor(x.astype(dtype)))
            assert gradient.asnumpy().dtype == dtype, name
            both.append(gradient.asnumpy())
        found[name] = both
    return found


@pytest.mark.thorough
def test_float32(all_worlds: worlds.Worlds) -> None:
    for found in all_worlds.run("shm", 3, float32):
        assert len(found) == len(CASES) - 1
        for name, (single, double) in found.items():
            np.testing.assert_allclose(single, double, 1e-4, 1e-5, err_msg=name)


def handles(world: Group) -> dict[str, Any]:
    """Gradients through calls that return a handle, and through those that do not."""
    place = place_of(world)
    assert place is not None
    x = Tensor(operand(place, place.rows))
    shape = place.rows
    calls = {
        "all_reduce": lambda x, a: comm_func.all_reduce(x, async_op=a),
        "all_gather_into_tensor": lambda x, a: comm_func.all_gather_into_tensor(x, async_op=a),
        "reduce_scatter_tensor": lambda x, a: comm_func.reduce_scatter_tensor(x, async_op=a),
        "all_to_all_single": lambda x, a: comm_func.all_to_all_single_with_output_shape(
            shape, x, async_op=a
        ),
    }
    found = {}
    for name, call in calls.items():
        both = []
        for async_op in (True, False):

            def loss(x: Any, call: Any = call, async_op: bool = async_op) -> Any:
                result, handle = call(x * x, async_op)
                assert (handle is not None) == async_op
                if handle is not None:
                    handle.wait()
                return (result * (place.position + 1)).sum()

            both.append([part.asnumpy() for part in mindspore.value_and_grad(loss)(x)])
        found[name] = both
    return found


def test_gradient_with_a_handle(all_worlds: worlds.Worlds) -> None:
    for found in all_worlds.run("shm", 3, handles):
        for name, (with_handle, without) in found.items():
            for ours, theirs in zip(with_handle, without, strict=True):
                assert np.array_equal(ours, theirs) and theirs.any(), name


class Layer(nn.Cell):
    """A layer whose columns are distributed; its result is joined from all ranks."""

    def __init__(self, weight: Any, total: Any) -> None:
        super().__init__()
        self.weight = mindspore.Parameter(Tensor(weight), name="weight")
        self.total = total

    def construct(self, x: Any) -> Any:
        return self.total(mindspore.ops.tanh(x @ self.weight))


class WithBackward(nn.Cell):
    """A collective whose backward the program writes itself, with a collective."""

    def __init__(self) -> None:
        super().__init__()
        self.total = ops.AllReduce()

    def construct(self, x: Any) -> Any:
        return self.total(x)

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        return (self.total(dout),)


TOTALS: dict[str, Callable[[], Any]] = {"bprop": WithBackward}


def _loss_of(layer: Any, factor: int) -> Any:
    def loss(x: Any) -> Any:
        result = layer(x)
        return (result * factor).sum(), result

    return loss


def training(world: Group, mode: str, names: Sequence[str]) -> dict[str, Any]:
    """Gradients of weights and auxiliary results, plain, recomputed, or with a bprop."""
    place = place_of(world)
    assert place is not None
    weight, x = operand(place, (3, 4)), Tensor(operand(place, (2, 3)))
    found = {}
    for name in names:
        layer = Layer(weight, TOTALS.get(name, ops.AllReduce)())
        if name == "recomputed":
            layer.recompute()

        gradient = mindspore.value_and_grad(
            _loss_of(layer, place.position + 1), 0, layer.trainable_params(), has_aux=True
        )
        (value, aux), (of_x, of_weights) = in_mode(mode, gradient)(x)
        found[name] = [part.asnumpy() for part in (value, aux, of_x, of_weights[0])]
    return found


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_weights(all_worlds: worlds.Worlds, mode: str) -> None:
    check_weights(all_worlds, mode, ["plain"])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bprop", "recomputed"])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_through_cells_that_the_compiler_treats_apart(
    all_worlds: worlds.Worlds, name: str, mode: str
) -> None:
    check_weights(all_worlds, mode, [name])


def check_weights(all_worlds: worlds.Worlds, mode: str, names: Sequence[str]) -> None:
    answers = all_worlds.run("shm", 3, training, mode, names)
    weights = [np.random.default_rng([rank, 3, 4]).uniform(0.5, 1.5, (3, 4)) for rank in range(3)]
    operands = [np.random.default_rng([rank, 2, 3]).uniform(0.5, 1.5, (2, 3)) for rank in range(3)]
    parts = [np.tanh(x @ weight) for x, weight in zip(operands, weights, strict=True)]
    total = sum(parts)
    for rank, found in enumerate(answers):
        assert list(found) == list(names)
        inner = (1 - parts[rank] ** 2) * (1 + 2 + 3)  # each rank's loss has its number as a factor
        expected = [
            (rank + 1) * total.sum(),
            total,
            inner @ weights[rank].T,
            operands[rank].T @ inner,
        ]
        for name, got in found.items():
            for ours, right in zip(got, expected, strict=True):
                np.testing.assert_allclose(ours, right, 1e-12, err_msg=name)


LINEAR = (
    "AllReduce sum",
    "AllReduce avg",
    "AllGather",
    "ReduceScatter sum",
    "Reduce sum",
    "CollectiveGather",
    "CollectiveScatter",
    "AlltoAll 0 1",
    "AlltoAllV",
    "AllGatherV",
    "ReduceScatterV sum",
    "all_to_all_single_with_output_shape",
)


def second_order(world: Group, name: str, modes: Sequence[str]) -> dict[str, Any]:
    """The gradient of the sum of the squares of a gradient, in each mode."""
    place = place_of(world)
    assert place is not None
    case = CASES[name](place)
    loss = Loss(case, place)
    x = operand(place, case.shape)

    def squares(x: Any) -> Any:
        return (mindspore.grad(loss)(x) ** 2).sum()

    found: dict[str, Any] = {"first": mindspore.grad(loss)(Tensor(x)).asnumpy(), "operand": x}
    for mode in modes:
        gradient = in_mode(mode, mindspore.grad(squares))
        found[mode] = with_delays(lambda: gradient(Tensor(x)).asnumpy())  # noqa: B023
    return found


@pytest.mark.parametrize("name", essential(2, LINEAR))
def test_second_order(all_worlds: worlds.Worlds, name: str) -> None:
    check_second_order(all_worlds, name, ["PyNative"])


@pytest.mark.parametrize("name", essential(1, LINEAR))
def test_second_order_in_graphs(all_worlds: worlds.Worlds, name: str) -> None:
    check_second_order(all_worlds, name, ["graph", "jit"])


def check_second_order(all_worlds: worlds.Worlds, name: str, modes: Sequence[str]) -> None:
    for found in all_worlds.run("shm", 3, second_order, name, modes):
        # The collective is linear in x * x, so the gradient is c * x, and its squares give 2 c^2 x.
        factor = found["first"] / found["operand"]
        for mode in modes:
            np.testing.assert_allclose(
                found[mode], 2 * factor**2 * found["operand"], 1e-9, 1e-12, err_msg=mode
            )


# ---- beside real MindSpore, which differentiates AllReduce on a CPU ------------------------------

PROGRAM = """
import json, sys
import numpy as np
import mindspore
from mindspore import Tensor, nn
from {prefix}mindspore import ops
from {prefix}mindspore.communication import init, get_rank

init("mccl")
rank = get_rank()
values = np.array([[0.1, -2.5, 3.0], [1e-3, 7.0, 0.5]], np.float32) * np.float32(rank + 1.3)

class Loss(nn.Cell):
    def __init__(self, op):
        super().__init__()
        self.reduce = ops.AllReduce(op)

    def construct(self, x):
        return (self.reduce(x * x) * (rank + 0.7)).sum()

seen = {{}}
for mode in (mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE):
    mindspore.set_context(mode=mode)
    for op in ("sum", "max", "min", "prod"):
        try:
            gradient = mindspore.grad(Loss(op))(Tensor(values)).asnumpy()
            seen[f"{{op}} {{mode}}"] = gradient.tobytes().hex()
        except Exception as error:
            seen[f"{{op}} {{mode}}"] = "no: " + str(error)[:100]
with open(sys.argv[1] + str(rank), "w") as file:
    json.dump(seen, file)
"""


@pytest.mark.thorough
def test_the_same_gradients_as_mindspore(tmp_path: Path) -> None:
    real = run_job(PROGRAM.format(prefix=""), tmp_path / "real", MINDSPORE_ALONE)
    ours = run_job(PROGRAM.format(prefix="unisono."), tmp_path / "ours")
    for theirs, own in zip(real, ours, strict=True):
        assert not any(value.startswith("no") for value in own.values()), own
        compared = [name for name, value in theirs.items() if not value.startswith("no")]
        assert "sum 1" in compared, theirs
        assert {name: own[name] for name in compared} == {name: theirs[name] for name in compared}
