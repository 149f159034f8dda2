"""Programs that are warned of really hang, and those that are not run to the end."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.errors import CommTimeout, MismatchError, PeerLost
from unisono.port.program import SourceTree
from unisono.port.reach.reach import Reach, Unreached

DEADLINE = 0.5  # seconds that a rank waits for the others
HEAD = """
import sys
import numpy as np
import unisono.torch.distributed as dist

def sync():
    dist.barrier()

def total(x, group=None):
    dist.all_reduce(x, group=group)
    return x

def save(x):
    if dist.get_world_size() > 1:
        sync()

def is_main():
    return dist.get_rank() == 0

def main_only(function):
    def run(*arguments):
        if is_main():
            return function(*arguments)
    return run

@main_only
def report(x):
    return float(x.sum())

class Trainer:
    def __init__(self):
        self.first = dist.get_rank() == 0
    def step(self, x):
        total(x)
    def careful(self, x):
        if self.first:
            self.step(x)
        else:
            total(x)

def program(x):
    rank, size = dist.get_rank(), dist.get_world_size()
"""

HANGS = [
    "if rank == 0: dist.barrier()",
    "if rank == 0: save(x)",
    "if is_main(): sync()",
    "if rank != 0: return\nsave(x)",
    "if rank == 1: raise SystemExit\nsync()",
    "if rank == size - 1: total(x)\nelse: sync()",
    "first = rank == 0\nif not first: total(x)",
    "rank == 0 and sync()",
    "sync() if rank == 0 else None",
    "assert rank == 0\nsync()",
    "match rank:\n  case 0: sync()",
    "if rank == 0:\n  sync()\n  total(x)\nelse:\n  total(x)\n  sync()",
    "class Careless(Trainer):\n  def run(self):\n    if self.first: self.step(x)\nCareless().run()",
]
POSSIBLE = [
    "for n in range(rank): sync()",
    "while rank > 0:\n  sync()\n  break",
    "for n in range(3):\n  if rank == 1: break\n  sync()",
    "[sync() for n in range(2) if rank == 0]",
    "try: int('x' if rank == 0 else '1')\nexcept ValueError: sync()",
]
RUNS = [
    "save(x)",
    "if rank == 0: save(x)\nelse: sync()",
    "if rank != 0: sync()\nreport(x)\nif rank == 0: sync()",
    "if is_main(): parts = [x.copy() for n in range(size)]\nelse: parts = None\n"
    "dist.gather(x, parts, dst=0)",
    "group = dist.new_group([0, 1])\nif rank in (0, 1): total(x, group)\nsync()",
    "group = dist.new_group([0])\nif dist.get_rank(group) >= 0: dist.barrier(group=group)",
    "if rank == 0: dist.send(x, 1)\nelif rank == 1: dist.recv(x, 0)\nsync()",
    "try:\n  if rank == 0: return\nfinally: sync()",
    "if rank < 0 or rank >= size: raise ValueError(rank)\nsync()",
    "for n in range(2):\n  if rank == 0: continue\n  report(x)\nsync()",
    "match rank:\n  case 0: sync()\n  case _: save(x)",
    "rank == 0 and report(x)\ntotal(x)",
    "Trainer().careful(x)",
    "if rank == 0:\n  sync()\n  return\nif x.sum() > 9: sync()\nelse:\n  sync()\n  return\nprint()",
]


def warnings(source: str) -> list[Unreached]:
    tree = SourceTree()
    file = tree.add(Path("program.py"), source)
    tree.resolve()
    return Reach(tree).unreached(file)


def run(source: str, ranks: int) -> None:
    names: dict[str, Any] = {}
    exec(compile(source, "program.py", "exec"), names)

    def on_each_rank() -> None:
        # A rank that has ended is missed by the others.
        with contextlib.suppress(SystemExit, AssertionError):
            names["program"](np.ones(2))

    unisono.spawn(on_each_rank, ranks, engine="threads", timeout=DEADLINE)


def source_of(body: str) -> str:
    return HEAD + textwrap.indent(body, "    ") + "\n"


@pytest.mark.parametrize("body", HANGS)
def test_what_is_certain_ends_in_an_error(body: str) -> None:
    found = warnings(source_of(body))
    assert found and all(each.certain for each in found)
    for ranks in (2, 3):
        with pytest.raises((CommTimeout, MismatchError, PeerLost)):
            run(source_of(body), ranks)


@pytest.mark.parametrize("body", POSSIBLE)
def test_what_is_possible_ends_in_an_error_here(body: str) -> None:
    found = warnings(source_of(body))
    assert [each.certain for each in found] == [False]
    with pytest.raises((CommTimeout, MismatchError, PeerLost)):
        run(source_of(body), 2)


@pytest.mark.parametrize("body", RUNS)
def test_what_is_not_warned_of_runs_to_the_end(body: str) -> None:
    assert warnings(source_of(body)) == []
    for ranks in (2, 4):
        run(source_of(body), ranks)
