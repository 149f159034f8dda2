"""Gradients of ported programs: those of MindSpore, in unisono and in torch itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.helpers.paths import mindspore_python

pytest.importorskip("torch")
pytest.importorskip("libcst")

from unisono.port.decision import decide
from unisono.port.plan import Action, Decision
from unisono.port.port import port_source
from unisono.port.program import SourceTree
from unisono.port.rules import Target

LAYERS = Path(__file__).parent / "cases/upstream/gradients.py"
EXPECTED = LAYERS.parent / "torch" / LAYERS.name
IN_PLACE = "all_reduce.gradient-in-place"
#: What each rank calculates: the results of all layers, and gradients of a loss of its own.
MINDSPORE = """
import mindspore, numpy
from unisono.mindspore.communication import get_rank, init, release

def main():
    answers, rank = {}, get_rank()
    for layer in LAYERS:
        def loss(x):
            y = layer()(x)
            return (y * y).sum() * (rank + 2), y
        x = mindspore.Tensor(numpy.array(OPERANDS[rank]))
        (_, y), gradient = mindspore.value_and_grad(loss, has_aux=True)(x)
        answers[layer.__name__] = [y.asnumpy().tolist(), gradient.asnumpy().tolist()]
    return answers
"""
TORCH = """
import torch

def main():
    answers, rank = {}, dist.get_rank()
    for layer in LAYERS:
        x = torch.tensor(OPERANDS[rank], dtype=torch.float64, requires_grad=True)
        y = layer()(x)
        ((y * y).sum() * (rank + 2)).backward()
        answers[layer.__name__] = [y.tolist(), x.grad.tolist()]
    return answers
"""
RUN = """
import json, pathlib, sys

if __name__ == "__main__":
    {start}
    answers = main()
    pathlib.Path(sys.argv[1], str({rank})).write_text(json.dumps(answers))
    {end}
"""


def launched(folder: Path, source: str, python: str) -> list[Any]:
    """Run a program on two ranks, and return the answers that it writes."""
    (folder / "program.py").write_text(source)
    done = subprocess.run(
        [
            *[sys.executable, "-m", "unisono", "run", "--timeout", "100", "-n", "2"],
            *["--python", python, str(folder / "program.py"), str(folder)],
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def of_mindspore(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What MindSpore's own tensors and autograd give."""
    source = port_source(LAYERS.read_text(), "unisono") + MINDSPORE
    source += RUN.format(start="init()", rank="get_rank()", end="release()")
    return launched(tmp_path_factory.mktemp("mindspore"), source, mindspore_python())


def as_module(source: str) -> str:
    """Make a layer of torch of one of MindSpore, which is left to people."""
    for old, new in (
        ("from mindspore import nn", "from torch import nn"),
        ("nn.Cell", "nn.Module"),
        ("def construct", "def forward"),
    ):
        assert old in source
        source = source.replace(old, new)
    return source


def check(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == 12 and ours.keys() == theirs.keys()
        for name, pair in ours.items():
            for one, other in zip(pair, theirs[name], strict=True):
                assert one == pytest.approx(other, rel=1e-12), name
    for name in found[0]:
        assert any(any(ours[name][1]) for ours in found), name


def test_what_it_becomes() -> None:
    assert port_source(LAYERS.read_text(), "torch") == EXPECTED.read_text()


@pytest.mark.filterwarnings("ignore:the call at .* wrote into a tensor")  # which Broadcast does
def test_gradients_in_unisono(of_mindspore: list[Any]) -> None:
    module = types.ModuleType("program")
    source = as_module(port_source(EXPECTED.read_text(), "unisono")) + TORCH
    exec(compile(source, "program.py", "exec"), module.__dict__)
    check(unisono.spawn(module.main, 2, timeout=60), of_mindspore)


def test_gradients_in_torch_itself(of_mindspore: list[Any], tmp_path: Path) -> None:
    source = as_module(EXPECTED.read_text()) + TORCH
    start, end = 'dist.init_process_group("gloo")', "dist.destroy_process_group()"
    source += RUN.format(start=start, rank="dist.get_rank()", end=end)
    check(launched(tmp_path, source, sys.executable), of_mindspore)


@pytest.mark.filterwarnings("ignore:the call at .* wrote into a tensor")
def test_a_call_in_place_would_have_another_gradient(of_mindspore: list[Any]) -> None:
    source = as_module(port_source(EXPECTED.read_text(), "unisono")) + TORCH
    source = source.replace("functional.all_reduce", "in_place").replace("in LAYERS:", "in [Sum]:")
    source += "\ndef in_place(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y\n"
    module = types.ModuleType("program")
    exec(compile(source, "program.py", "exec"), module.__dict__)
    for ours, theirs in zip(unisono.spawn(module.main, 2, timeout=60), of_mindspore, strict=True):
        assert ours["Sum"][0] == theirs["Sum"][0] and ours["Sum"][1] != theirs["Sum"][1]


# ---- the report ----------------------------------------------------------------------------------


CELL = """\
from mindspore import ops
from mindspore.communication import comm_func


class Cell:
    def __init__(self):
        self.call = ops.{primitive}

    def {method}(self, x):
        y = {call}
"""
MODULE = """\
import torch.distributed as dist
from torch.distributed.nn import functional


class Module:
    def {method}(self, x):
        {call}
"""


def decisions(source: str, to: str) -> list[Decision]:
    tree = SourceTree()
    file = tree.add(Path("main.py"), source)
    tree.resolve()
    return decide(tree, file, Target.parse(to))


def decision(call: str, to: str, method: str = "construct", primitive: str = "AllReduce()") -> Any:
    text = MODULE if to != "torch" else CELL
    source = text.format(method=method, call=call, primitive=primitive)
    found = [one for one in decisions(source, to) if one.reference.node.lineno > 7]
    return (found or decisions(source, to))[0]


@pytest.mark.parametrize(
    ("call", "primitive", "target"),
    [
        ("self.call(x)", "AllReduce()", "nn.functional.all_reduce"),
        ("self.call(x)", "ReduceScatter('max')", "reduce_scatter_tensor"),
        ("self.call((x,))[0]", "Broadcast(0)", "broadcast"),
        ("comm_func.reduce(x, 0)", "AllReduce()", "nn.functional.reduce"),
    ],
)
def test_which_call_has_the_gradient(call: str, primitive: str, target: str) -> None:
    found = decision(call, "torch", primitive=primitive)
    assert found.verdict == Action.REWRITE and found.target == f"torch.distributed.{target}"


def test_in_place_calls_tell_of_gradients() -> None:
    call = "comm_func.all_reduce(x)[0]"
    for method in ("construct", "forward"):
        assert IN_PLACE not in decision(call, "torch", method).differences
    assert IN_PLACE in decision(call, "torch", "helper").differences
    assert (
        IN_PLACE in decision("self.call(x)", "torch", primitive="ReduceScatter('max')").differences
    )
    same = decision("comm_func.broadcast(x)", "torch", "helper")
    assert same.verdict == Action.REWRITE and IN_PLACE not in same.differences


@pytest.mark.parametrize("to", ["mindspore:comm_func", "mindspore:ops"])
def test_in_place_calls_that_get_a_gradient_tell_of_it(to: str) -> None:
    for method in ("forward", "step"):
        found = decision("dist.all_reduce(x)", to, method)
        assert found.verdict == Action.COPY_BACK and IN_PLACE in found.differences
    assert IN_PLACE not in decision("dist.broadcast(x, 0)", to, "forward").differences
    assert IN_PLACE not in decision("dist.all_reduce(x)", "mindspore:mint", "forward").differences


@pytest.mark.parametrize(
    ("call", "primitive", "reason"),
    [
        ("self.call(x)", "Send(0, 1)", "no message with a gradient"),
        ("self.call()", "Receive(0, 0, [2], x.dtype)", "no message with a gradient"),
        ("self.call(x)", "Reduce(0, 'max')", "wrong for max"),
        ("comm_func.all_reduce(x, async_op=True)", "AllReduce()", "return no handle"),
        ("comm_func.gather_into_tensor(x)", "AllReduce()", "lists that only one rank has"),
    ],
)
def test_what_has_no_gradient_in_torch(call: str, primitive: str, reason: str) -> None:
    found = decision(call, "torch", primitive=primitive)
    assert found.verdict == Action.LEAVE and reason in found.reason


def test_messages_elsewhere_tell_of_gradients() -> None:
    found = decision("self.call(x)", "torch", "step", "Reduce(0, 'max')")
    assert found.verdict == Action.LEAVE  # primitives are parts of layers, whatever calls them
    (sent,) = decisions("from mindspore import ops\nops.Send(0, 1)(x)\n", "torch")
    assert sent.verdict == Action.REWRITE and IN_PLACE in sent.differences


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("functional.broadcast(x, 0)", "the gradients differ"),
        ("functional.gather(x)", "a list of zeros"),
        ("functional.all_gather(x + 1)", "give it a name first"),
        ("functional.reduce_scatter(x, x.chunk(2))", "the result is in 'x' too"),
        ("functional.all_reduce(x, op=x.op)", "the operator is a variable"),
        ("functional.scatter(x)", "does not import torch"),
    ],
)
def test_functions_that_stay(call: str, reason: str) -> None:
    found = decision(call, "mindspore", "forward")
    assert found.verdict == Action.LEAVE and reason in found.reason
    assert "write in place" in decision(call, "mindspore:mint", "forward").reason


def test_operators_of_functions_tell_of_gradients() -> None:
    call = "functional.all_reduce(x, op=dist.ReduceOp.MAX)"
    assert "groups.gradients" in decision(call, "mindspore", "forward").differences
    plain = decision("functional.all_reduce(x, op=dist.ReduceOp.SUM)", "mindspore", "forward")
    assert "groups.gradients" not in plain.differences
    largest = decision("self.call(x)", "torch", primitive="AllReduce('max')")
    assert "torch's own gradient of max is wrong" in largest.reason


def test_what_autograd_has_kept_is_not_overwritten() -> None:
    source = (
        "import torch\nfrom mindspore.communication import comm_func\n\ndef main():\n"
        "    w = torch.ones(2, requires_grad=True)\n    x = w * 2\n    y = x * x\n"
        "    x, _ = comm_func.all_reduce(x)\n    y.sum().backward()\n    return w.grad.tolist()\n"
    )
    for program in (source, port_source(source, "torch")):
        module = types.ModuleType("program")
        exec(port_source(program, "unisono"), module.__dict__)
        assert unisono.spawn(module.main, 2) == [[8.0, 8.0]] * 2
