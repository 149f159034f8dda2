"""Collectives that only some ranks may reach."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unisono.port.program import SourceTree
from unisono.port.reach.reach import Reach, Unreached

HEAD = "import os, sys, torch.distributed as dist\n"


def found_in(**sources: str) -> list[Unreached]:
    """Return the warnings for a program of several files, in their order."""
    tree = SourceTree()
    files = [tree.add(Path(f"{name}.py"), textwrap.dedent(text)) for name, text in sources.items()]
    tree.resolve()
    reach = Reach(tree)
    return [each for file in files for each in reach.unreached(file)]


def in_function(body: str) -> list[str]:
    source = HEAD + "def f(rank, x, self, args, group, ranks, verbose):\n"
    source += textwrap.indent(textwrap.dedent(body), "    ")
    return [each.reason for each in found_in(program=source)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("if rank == 0: dist.barrier()", "only ranks with `rank == 0` (line 3) reach it"),
        ("if dist.get_rank() == 0:\n  for i in x:\n    dist.all_reduce(x)", "only ranks"),
        ("if args.local_rank in [-1, 0]: dist.barrier()", "only ranks"),
        ("if self.is_main_process(): dist.broadcast(x, 0)", "only ranks"),
        ("if int(os.environ['RANK']) == 0: dist.barrier()", "only ranks"),
        ("if rank == 0: dist.barrier()\nelse: dist.all_reduce(x)", "only ranks"),
        ("if rank == 0: pass\nelse: dist.barrier()", "ranks with `rank == 0` (line 3) do"),
        ("if rank != 0: return\ndist.barrier()", "leave in line 3, before it"),
        ("if rank != 0: sys.exit()\ndist.barrier()", "leave in line 3, before it"),
        ("if rank != 0: raise ValueError\ndist.barrier()", "leave in line 3, before it"),
        ("assert rank == 0\ndist.barrier()", "without `rank == 0` leave in line 3, before it"),
        ("if rank == 0:\n  if verbose: return\ndist.barrier()", "leave in line 3, before it"),
        ("for i in x:\n  if rank > i: continue\n  dist.barrier()", "leave in line 4"),
        ("for i in x:\n  dist.barrier()\n  if rank == 1: break", "before its next round"),
        ("for i in x:\n  if rank == 1: return\ndist.barrier()", "leave in line 4, before it"),
        ("try: g()\nexcept OSError: dist.barrier()", "only ranks with an error (line 4)"),
        ("try:\n  if rank == 0: dist.barrier()\nfinally: g()", "only ranks"),
        ("try: g()\nfinally:\n  if rank == 0: dist.barrier()", "only ranks"),
        ("try: g()\nexcept OSError: pass\nelse:\n  if rank: dist.barrier()", "only ranks"),
        ("while rank < 2: dist.barrier()", "only ranks"),
        ("for i in range(rank): dist.barrier()", "rounds of the loop in line 3 depend on the rank"),
        ("[dist.barrier() for i in range(rank)]", "rounds of the loop in line 3 depend on"),
        ("[dist.barrier() for i in x if rank == 0]", "only ranks"),
        ("if rank == 0: dist.barrier()\nif rank == 0: dist.barrier()", "(line 3)"),
        ("dist.barrier() if rank == 0 else None", "only ranks"),
        ("g() if rank == 0 else dist.barrier()", "ranks with `rank == 0` (line 3) do not"),
        ("rank == 0 and dist.barrier()", "only ranks"),
        ("rank == 0 or dist.barrier()", "ranks with `rank == 0` (line 3) do not reach it"),
        ("match rank:\n  case 0: dist.barrier()", "only ranks with `rank == 0` (line 3)"),
        ("match rank:\n  case 0: return\ndist.barrier()", "ranks with `rank == 0` leave"),
        ("first = dist.get_rank() == 0\nif first: dist.barrier()", "only ranks with `first`"),
        ("me = dist.get_rank() if x else 0\nif me % 2: dist.barrier()", "only ranks with `me % 2`"),
        ("me, n = dist.get_rank(), 3\nif me == n: dist.barrier()", "only ranks with `me == n`"),
        ("if self.is_global_zero: dist.barrier()", "only ranks"),
        ("if verbose and rank == 0: dist.barrier()", "only ranks"),
        ("if rank == 0: dist.all_reduce(x, group=group)", "only ranks"),
        ("if dist.get_rank(group) == 0: dist.all_reduce(x, group=group)", "only ranks"),
        ("if dist.get_rank(group) == 0: dist.barrier()", "only ranks"),
        ("if rank in ranks: dist.barrier()", "only ranks"),
        (
            "if rank in (0, 1):\n  if rank == 0: g()\n  else: dist.all_reduce(x, group=group)",
            "ranks with `rank == 0` (line 4) do not reach it",
        ),
        ("if rank in ranks: g = dist.new_group(ranks)", "only ranks"),
        ("if rank == 0:\n  dist.all_reduce(x)\n  dist.barrier()\nelse:\n  dist.barrier()\n"
         "  dist.all_reduce(x)", "only ranks"),
    ],
)  # fmt: skip
def test_collectives_in_doubt(body: str, text: str) -> None:
    found = in_function(body)
    assert found and text in found[0]


@pytest.mark.parametrize(
    "body",
    [
        "dist.barrier()",
        "if dist.get_world_size() > 1: dist.barrier()",
        "if dist.is_initialized(): dist.all_reduce(x)",
        "if rank == 0: dist.gather(x, [x], 0)\nelse: dist.gather(x, None, 0)",
        "if rank == 0: parts = [x]\nelse: parts = None\ndist.gather(x, parts, 0)",
        "if rank != 0: dist.barrier()\ng()\nif rank == 0: dist.barrier()",
        "if not self.is_main: dist.barrier()\ng()\nif self.is_main: dist.barrier()",
        "if args.local_rank not in [-1, 0]: dist.barrier()\ng()\n"
        "if args.local_rank == 0: dist.barrier()",
        "if verbose and rank: dist.barrier()\ng()\nif verbose and not rank: dist.barrier()",
        "if rank % 2 == 0: dist.barrier()\nelif rank % 2 == 1: dist.barrier()",
        "if args.local_rank != -1: dist.barrier()",
        "me = dist.get_rank() if verbose else -1\nif me != -1: dist.barrier()",
        "if rank == 0: dist.send(x, 1)\nelse: dist.recv(x, 0)",
        "if rank == 0: print(dist.get_rank())",
        "if rank < 0: raise ValueError\ndist.barrier()",
        "if rank >= dist.get_world_size(): raise ValueError\ndist.barrier()",
        "if rank not in ranks: raise ValueError\ndist.barrier()",
        "assert rank >= 0\ndist.barrier()",
        "assert rank in ranks\ndist.barrier()",
        "assert args.tp_rank == 0\ndist.barrier()",
        "if rank == 0:\n  if verbose: raise ValueError\ndist.barrier()",
        "if dist.get_rank() == 0:\n  def g(): dist.barrier()",
        "if rank in ranks: dist.all_reduce(x, group=group)",
        "if group is not None: dist.all_reduce(x, group=group)",
        "if rank < 2: dist.all_reduce(x, group=group)",
        "if rank == x: dist.all_reduce(x, group=group)",
        "if self.tp_rank == 0: dist.all_reduce(x, group=self.dp_group)",
        "if rank != 0: return\ng()",
        "for local_rank in ranks:\n  if local_rank == 0: dist.broadcast(x, local_rank)",
        "for i in range(rank, 8, args.world_size): g()\ndist.barrier()",
        "for i in range(rank * 4, rank * 4 + 4): dist.barrier()",
        "try: import apex\nexcept ImportError: dist.barrier()",
        "try: g()\nexcept OSError:\n  dist.barrier()\n  return\ndist.barrier()",
        "multi_rank = verbose and x\nif multi_rank: dist.barrier()",
        "if self.is_zero: dist.barrier()",
        "if rank and dist.get_world_size() == 1: dist.barrier()",
        "if rank and not dist.is_initialized(): dist.barrier()",
        "try:\n  if rank == 0: return\nfinally: dist.barrier()",
        "try: dist.all_reduce(x)\nexcept OSError: dist.all_reduce(x)",
        "if rank == src_rank: g()\ndist.barrier()",
        "if lora_rank > 0: dist.barrier()",
        "match rank:\n  case 0: dist.barrier()\n  case _: dist.barrier()",
        "my_rank = x.dim()\nif my_rank == 2: dist.barrier()",
        "if rank in ranks: g = dist.new_group(ranks, use_local_synchronization=True)",
        "if rank == 0:\n  dist.barrier()\n  return\nif verbose:\n  dist.barrier()\n"
        "else:\n  if x: dist.barrier()\n  else:\n    dist.barrier()\n    return\ng()",
        "while True:\n  if rank == 0: g()\n  dist.barrier()",
        "dist.barrier() if rank == 0 else dist.barrier()",
    ],
)
def test_what_every_rank_reaches(body: str) -> None:
    assert in_function(body) == []


UTIL = """
    import torch.distributed as dist
    def wait():
        dist.barrier()
    def save(model):
        print(model)
        wait()
    def is_main():
        return dist.get_rank() == 0
    def is_first():
        if dist.get_rank() == 0:
            return True
        return False
    def get_rank(group=None):
        if not dist.is_initialized():
            return 0
        return dist.get_rank(group)
    def reduce(x, group=None):
        dist.all_reduce(x, group=group)
    def agreed():
        stop = [dist.get_rank() == 0]
        dist.broadcast_object_list(stop)
        if dist.get_rank() == 0:
            return True
        return False
    def load(everywhere):
        if everywhere:
            dist.barrier()
    def handle(group):
        if group is None:
            group = dist.new_group([0])
        return group
    class Base:
        def __init__(self, rank):
            self.first = rank == 0
        @property
        def is_last(self):
            return dist.get_rank() == dist.get_world_size() - 1
        def sync(self):
            dist.barrier()
"""


@pytest.mark.parametrize(
    ("body", "way"),
    [
        ("if rank == 0: util.save(x)", ["save", "wait"]),
        ("if rank != 0: return\nsave(x)", ["save", "wait"]),
        ("if util.is_main(): save(x)", ["save", "wait"]),
        ("if util.is_first(): save(x)", ["save", "wait"]),
        ("if util.get_rank() == 0: save(x)", ["save", "wait"]),
        ("if rank == 0: save(x)\nelse: util.reduce(x)", ["save", "wait"]),
        ("if rank in ranks: util.reduce(x)", ["reduce"]),
        ("if rank == 0: util.Base(0).sync", None),
        ("if rank == 0: Made()", ["Made.__init__", "Base.sync"]),
        ("if rank == 0: save(x)\nelse: dist.barrier()", None),
        ("if rank == 0: save(x)\nelse: util.Base.sync(x)", None),
        ("if rank in ranks: util.reduce(x, group)", None),
        ("if util.get_rank(group) == 0: util.reduce(x, x)", None),
        ("if util.get_rank(group) == 0: util.reduce(x, group)", ["reduce"]),
        ("if x or rank == 0: util.load(x)", None),
        ("if util.agreed(): save(x)", None),
        ("if x or rank == 0: util.load(group)", ["load"]),
        ("if rank == 0: util.handle(None)", None),
        ("if rank == 0: inner()\ndef inner(): save(x)", ["inner", "save", "wait"]),
        ("if rank == 0: short()\nshort = lambda: save(x)", ["lambda", "save", "wait"]),
        ("if rank == 0: again(3)", ["again"]),
        ("if rank == 0: ping(3)", ["ping", "pong"]),
        ("if rank == 0: pong(3)", ["pong"]),
    ],
)
def test_calls_are_followed(body: str, way: list[str] | None) -> None:
    program = """
        import torch.distributed as dist
        import util
        from util import *
        class Made(util.Base):
            def __init__(self):
                super().sync()
        def again(n):
            dist.barrier()
            again(n - 1)
        def ping(n):
            if n: pong(n)
        def pong(n):
            ping(n - 1)
            dist.barrier()
        def f(rank, x, ranks, group):
    """
    source = textwrap.dedent(program) + textwrap.indent(body, "    ")
    found = found_in(util=UTIL, program=source)
    if way is None:
        assert found == []
    else:
        (warning,) = found
        assert [step.name for step in warning.collective.way] == way
        made = warning.collective
        name = {"reduce": "all_reduce"}.get(way[-1], "barrier")
        assert made.path == f"torch.distributed.{name}"
        source = {"util.py": textwrap.dedent(UTIL), "program.py": source}[str(made.file)]
        assert f"dist.{name}" in source.splitlines()[made.line - 1]


METHODS = """
    import util, torch.distributed as dist
    from torch.distributed import *
    class Trainer(util.Base):
        def __init__(self, rank):
            super().__init__(rank)
            self.main = rank == 0
        def run(self):
            {}
        def step(self):
            self.sync()
        @main_process_only
        def decorated(self): {}
        @only_first
        def restricted(self): {}
        @everywhere
        def open(self): self.sync()
        def total(self, x, group=None):
            dist.all_reduce(x, group=group)
    def only_first(function):
        def run(*args):
            if util.is_main():
                return function(*args)
        return run
    def everywhere(function):
        def run(*args):
            if util.is_main():
                return function(*args)
            return function(*args)
        return run
"""


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        (("if self.main: self.sync()", "pass", "pass"), "only ranks with `self.main`"),
        (("if self.first: self.step()", "pass", "pass"), "only ranks with `self.first`"),
        (("if self.is_last: self.sync()", "pass", "pass"), "only ranks with `self.is_last`"),
        (("if not self.main: return\n            self.sync()", "pass", "pass"), "leave in"),
        (("pass", "self.sync()", "pass"), "by its decorator @main_process_only"),
        (("pass", "pass", "self.sync()"), "by its decorator @only_first"),
        (("self.sync()", "pass", "print()"), None),
        (("if dist.get_rank() in self.ranks: self.total(1, self.group)", "pass", "pass"), None),
        (("if dist.get_rank() in self.ranks: self.total(1)", "pass", "pass"), "only ranks"),
        (("self.decorated()\n            if self.main: self.decorated()", "pass", "pass"), None),
        (("if self.main: self.sync()\n            else: self.step()", "pass", "pass"), None),
    ],
)
def test_methods(bodies: tuple[str, str, str], reason: str | None) -> None:
    found = found_in(util=UTIL, trainer=METHODS.format(*bodies))
    if reason is None:
        assert found == []
    else:
        (warning,) = found
        assert reason in warning.reason
        assert warning.collective.path.endswith(("barrier", "all_reduce"))


def test_primitives_of_mindspore_communicate_when_they_are_called() -> None:
    source = """
        from mindspore import ops, nn
        class Net(nn.Cell):
            def __init__(self, rank):
                self.reduce = ops.AllReduce()
                if rank == 0:
                    self.gather = ops.AllGather()
                self.rank = rank
            def construct(self, x):
                if self.rank == 0:
                    x = self.reduce(x)
                return x
    """
    (warning,) = found_in(net=source)
    assert warning.collective.path == "mindspore.ops.AllReduce"
    assert warning.collective.call.lineno == 11


def test_what_is_certain() -> None:
    certain = {
        "if rank == 0: dist.barrier()": True,
        "if rank != 0: return\ndist.barrier()": True,
        "if rank == x: dist.barrier()": False,
        "if dist.is_initialized() and rank == 0: dist.barrier()": True,
        "if dist.is_initialized() and verbose and rank == 0: dist.barrier()": False,
        "if rank == 0:\n  if verbose: dist.barrier()": False,
        "try: g()\nexcept OSError: dist.barrier()": False,
        "if rank == 0: dist.all_reduce(x, group=group)": False,
    }
    for body, expected in certain.items():
        source = f"{HEAD}def f(rank, x, verbose, group):\n" + textwrap.indent(body, "    ")
        (warning,) = found_in(program=source)
        assert warning.certain == expected, body


def test_a_neighbour_is_imported_before_a_file_of_the_same_name_elsewhere(tmp_path: Path) -> None:
    tree = SourceTree()
    for folder, body in (("one", "dist.barrier()"), ("two", "pass")):
        (tmp_path / folder).mkdir()
        tree.add(tmp_path / folder / "util.py", f"{HEAD}def save(): {body}\n")
    source = f"{HEAD}from util import save\nif dist.get_rank() == 0: save()\n"
    files = [tree.add(tmp_path / folder / "main.py", source) for folder in ("one", "two")]
    tree.resolve()
    reach = Reach(tree)
    assert [len(reach.unreached(file)) for file in files] == [1, 0]


def test_a_long_function_and_deep_calls_end() -> None:
    lines = [f"def f0(): {'dist.barrier(); ' * 2000}"]
    lines += [f"def f{n}(): {f'f{n - 1}(); ' * 3}" for n in range(1, 300)]
    source = f"{HEAD}\n" + "\n".join(lines) + "\nif dist.get_rank() == 0: f299()\n"
    (warning,) = found_in(program=source)
    assert warning.collective.way[0].name == "f299"
