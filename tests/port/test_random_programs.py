"""Random programs that give tensors several names compute the same after they were ported."""

from __future__ import annotations

import random
import re
import textwrap
import types
from typing import Any

import pytest

import unisono
from tests.helpers.thorough import essential

pytest.importorskip("torch")
pytest.importorskip("libcst")

from unisono.port.port import port_source

HEAD = """\
import torch
import torch.distributed as dist

class Box:
    pass

def add_up(given):
    dist.all_reduce(given)
    return given

def add_up_new(given):
    new = given.clone()
    dist.all_reduce(new)
    return new

def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    box, kept, table = Box(), [], {}
    a = torch.ones(2) * rank
    b = torch.ones(2)
    c = torch.zeros(2) + rank
    box.t = torch.ones(2)
"""
TAIL = """\
everything = [a, b, c, box.t, *kept, *table.values()]
return [value.flatten().tolist() for value in everything]
"""
#: X and Y stand for names of tensors.
STATEMENTS = [
    "X = torch.ones(2) * (rank + 1)",
    "X = torch.full((2,), float(rank))",
    "X = Y",
    "X = Y.clone()",
    "X = Y * 0.5 + 1",
    "X = Y.view(-1)",
    "X = Y[:2]",
    "X = Y.detach()",
    "X = torch.zeros(2) if rank < 9 else Y",
    "X += 1",
    "X.add_(Y)",
    "X[0] = 3",
    "box.t = X",
    "X = box.t",
    "kept.append(X)",
    "kept += [X, Y]",
    "table['k'] = X",
    "X = add_up(Y)",
    "X = add_up_new(Y)",
    "add_up(X)",
    "X, Y = Y, X",
    "X = Y = torch.ones(2) * rank",
    "kept.append(X := torch.ones(2) * rank)",
    "kept += X",
    "Y = torch.add(Y, 1, out=X)",
    "table[0], Y = X, Y * 2",
    "try:\n    kept.append(X)\nfinally:\n    dist.all_reduce(X)",
    "dist.reduce(X, 1, dist.ReduceOp.AVG)",
    "n, ts = 0, [X, Y]\nwork = dist.all_reduce(ts[n], async_op=True)\nn += 1\nwork.wait()",
    "read = lambda: X",
    "dist.all_reduce(X)",
    "dist.all_reduce(X)",
    "dist.all_reduce(X, op=dist.ReduceOp.MAX)",
    "dist.all_reduce(X, dist.ReduceOp.AVG)",
    "dist.all_reduce(X.view(-1))",
    "dist.all_reduce(box.t)",
    "dist.broadcast(X, 1)",
    "dist.reduce(X, dst=0)",
    "work = dist.all_reduce(X, async_op=True)\nwork.wait()",
    "dist.all_reduce(X, async_op=True).wait()",
    "parts = [torch.zeros(2) for _ in range(size)]\ndist.all_gather(parts, X)\nkept += parts",
    "parts = [X, Y] + [torch.zeros(2) for _ in range(size - 2)]\ndist.all_gather(parts, X * 1)",
    "dist.reduce_scatter(X, [Y + n for n in range(size)])",
    "parts = [torch.empty_like(X) for _ in range(size)]\ndist.all_gather(parts, X)\n"
    "Y = torch.cat(parts)[:2]",
    "parts = [torch.empty_like(X) for _ in range(size)]\ndist.all_gather(parts, X)\n"
    "X = torch.cat(parts)\nX = X[-2:]",
    "parts = [torch.zeros(X.shape) for _ in range(size)]\ndist.all_gather(parts, X)\n"
    "Y = torch.stack(parts)\nkept.append(Y)\nY = Y[0]",
    "parts = [torch.empty_like(X) for _ in range(size)]\ndist.all_gather(parts, X)\n"
    "kept.append(parts[0])\nY = torch.cat(parts).view(size, 2).sum(0)",
    "for n in range(2):\n    parts = [torch.empty_like(X) for _ in range(size)]\n"
    "    work = dist.all_gather(parts, X, async_op=True)\n    Y = Y + 1\n    work.wait()\n"
    "    kept.append(torch.cat(parts))",
    "handles = []\nfor t in [X, Y * 1]:\n    handles.append(dist.all_reduce(t, async_op=True))\n"
    "for h in handles:\n    h.wait()",
    "handles = [dist.all_reduce(t, async_op=True) for t in (X, box.t + 1)]\n"
    "[h.wait() for h in handles]",
    "handles = []\nfor n in range(2):\n    work = dist.all_reduce(X[n : n + 1], async_op=True)\n"
    "    handles.append(work)\nfor h in handles: h.wait()",
    "work = dist.all_reduce(X, async_op=rank >= 0)\nif work is not None:\n    work.wait()",
    "later = size > 9\nwork = dist.all_reduce(X, async_op=later)\nY = X + 1\n"
    "if later:\n    work.wait()",
    "for t in [X, Y]:\n    dist.all_reduce(t)",
    "for n in range(2):\n    dist.all_reduce(X)\n    kept.append(X)",
    "for n in range(2):\n    Y = X\n    dist.all_reduce(X)\n    X = torch.ones(2) * rank",
    "if size > 1: dist.all_reduce(X)",
]


def program(seed: int) -> str:
    choice = random.Random(seed)
    body = ""
    for _ in range(choice.randint(4, 12)):
        first, second = choice.sample("abc", 2)
        line = choice.choice(STATEMENTS)
        body += "".join({"X": first, "Y": second}.get(word, word) for word in _words(line)) + "\n"
    return HEAD + textwrap.indent(body + TAIL, "    ")


def _words(text: str) -> list[str]:
    """Divide a text so that a lone X or Y is a word."""
    padded = f" {text} "
    found: list[str] = []
    for before, letter, after in zip(padded, padded[1:], padded[2:], strict=False):
        alone = letter in "XY" and not (before.isalnum() or after.isalnum())
        found.append(letter if alone else letter.replace("X", "X ").replace("Y", "Y "))
    return found


def run(source: str, ranks: int) -> list[Any]:
    """Run main() over unisono. Its imports are few: the prefix rule, by LibCST, takes longer."""
    prefixed = re.sub(
        r"^(import|from) (torch\.distributed|mindspore)\b", r"\1 unisono.\2", source, flags=re.M
    )
    module = types.ModuleType("program")
    exec(compile(prefixed, "program.py", "exec"), module.__dict__)
    return unisono.spawn(module.main, ranks, timeout=60)


@pytest.mark.parametrize("first", essential(1, range(0, 120, 8)))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 8):
        source = program(seed)
        expected = run(source, 2)
        for target in ("mindspore:comm_func", "mindspore:mint", "mindspore:ops"):
            there = port_source(source, target)
            left = "torch.distributed" in there
            assert not left or ("async_op" in source and target == "mindspore:ops"), there
            assert run(there, 2) == expected, f"{seed}\n{source}\n{there}"
            back = port_source(there, "torch")
            assert run(back, 2) == expected, f"{seed}\n{source}\n{there}\n{back}"
