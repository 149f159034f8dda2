"""Collectives that only some ranks may reach."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unisono.port.program import SourceTree
from unisono.port.reach import unreached


def warnings(body: str) -> list[str]:
    tree = SourceTree()
    source = "import torch.distributed as dist\ndef f(rank, x, self, args):\n"
    file = tree.add(Path("program.py"), source + textwrap.indent(textwrap.dedent(body), "    "))
    tree.resolve()
    return list(unreached(file).values())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("if rank == 0: dist.barrier()", "only ranks with `rank == 0` (line 3)"),
        ("if dist.get_rank() == 0:\n  for i in x:\n    dist.all_reduce(x)", "only ranks"),
        ("if args.local_rank in [-1, 0]: dist.barrier()", "only ranks"),
        ("if self.is_main_process(): dist.broadcast(x, 0)", "only ranks"),
        ("if rank == 0: dist.barrier()\nelse: dist.all_reduce(x)", "only ranks"),
        ("if rank != 0: return\ndist.barrier()", "leave in line 3, before it"),
        ("for i in x:\n  if rank > i: continue\n  dist.barrier()", "leave in line 4"),
        ("try: g()\nexcept OSError: dist.barrier()", "only ranks with an error"),
        ("while rank < 2: dist.barrier()", "only ranks"),
        ("if rank == 0: dist.barrier()\nif rank == 0: dist.barrier()", "only ranks"),
        ("dist.barrier() if rank == 0 else None", "only ranks"),
    ],
)
def test_collectives_in_doubt(body: str, text: str) -> None:
    found = warnings(body)
    assert found and text in found[0]


@pytest.mark.parametrize(
    "body",
    [
        "dist.barrier()",
        "if dist.get_world_size() > 1: dist.barrier()",
        "if dist.is_initialized(): dist.all_reduce(x)",
        "if rank == 0: dist.gather(x, [x], 0)\nelse: dist.gather(x, None, 0)",
        "if rank != 0: dist.barrier()\ng()\nif rank == 0: dist.barrier()",
        "if not self.is_main: dist.barrier()\ng()\nif self.is_main: dist.barrier()",
        "if rank == 0: dist.send(x, 1)\nelse: dist.recv(x, 0)",
        "if rank == 0: print(dist.get_rank())",
        "if rank < 0: raise ValueError\ndist.barrier()",
        "if dist.get_rank() == 0:\n  def g(): dist.barrier()",
    ],
)
def test_what_every_rank_reaches(body: str) -> None:
    assert warnings(body) == []
