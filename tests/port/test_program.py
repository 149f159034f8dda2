"""Every use of a dialect is found, however it was imported, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.port.program import SourceTree, module_name, python_files, read_program

ALL_REDUCE = "torch.distributed.all_reduce"


def uses(source: str, *roots: str) -> list[tuple[int, str]]:
    tree = SourceTree(roots)
    file = tree.add(Path("program.py"), source)
    tree.resolve()
    return [(found.node.lineno, found.path) for found in file.references]


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist; dist.all_reduce(x)",
        "import torch.distributed; torch.distributed.all_reduce(x)",
        "import torch; torch.distributed.all_reduce(x)",
        "import torch as th; th.distributed.all_reduce(x)",
        "from torch import distributed; distributed.all_reduce(x)",
        "from torch import distributed as d; d.all_reduce(x)",
        "from torch.distributed import all_reduce; all_reduce(x)",
        "from torch.distributed import all_reduce as f; f(x)",
        "from torch.distributed import *; all_reduce(x)",
        "from torch.distributed.distributed_c10d import all_reduce; all_reduce(x)",
        "import unisono.torch.distributed as dist; dist.all_reduce(x)",
        "def f(x):\n import torch.distributed as dist\n return [dist.all_reduce(y) for y in x]",
        "import torch.distributed as dist\nclass A:\n def f(s, x): (lambda: dist.all_reduce(x))()",
        "try:\n import torch.distributed as dist\nexcept ImportError:\n dist = None\n"
        "if dist: dist.all_reduce(x)",
        "def f():\n global dist\n import torch.distributed as dist\ndef g(x): dist.all_reduce(x)",
    ],
)
def test_ways_to_import(source: str) -> None:
    assert [path for _, path in uses(source)] == [ALL_REDUCE]


@pytest.mark.parametrize(
    "source",
    [
        "dist.all_reduce(x)",
        "def f(dist): dist.all_reduce(x)",
        "import torch.distributed as dist\ndef f():\n dist = other()\n dist.all_reduce(x)",
        "import torch.distributed as dist\nfor dist in them: dist.all_reduce(x)",
        "from horovod import torch as dist; dist.all_reduce(x)",
        "class A:\n from torch.distributed import all_reduce\n def f(self): all_reduce(x)",
        "import numpy as np; np.all_reduce(x); '''import torch.distributed as dist'''",
    ],
)
def test_other_things_of_the_same_name(source: str) -> None:
    assert uses(source) == []


def test_mindspore() -> None:
    source = (
        "import mindspore as ms\n"
        "from mindspore import ops, mint\n"
        "from mindspore.communication.management import init\n"
        "init()\n"
        "ops.AllReduce()\n"
        "ops.matmul(a, b)\n"
        "mint.distributed.barrier()\n"
        "mint.distributed.distributed.barrier()\n"
        "ms.communication.get_rank()\n"
        "ms.ops.communication.all_reduce(x)\n"
    )
    assert uses(source) == [
        (4, "mindspore.communication.init"),
        (5, "mindspore.ops.AllReduce"),
        (7, "mindspore.mint.distributed.barrier"),
        (8, "mindspore.mint.distributed.barrier"),
        (9, "mindspore.communication.get_rank"),
        (10, "mindspore.ops.communication.all_reduce"),
    ]


def test_a_third_party_root() -> None:
    source = "from deepspeed import comm as dist\ndist.all_reduce(x)\n"
    assert uses(source) == []
    assert uses(source, "deepspeed.comm") == [(2, ALL_REDUCE)]


def test_a_third_party_has_modules_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "third" / "comm"
    folder.mkdir(parents=True)
    (tmp_path / "third/__init__.py").write_text("")
    (folder / "__init__.py").write_text("from .tools import *\n")
    (folder / "tools.py").write_text("import torch\ndef is_parallel(group): return int(group)\n")
    (tmp_path / "main.py").write_text(
        "from third import comm as dist\nfrom third.comm import tools\nfrom third.comm import *\n"
        "tools.is_parallel(int(g))\ndist.all_reduce(x)\ndist.ReduceOp.SUM\n"
        "hasattr(dist, 'all_gather')\ntorch.distributed.barrier()\n"
    )
    tree = read_program([tmp_path], ["third.comm"], lambda done, total: None)
    found = [(one.node.lineno, one.path) for one in tree.by_name["main"].references]
    assert found == [
        (5, ALL_REDUCE),
        (6, "torch.distributed.ReduceOp"),
        (8, "torch.distributed.barrier"),
    ]


def test_a_variable_that_is_a_function() -> None:
    tree = SourceTree()
    file = tree.add(Path("p.py"), "import torch.distributed as d\nf = d.all_reduce\nf(x)\n")
    tree.resolve()
    assert [(one.node.lineno, one.through) for one in file.references] == [(2, None), (3, "f")]


@pytest.mark.parametrize(
    "line", ["e = d\ne.barrier()", "s.d = d", "f(d)", "getattr(d, 'barrier')()", "def f(d=d): ..."]
)
def test_a_module_that_is_a_value(line: str) -> None:
    found = uses("import torch.distributed as d\n" + line)
    assert found[0] == (2, "torch.distributed")
    assert len(found) == 1 + line.count("e.barrier")


@pytest.mark.parametrize("line", ["d is None", "if d and x: ...", "hasattr(d, 'gather')", "not d"])
def test_a_question_whether_there_is_a_module(line: str) -> None:
    assert uses("import torch.distributed as d\n" + line) == []


def test_names_pass_from_file_to_file(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("from .backend import dist\n")
    (package / "backend.py").write_text("import torch.distributed as dist\n")
    (package / "inner/__init__.py").write_text("")
    (package / "inner/train.py").write_text(
        "from .. import dist\nfrom package.backend import dist as d\n"
        "dist.barrier()\nd.all_reduce(x)\n"
    )
    (package / "short.py").write_text("from .backend import *\n")
    (package / "main.py").write_text("from package.short import *\ndist.barrier()\n")
    tree = read_program([tmp_path], (), lambda done, total: None)
    found = tree.by_name["package.main"].references
    assert [one.path for one in found] == ["torch.distributed.barrier"]
    found = tree.by_name["package.inner.train"].references
    assert [one.path for one in found] == ["torch.distributed.barrier", ALL_REDUCE]
    assert ("package.backend", "dist") in tree.passed_on
    assert module_name(package / "inner/train.py") == "package.inner.train"


def test_a_file_that_is_no_python_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import torch.distributed as d\nd.barrier()\n")
    (tmp_path / "old.py").write_text("print 'hello'\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden/no.py").write_text("")
    assert [path.name for path in python_files([tmp_path])] == ["binary.py", "good.py", "old.py"]
    tree = read_program([tmp_path], (), lambda done, total: None)
    assert [file.path.name for file in tree.files] == ["good.py"]
    assert [(one.path.name, one.line) for one in tree.unreadable] == [
        ("binary.py", 1),
        ("old.py", 1),
    ]
