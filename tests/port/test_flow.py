"""A name is bound anew only where nobody else can have the tensor."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from unisono.port.flow import is_unknown_to_autograd, why_not_rebind
from unisono.port.program import SourceFile, SourceTree


def last_call(source: str) -> tuple[ast.Call, SourceFile]:
    """Return the last all_reduce, and its file."""
    tree = SourceTree()
    text = "import torch\nimport torch.distributed as dist\n" + textwrap.dedent(source)
    file = tree.add(Path("program.py"), text)
    tree.resolve()
    call = [one.call for one in file.references if one.path.endswith(".all_reduce")][-1]
    assert isinstance(call, ast.Call)
    return call, file


def reason(source: str) -> str | None:
    """Why the tensor of the last all_reduce must keep its identity."""
    call, file = last_call(source)
    return why_not_rebind(call.args[0], call, file)


@pytest.mark.parametrize(
    "body",
    [
        "t = torch.zeros(3)",
        "t = x.clone()",
        "t = a * b + 1",
        "t = torch.tensor(1.0).cuda()",
        "t = torch.ones(2)\nt += 1\nt[0] = 5\nt.add_(1)\nprint(t, t.shape, float(t.sum()))",
        "t = torch.ones(2)\ny = t * 2\nz = torch.stack([y])\nu = torch.zeros_like(t)",
        "t = torch.ones(2)\ndist.broadcast(t, 0)",
        "t = dist.nn.functional.all_reduce(x)",
        "t = torch.zeros(2)\nt += x\nb -= a[t] - -t",
        "t = torch.matmul(a, b)",
    ],
)
def test_new_tensors(body: str) -> None:
    lines = [*body.splitlines(), "dist.all_reduce(t)", "other.keep(t)", "return t"]
    assert reason("def f(x, a, b, other):\n" + textwrap.indent("\n".join(lines), "    ")) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("dist.all_reduce(x)", "argument of the function"),
        ("dist.all_reduce(self.grad)", "attribute"),
        ("dist.all_reduce(x[0])", "element of something"),
        ("dist.all_reduce(x.view(-1))", "value of an expression"),
        ("for t in x: dist.all_reduce(t)", "variable of a loop"),
        ("t = x\ndist.all_reduce(t)", "known under another name"),
        ("t = x.detach()\ndist.all_reduce(t)", "known under another name"),
        ("t = x.to('cuda')\ndist.all_reduce(t)", "known under another name"),
        ("t = model(x)\ndist.all_reduce(t)", "known under another name"),
        ("t = meter.mean()\ndist.all_reduce(t)", "known under another name"),
        ("t = torch.cat([a, b], out=x)\ndist.all_reduce(t)", "known under another name"),
        ("t = torch.ones(2, requires_grad=True)\ndist.all_reduce(t)", "known under another name"),
        ("t = torch.ones(2)\nt.requires_grad_()\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nt.requires_grad = True\ndist.all_reduce(t)", "may keep"),
        ("t = torch.zeros(2, **a)\ndist.all_reduce(t)", "known under another name"),
        ("t = torch.ones(2) if a else x\ndist.all_reduce(t)", "known under another name"),
        ("t, u = torch.ones(2), 1\ndist.all_reduce(t)", "not followed"),
        ("t = torch.ones(2)\nself.t = t\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = t.view(-1)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = t[0]\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nkept = [t]\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nkept.append(t)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = a or t\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nyield t\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nwhile a:\n  dist.all_reduce(t)\n  v = t", "may keep"),
        ("t = torch.ones(2)\ndef g(): return t\ndist.all_reduce(t)", "function inside"),
        ("t = torch.ones(2)\ndef g(): dist.all_reduce(t)", "outer scope"),
        ("global t\nt = torch.ones(2)\ndist.all_reduce(t)", "outer scope"),
        ("t = u = torch.ones(2)\ndist.all_reduce(t)", "something else too"),
        ("kept.append(t := torch.ones(2))\ndist.all_reduce(t)", "something else too"),
        ("t = torch.ones(2)\nv = torch.cat([a, b], out=t)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nkept += t\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nkept[t] = 1\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = +t\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nt.set_(x)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = dist.P2POp(dist.isend, t, 1)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = dist.tensor.DTensor(t)\ndist.all_reduce(t)", "may keep"),
        ("t = torch.ones(2)\nv = locals()\ndist.all_reduce(t)", "may keep"),
        ("t = dist.nn.functional.reduce_scatter(x, a)\ndist.all_reduce(t)", "another name"),
        ("torch = other\nt = torch.zeros(1)\ndist.all_reduce(t)", "known under another name"),
    ],
)
def test_tensors_that_others_may_have(body: str, text: str) -> None:
    found = reason(
        "def f(self, x, a, model, meter, kept, other):\n" + textwrap.indent(body, "    ")
    )
    assert found is not None and text in found


def test_a_module_is_a_scope_too() -> None:
    assert reason("t = torch.zeros(1)\ndist.all_reduce(t)\n") is None
    assert reason("class A:\n    t = torch.zeros(1)\n    dist.all_reduce(t)\n") is not None


@pytest.mark.parametrize(
    ("body", "unknown"),
    [
        ("t = torch.zeros(2).cuda()", True),
        ("t = torch.ones(2)\nt += 1\nprint(t)", True),
        ("t = torch.ones(2)\nt = dist.nn.functional.all_reduce(t)", True),
        ("t = dist.nn.functional.all_reduce(x)", False),
        ("t = x * 2", False),
        ("t = torch.cat([x])", False),
        ("t = torch.ones(2)\nt += x", False),
        ("t = torch.ones(2)\nt[0] = x", False),
        ("t = torch.ones(2)\nt.add_(x)", False),
        ("for t in x: print(t)", False),
    ],
)
def test_what_autograd_may_have_kept(body: str, unknown: bool) -> None:
    lines = textwrap.indent(f"{body}\ndist.all_reduce(t)", "    ")
    call, file = last_call(f"def f(x):\n{lines}")
    assert isinstance(call.args[0], ast.Name)
    assert is_unknown_to_autograd(call.args[0], file) == unknown


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("import torch as t", True),
        ("from mindspore import ops as t", True),
        ("from mine import ops as t", False),
        ("from . import ops as t", False),
    ],
)
def test_a_framework_is_what_is_imported(line: str, known: bool) -> None:
    """A module of the program may be called ops, and its cat may return what it gets."""
    found = reason(f"{line}\ndef f(x):\n    y = t.cat([x])\n    dist.all_reduce(y)\n")
    assert (found is None) == known
