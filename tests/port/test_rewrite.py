"""What is not changed stays as it was written, and what is odd is not changed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("libcst")

import libcst as cst

from unisono.port.port import port_file, port_source
from unisono.port.program import read_program
from unisono.port.rules import Target

HEAD = "import torch.distributed as dist\n"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "# only a comment",
        "x = 1;  y=2 # odd   spaces\n\n\n",
        "from horovod import torch as dist\ndist.all_reduce( x )\n",
        "import torch.distributed as dist  # unused\n",
        "import unisono.mindspore.communication as comm\ncomm.init( )\n",
        "dist = object()\ndist.barrier()\n",
    ],
)
@pytest.mark.parametrize("target", ["mindspore", "mindspore:mint"])
def test_other_programs_stay(source: str, target: str) -> None:
    assert port_source(source, target) == source


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dist.barrier ( )  # wait", "comm_func.barrier ( )  # wait"),
        ("if a: dist.barrier(); b = 1", "if a: comm_func.barrier(); b = 1"),
        ("(dist.all_reduce(x))", "x[...] = (comm_func.all_reduce(x))[0]"),
        ("ß = dist.get_rank()", "ß = comm.get_rank()"),
        ("'ünï'; dist.barrier()", "'ünï'; comm_func.barrier()"),
        ("f'{dist.get_rank()!r:>3}'", "f'{comm.get_rank()!r:>3}'"),
        ("x = [dist.get_rank() for _ in range(dist.get_world_size())]",
         "x = [comm.get_rank() for _ in range(comm.get_group_size())]"),
        ("f = lambda: dist.get_rank()", "f = lambda: comm.get_rank()"),
        ("dist.broadcast(x, src=dist.get_rank())",
         "x[...] = comm_func.broadcast(x, src=comm.get_rank())"),
        ("dist.all_reduce(tensor = x, async_op=False)",
         "x[...] = comm_func.all_reduce(tensor = x, async_op=False)[0]"),
        ("_('text'); dist.get_rank()", "_('text'); comm.get_rank()"),
    ],
)  # fmt: skip
def test_lines(line: str, expected: str) -> None:
    ported = port_source(HEAD + line + "\n", "mindspore")
    assert ported.splitlines()[-1] == expected
    assert "torch" not in ported


def test_an_underscore_that_means_something_is_kept() -> None:
    source = "import torch\n" + HEAD + "x = torch.ones(1)\ndist.all_reduce(x)\nprint(_('sum'), x)\n"
    assert "x = comm_func.all_reduce(x)[0]\n" in port_source(source, "mindspore")


def test_a_mark_goes_with_its_reason() -> None:
    source = HEAD + "dist.monitored_barrier()\n"
    marked = port_source(source, "mindspore")
    assert marked.count("# unisono port: left as it is") == 1
    changed = marked.replace("monitored_", "")
    assert port_source(changed, "mindspore") == (
        "from mindspore.communication import comm_func\ncomm_func.barrier()\n"
    )


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        (
            "if a:\n    import torch.distributed as dist\nelse:\n    import {} as dist\n",
            "if a:\n    import torch.distributed as dist\n"
            "    from mindspore.communication import comm_func\n"
            "else:\n    import torch.distributed as dist\n"
            "    from mindspore.communication import comm_func\n"
            "comm_func.barrier()\n",
        ),
        (
            "import torch.distributed as dist\nimport {} as dist\n",
            "import torch.distributed as dist\nfrom mindspore.communication import comm_func\n"
            "import torch.distributed as dist\ncomm_func.barrier()\n",
        ),
    ],
)
def test_a_name_that_is_imported_twice(imports: str, expected: str) -> None:
    source = imports.format("torch.distributed") + "dist.barrier()\n"
    assert port_source(source, "mindspore") == expected
    assert port_source(source, "unisono") == source.replace("torch.dist", "unisono.torch.dist")
    other = imports.format("horovod.torch") + "dist.barrier()\n"
    assert "'dist' is imported from several modules" in port_source(other, "mindspore")


def test_an_import_in_a_branch_is_not_there_elsewhere() -> None:
    source = (
        "import torch\nif a:\n    import torch.distributed as dist\n    dist.barrier()\n"
        "torch.distributed.barrier()\n"
    )
    assert port_source(source, "mindspore") == (
        "from mindspore.communication import comm_func\nif a:\n"
        "    from mindspore.communication import comm_func\n    comm_func.barrier()\n"
        "comm_func.barrier()\n"
    )


def test_a_star() -> None:
    source = "from torch.distributed import *\nbarrier()\nget_rank()\n"
    assert port_source(source, "mindspore") == (
        "from torch.distributed import *\nfrom mindspore.communication import comm_func\n"
        "import mindspore.communication as comm\ncomm_func.barrier()\ncomm.get_rank()\n"
    )
    assert port_source(source, "unisono") == source.replace(
        "*\n", "*\nfrom unisono.torch.distributed import barrier, get_rank\n"
    )


def test_a_global_import_stays() -> None:
    source = (
        "def f():\n    global d\n    import torch.distributed as d\ndef g():\n    d.barrier()\n"
    )
    assert "left as it is: a function imports 'd'" in port_source(source, "mindspore")
    assert port_source(source, "unisono") == source.replace("torch", "unisono.torch")


def test_a_module_that_is_a_value_stays() -> None:
    source = HEAD + "self.dist = dist\n"
    assert "left as it is: the module is used as a value" in port_source(source, "mindspore")
    assert port_source(source, "unisono") == f"import unisono.{HEAD[7:]}self.dist = dist\n"
    source = "import torch\nself.dist = torch.distributed\n"
    assert "left as it is: the module is used as a value" in port_source(source, "unisono")


def test_a_third_party_keeps_its_imports() -> None:
    source = "from deepspeed import comm as dist\ndist.barrier()\n"
    ported = port_source(source, "unisono", ("deepspeed.comm",))
    assert "left as it is: it is a third party's" in ported


def test_form_feeds_end_no_lines() -> None:
    source = (
        "from mindspore.communication import comm_func\n\f\nif a:\n    pass\n"
        "elif comm_func.all_reduce(x)[0]:\n    'ünï'; comm_func.barrier()\n"
    )
    ported = port_source(source, "torch")
    assert "left as it is: a statement before this one" in ported
    assert "    'ünï'; dist.barrier()\n" in ported


def test_texts_over_several_lines() -> None:
    """Before Python 3.12 the places of names in them are wrong; nothing may break."""
    source = HEAD + 'print(f"""\n  {dist.get_rank()}\n""")\ndist.barrier()\n'
    ported = port_source(source, "mindspore")
    assert "comm_func.barrier()" in ported
    assert "{comm.get_rank()}" in ported or "{dist.get_rank()}" in ported


def test_a_file_that_lends_its_import_gets_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text("import torch.distributed as dist, os\n")
    (tmp_path / "short.py").write_text("from backend import *\n")
    (tmp_path / "train.py").write_text("from short import dist\ndist.barrier()\n")
    program = read_program([tmp_path], (), lambda done, total: None)
    after = {file.name: port_file(program, file, Target.parse("unisono")) for file in program.files}
    assert after["backend"].after == "import os\nimport unisono.torch.distributed as dist\n"
    assert after["train"].after == after["train"].before


def test_an_interrupt_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """LibCST looks for a position in a `finally`, and its KeyError hides the interrupt."""

    def leave(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise KeyError

    monkeypatch.setattr("unisono.port.rewrite._Rewriter.leave_Call", leave)
    with pytest.raises(KeyboardInterrupt):
        port_source(HEAD + "dist.barrier()\n", "mindspore")


def test_code_that_libcst_does_not_know_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str) -> None:
        raise cst.CSTValidationError("new words")

    monkeypatch.setattr(cst, "parse_module", refuse)
    source = HEAD + "dist.barrier()\n"
    assert port_source(source, "mindspore") == source


@pytest.mark.parametrize("target", ["mindspore", "mindspore:mint"])
def test_a_tag_stays(target: str) -> None:
    """MindSpore ignores it, and would exchange two messages that overtake each other."""
    source = HEAD + "dist.send(x, 1, tag=number)\n"
    assert "left as it is: MindSpore ignores the tag" in port_source(source, target)
    assert "left as it is" not in port_source(source.replace("number", "0"), target)


@pytest.mark.parametrize("target", ["mindspore", "mindspore:mint", "mindspore:ops"])
def test_reduce_in_a_group_stays(target: str) -> None:
    """Of MindSpore's functions some take the root for a rank of the group."""
    source = HEAD + "dist.reduce(x, 0, group=g)\n"
    assert "left as it is: in a group, MindSpore" in port_source(source, target)
    world = source.replace("=g", "=dist.group.WORLD")
    assert "left as it is" not in port_source(world, target)


IMPORT = """\
from torch.distributed import (
    all_reduce,  # first
    # above
    ReduceOp,  # second
    barrier{}  # third
)  # noqa
all_reduce(x)
barrier()
OPERATORS = [ReduceOp.SUM]
"""


@pytest.mark.parametrize("comma", [",", ""])
def test_what_stays_of_an_import_stays_as_it_was(comma: str) -> None:
    source = IMPORT.format(comma)
    kept = "\n".join(source.splitlines()[2:4]).replace(",", comma)
    assert port_source(source, "mindspore").startswith(
        f"from torch.distributed import (\n{kept}\n)  # noqa\n"
        "from mindspore.communication import comm_func\n"
    )
    assert port_source(source, "unisono") == source.replace("torch", "unisono.torch")


def test_an_import_that_is_divided_keeps_its_comment_once() -> None:
    source = "import os, torch.distributed as dist, sys  # all\nos, sys\ndist.barrier()\n"
    assert port_source(source, "unisono").startswith(
        "import os, sys  # all\nimport unisono.torch.distributed as dist\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "# above\ndist.all_gather(parts,  # to\n                x)  # from\n",
            "# above\n# from\n# to\nfor part, piece in zip(",
        ),
        (
            "dist.barrier(\n    device_ids=[0],  # the card\n)  # all\n",
            "# the card\ncomm_func.barrier()  # all\n",
        ),
    ],
)
def test_comments_of_arguments_that_go_stay(source: str, expected: str) -> None:
    assert expected in port_source(HEAD + source, "mindspore")
