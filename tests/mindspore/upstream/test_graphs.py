"""Collectives in MindSpore's graphs: program order on every rank, dtypes, and errors."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor, nn  # noqa: E402  (after the check for MindSpore)

from tests.helpers import worlds  # noqa: E402
from tests.helpers.jobs import Ranks  # noqa: E402
from tests.helpers.mindspore_cases import AsCell, in_mode, place_of, with_delays  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402
from unisono.core.groups import Group  # noqa: E402
from unisono.errors import UnisonoError  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402

# ---- order ---------------------------------------------------------------------------------------

# All calls of these graphs have one kind and one shape, so that a swap would not be a mismatch but
# a wrong number. What a rank has more than others must not change the order of its calls.


def busy(x: Any) -> Any:
    """Something to compute that takes a while and is not 0."""
    for _ in range(5):
        x = mindspore.ops.tanh(x @ x.T @ x) + 1
    return x


class Independent(nn.Cell):
    """Calls that do not need each other, used in another order on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.total = ops.AllReduce()

    def construct(self, x: Any) -> Any:
        operand = x + 0 * busy(x) if self.rank == 0 else x
        a = self.total(operand)
        b = self.total(2 * x)
        c = self.total(3 * operand)
        d = self.total(4 * x)
        if self.rank == 0:
            return d * 1000 + b * 10 + c * 100 + a
        return a + b * 10 + c * 100 + d * 1000


class Unused(nn.Cell):
    """Calls of which one rank uses no result."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.total = ops.AllReduce()

    def construct(self, x: Any) -> Any:
        self.total(7 * x)
        unused = self.total(9 * x)  # noqa: F841
        return self.total(x)


class Nested(nn.Cell):
    """Calls in cells in cells."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.first = Independent(rank)
        self.second = Unused(rank)
        self.third = Independent(rank)

    def construct(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(5 * x)
        return a + b * 10000 + self.third(6 * x)


class Loop(nn.Cell):
    """Calls in a loop, and in a branch on a constant."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.total = ops.AllReduce()

    def construct(self, x: Any) -> Any:
        result = x * 0
        for number in range(6):
            if number % 2 == 1:
                part = self.total(number * x)
            else:
                part = comm_func.all_reduce(-number * x)[0]
            if self.rank == 1:
                part = part + 0 * busy(part)
            result = result * 10 + part
        return result


def _weights_of_loop(total: Any) -> Any:
    result = 0 * total
    for number in range(6):
        result = result * 10 + (number if number % 2 else -number) * total
    return result


#: Each cell, and its result for a total of the operands.
NETWORKS: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
    "independent": (Independent, lambda total: 4321 * total),
    "unused": (Unused, lambda total: total),
    "nested": (Nested, lambda total: (4321 + 5 * 10000 + 6 * 4321) * total),
    "loop": (Loop, _weights_of_loop),
}


def in_order(world: Group, name: str, mode: str, times: int) -> list[Any]:
    """What a network returns, and its gradients, several times."""
    place = place_of(world)
    assert place is not None
    network = NETWORKS[name][0](place.position)
    x = Tensor(np.full((2, 3), place.position + 1.0))
    found = []

    def loss(x: Any) -> Any:
        return (network(x) * (place.position + 1)).sum()

    def step(x: Any) -> Any:
        forward = network(x)
        value, gradient = mindspore.value_and_grad(loss)(x)
        return forward, value, gradient, network(gradient)

    def late_step(x: Any) -> Any:
        value, gradient = mindspore.value_and_grad(loss)(x)
        return network(x), value, gradient, network(gradient)

    # Compiled once: the delays of each run are others, the graph is not.
    if mode == "graph":
        call = _graph_step(network, loss)
    else:
        call = in_mode("jit", step if mode == "jit" else late_step)

    def run() -> None:
        found.append([part.asnumpy() for part in call(x)])

    for _ in range(times):
        with_delays(run)
    return found


def _graph_step(network: Any, loss: Any) -> Callable[[Any], Any]:
    both, forward = in_mode("graph", mindspore.value_and_grad(loss)), in_mode("graph", network)

    def step(x: Any) -> Any:
        value, gradient = both(x)
        return forward(x), value, gradient, forward(gradient)

    return step


@pytest.mark.parametrize("mode", essential(1, ["jit", "graph"]))
@pytest.mark.parametrize("name", essential(2, NETWORKS))
def test_calls_run_in_the_order_of_the_program(
    all_worlds: worlds.Worlds, name: str, mode: str
) -> None:
    check_order(all_worlds, name, mode, 3, 3)


@pytest.mark.parametrize("name", essential(1, NETWORKS))
def test_calls_after_a_gradient_in_the_same_graph(all_worlds: worlds.Worlds, name: str) -> None:
    check_order(all_worlds, name, "jit after a gradient", 3, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("mode", ["jit", "graph"])
@pytest.mark.parametrize("name", NETWORKS)
def test_calls_run_in_order_many_times(
    all_worlds: worlds.Worlds, name: str, mode: str, n: int
) -> None:
    check_order(all_worlds, name, mode, n, 8)


def check_order(all_worlds: worlds.Worlds, name: str, mode: str, n: int, times: int) -> None:
    answers = all_worlds.run("shm", n, in_order, name, mode, times)
    of_total = NETWORKS[name][1]
    total = n * (n + 1) / 2
    for rank, found in enumerate(answers):
        assert len(found) == times
        for forward, value, gradient, of_gradient in found:
            np.testing.assert_allclose(forward, np.full((2, 3), of_total(total)), err_msg="forward")
            np.testing.assert_allclose(value, 6 * of_total(total) * (rank + 1))
            np.testing.assert_allclose(gradient, np.full((2, 3), of_total(total)))
            np.testing.assert_allclose(of_gradient, np.full((2, 3), of_total(n * of_total(total))))


# ---- dtypes --------------------------------------------------------------------------------------

DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "bool_")


def of_dtype(world: Group, name: str, mode: str) -> dict[str, Any]:
    place = place_of(world)
    assert place is not None
    dtype = getattr(mindspore, name)
    x = Tensor([place.position, 1, 0], mindspore.float32).astype(dtype)
    total, gather = ops.AllReduce(), ops.AllGather()

    def both(x: Any) -> Any:
        return total(x), gather(x)

    def joined(x: Any) -> Any:
        return (gather(x),)

    def loss(x: Any) -> Any:
        return (total(x) * x).sum()

    results = in_mode(mode, AsCell(joined if name == "bool_" else both))(x)
    assert all(result.dtype == dtype for result in results)
    if name in ("float16", "float32", "float64"):  # one process has losses of different dtypes
        value, gradient = in_mode(mode, mindspore.value_and_grad(loss))(x)
        assert value.dtype == gradient.dtype == dtype
        assert gradient.asnumpy().tolist() == [6, 6, 0]
    return {"results": [result.astype(mindspore.float32).asnumpy() for result in results]}


@pytest.mark.parametrize("mode", essential(1, ["jit", "graph"]))
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(all_worlds: worlds.Worlds, name: str, mode: str) -> None:
    rows = [[rank, 1, 0] for rank in range(3)]
    if name == "bool_":
        rows = [[min(rank, 1), 1, 0] for rank in range(3)]
    for answer in all_worlds.run("shm", 3, of_dtype, name, mode):
        *totals, joined = answer["results"]
        assert joined.tolist() == np.concatenate(rows).tolist()
        assert [total.tolist() for total in totals] == ([] if name == "bool_" else [[3, 3, 0]])


# ---- errors that leave the world as it is --------------------------------------------------------


def refused(world: Group, mode: str) -> dict[str, Any]:
    """What calls raise that no rank starts."""
    place = place_of(world)
    assert place is not None
    x = Tensor(np.ones((3, 2), np.float32))
    total = ops.AllReduce()
    empty = Tensor(np.ones((0, 2), np.float32))
    exchange = ops.AlltoAll(7, 0, 1)

    def reduced(x: Any) -> Any:
        return total(x)

    def with_handle(x: Any) -> Any:
        return comm_func.all_reduce(x, async_op=True)[0]

    def two_rows(x: Any) -> Any:
        return comm_func.reduce_scatter_tensor(x[:2])[0]

    def no_operator(x: Any) -> Any:
        return comm_func.all_reduce(x, "mean")[0]

    def no_group(x: Any) -> Any:
        return comm_func.all_reduce(x, "sum", "nowhere")[0]

    def no_root(x: Any) -> Any:
        return comm_func.broadcast(x, 9)

    def exchanged(x: Any) -> Any:
        return exchange(x)

    bad: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "empty": (reduced, empty),
        "handle": (with_handle, x),
        "rows": (two_rows, x),
        "operator": (no_operator, x),
        "group": (no_group, x),
        "root": (no_root, x),
        "split_count": (exchanged, x),
    }
    found = {}
    for name, (call, operand) in bad.items():
        for how in (mode, "PyNative"):
            try:
                result = in_mode(how, call if how != "graph" else AsCell(call))(operand)
                found[name, how] = ("nothing", f"{result.shape}")
            except Exception as error:
                found[name, how] = (type(error).__name__, str(error))
    found["after", mode] = ("", str(in_mode(mode, AsCell(reduced))(x).asnumpy().sum()))
    return found


@pytest.mark.parametrize("mode", essential(1, ["graph", "jit"]))
def test_bad_calls_are_the_same_errors_in_graphs(all_worlds: worlds.Worlds, mode: str) -> None:
    for found in all_worlds.run("shm", 3, refused, mode):
        for name in ("rows", "operator", "group", "root", "split_count"):
            assert found[name, mode][0] == found[name, "PyNative"][0] != "nothing", (name, found)
        assert found["empty", "PyNative"][0] == "nothing"
        assert (
            found["empty", mode][0] == "Unsupported" and "empty tensor" in found["empty", mode][1]
        )
        assert found["handle", mode][0] == "Unsupported"
        assert "async_op=True is not possible in a graph" in found["handle", mode][1]
        assert found["after", mode][1] == "18.0"  # 3 ranks of 6 ones


def dynamic(world: Group) -> tuple[str, str]:
    place_of(world)
    total = ops.AllReduce()

    class Network(nn.Cell):
        def construct(self, x: Any) -> Any:
            return total(x)

    cell = Network()
    cell.set_inputs(Tensor(shape=[None, 2], dtype=mindspore.float32))
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        cell(Tensor(np.ones((3, 2), np.float32))).asnumpy()
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    return "nothing", ""


def test_unknown_shapes_are_refused(all_worlds: worlds.Worlds) -> None:
    for kind, text in all_worlds.run("shm", 3, dynamic):
        assert kind == "Unsupported"
        assert "needs shapes that are known when it is compiled" in text


# ---- errors that end the world -------------------------------------------------------------------

FAULTS = """
import mindspore
from mindspore import Tensor
from unisono.mindspore import ops
from unisono.mindspore.communication import init
init()
total = ops.AllReduce()
def call(x):
    return total(x * x) + 1
x = Tensor(np.ones(4, np.float32))
mindspore.set_context(mode=mindspore.GRAPH_MODE if MODE == "graph" else mindspore.PYNATIVE_MODE)
run = mindspore.jit(call) if MODE == "jit" else call
class Network(mindspore.nn.Cell):
    def construct(self, x):
        return total(x * x) + 1
if MODE == "graph":
    run = Network()
assert run(x).asnumpy().tolist() == [3.0] * 4
say(ready=True)
hear()
if rank == 1 and FAULT == "mismatch":
    x = Tensor(np.ones(5, np.float32))
if rank == 1 and FAULT == "late":
    time.sleep(60)
say(**fault(lambda: run(x).asnumpy()))
hear()
"""

KINDS = {"mismatch": "MismatchError", "killed": "PeerLost", "late": "CommTimeout"}


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        ("killed", "jit"),
        pytest.param("mismatch", "jit", marks=pytest.mark.thorough),
        pytest.param("late", "jit", marks=pytest.mark.thorough),
        pytest.param("mismatch", "graph", marks=pytest.mark.thorough),
        pytest.param("killed", "graph", marks=pytest.mark.thorough),
        pytest.param("late", "graph", marks=pytest.mark.thorough),
    ],
)
def test_faults_in_graphs_are_the_same_errors(tmp_path: Path, fault: str, mode: str) -> None:
    program = tmp_path / "program.py"  # MindSpore's compiler reads functions from files
    program.write_text(FAULTS)
    body = f"""
MODE, FAULT = {mode!r}, {fault!r}
path = {str(program)!r}
exec(compile(open(path).read(), path, "exec"))
"""
    with Ranks(2, body, UNISONO_TIMEOUT="3") as ranks:
        assert ranks.read_all() == [{"ready": True}] * 2
        if fault == "killed":
            ranks[1].signal(signal.SIGKILL)
        else:
            ranks[1].tell()
        ranks[0].tell()
        said = ranks[0].read()
        assert said["kind"] == KINDS[fault], said
        assert issubclass(_kind(said["kind"]), UnisonoError)


def _kind(name: str) -> type[Exception]:
    from unisono import errors

    return getattr(errors, name)
