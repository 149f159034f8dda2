"""Lists whose tensors may differ in size stay: comm_func would divide them in equal parts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from unisono.port.program import SourceTree
from unisono.port.results.uneven import may_be_uneven


def uneven(made: str) -> bool:
    tree = SourceTree()
    head = "import torch\ndef f(x, size, sizes=None):\n    part = size // 2\n"
    text = f"{head}    made = {made}\n    made\n"
    file = tree.add(Path("program.py"), text)
    last = file.tree.body[-1]
    assert isinstance(last, ast.FunctionDef) and isinstance(last.body[-1], ast.Expr)
    return may_be_uneven(last.body[-1].value, file.scopes)


@pytest.mark.parametrize(
    "made",
    [
        "[torch.empty(n, 2) for n in sizes]",
        "[torch.zeros((sizes[n], 2)).cuda() for n in range(size)]",
        "[x.new_empty(*n) for n in sizes]",
        "[f(torch.zeros(n), size) for n in sizes]",
        "[torch.empty_like(one) for one in sizes]",
        "list(torch.split(x, sizes, dim=0))",
        "x.split([1, 2])",
        "list(x.split(split_size=sizes))",
    ],
)
def test_a_size_for_each(made: str) -> None:
    assert uneven(made)


@pytest.mark.parametrize(
    "made",
    [
        "[torch.empty_like(x) for _ in range(size)]",
        "[x + n for n in range(size)]",
        "[torch.full((1,), n) for n in range(size)]",
        "[torch.empty_like(x)] * size",
        "list(x.chunk(size))",
        "list(torch.split(x, 2))",
        "x.split(x.shape[0] // size)",
        "torch.split(x, part)",
        "[made for made in sizes]",
    ],
)
def test_one_size_for_all(made: str) -> None:
    assert not uneven(made)
