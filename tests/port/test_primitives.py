"""Primitives: what counts as one use, what other files do to it, and how attributes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("libcst")

from unisono.port.decision import decide
from unisono.port.plan import Action, Decision
from unisono.port.port import port_file, port_source
from unisono.port.program import SourceTree
from unisono.port.reach.reach import Reach
from unisono.port.rules import Target

CELL = """\
from mindspore import ops


class Sum:
    def __init__(self, group):
        self.total = ops.AllReduce(group=group)

    def construct(self, x):
        y = self.total(x)
        return self.total(y) / 2
"""
LAYER = """\
import torch.distributed as dist


class Layer:
    def __init__(self, group):
        self.group = group

    def forward(self, x):
        dist.all_reduce(x)
"""


def program(**sources: str) -> SourceTree:
    tree = SourceTree()
    for name, source in sources.items():
        tree.add(Path(f"{name}.py"), source)
    tree.resolve()
    return tree


def decisions(source: str, to: str = "torch") -> list[Decision]:
    tree = program(main=source)
    return decide(tree, tree.files[0], Target.parse(to))


def ported(tree: SourceTree, to: str) -> list[str]:
    return [port_file(tree, file, Target.parse(to)).after for file in tree.files]


# ---- counting ------------------------------------------------------------------------------------


def test_a_primitive_counts_by_its_calls() -> None:
    found = decisions(CELL)
    assert [(one.reference.node.lineno, one.verdict) for one in found] == [
        (9, Action.REWRITE),
        (10, Action.REWRITE),
    ]
    assert {one.target for one in found} == {"torch.distributed.nn.functional.all_reduce"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("kept = [ops.AllReduce()]", "hides where it is called"),
        ("x = ops.AllReduce()", "nothing in this file calls the primitive"),
    ],
)
def test_a_primitive_without_calls_is_one_use(line: str, reason: str) -> None:
    (found,) = decisions(f"from mindspore import ops\n{line}\n")
    assert found.verdict == Action.LEAVE and reason in found.reason


def test_one_call_that_stays_keeps_the_others() -> None:
    source = CELL.replace("AllReduce(group", "Reduce(0, group")
    source += "        assert self.total(x).sum()\n"
    found = decisions(source)
    assert [one.verdict for one in found] == [Action.LEAVE] * 3
    assert "another call of it stays" in found[0].reason
    assert "would not always do the same" in found[2].reason
    assert "self.total = ops.Reduce(0, group=group)" in port_source(source, "torch")


def test_building_reaches_nobody() -> None:
    tree = program(
        main="from mindspore import ops\nif rank == 0:\n    a = ops.AllReduce()\na(x)\n"
        "if rank == 0:\n    a(y)\n"
    )
    found = Reach(tree).unreached(tree.files[0])
    assert [each.collective.call.lineno for each in found] == [6]


# ---- other code ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        "from main import Sum\nclass More(Sum):\n    def f(self):\n        self.total(1)\n",
        "from main import Sum\nclass More(Sum):\n    def f(self):\n        self.total = None\n",
        "from main import Sum\nprint(Sum(None).total)\n",
    ],
)
def test_what_other_files_may_use_stays(other: str) -> None:
    tree = program(main=CELL, other=other)
    assert "self.total(y) / 2" in ported(tree, "torch")[0]


def test_another_class_with_the_same_attribute_does_not_matter() -> None:
    other = "class Other:\n    def __init__(self):\n        self.total = print(self.total)\n"
    tree = program(main=CELL, other=other + "import shop\nshop.total()\n")
    assert "functional.all_reduce(y, group=self.total_group) / 2" in ported(tree, "torch")[0]


def test_a_variable_that_another_file_imports_stays() -> None:
    source = "from mindspore import ops\nadd = ops.AllReduce()\ny = add(x)\n"
    assert "y = functional.all_reduce(x)" in port_source(source, "torch")
    tree = program(main=source, other="from main import add\n")
    assert "y = add(x)" in ported(tree, "torch")[0]


# ---- arguments of the constructor ----------------------------------------------------------------


def test_an_attribute_that_changes_is_kept() -> None:
    source = CELL.replace("group=group", "group=self.group").replace(
        "        self.total", "        self.group = group\n        self.total"
    )
    assert "y = functional.all_reduce(x, group=self.group)" in port_source(source, "torch")
    changed = source + "\n    def change(self, group):\n        self.group = group\n"
    text = port_source(changed, "torch")
    assert "self.total_group = self.group" in text
    assert "functional.all_reduce(y, group=self.total_group)" in text


def test_a_variable_that_changes_is_kept() -> None:
    source = "from mindspore import ops\ndef f(x, g):\n    a = ops.AllReduce(group=g)\n    {}\n"
    same = port_source(source.format("return a(x)"), "torch")
    assert "group=g)" in same and "a_group" not in same
    other = port_source(source.format("g = 1\n    return a(x)"), "torch")
    assert "a_group = g" in other and "group=a_group)" in other


@pytest.mark.parametrize("given", ["x", "(x, y)", "(*x,)"])
def test_broadcast_of_anything_but_one_tensor(given: str) -> None:
    (found,) = decisions(f"from mindspore import ops\nz = ops.Broadcast(0)({given})\n")
    assert found.verdict == Action.LEAVE and "broadcast.tuple" in found.differences


def test_a_tag_and_the_group_of_the_gradient() -> None:
    source = "from mindspore import ops\nops.Send(3, 1, group_back='b')(x)\n"
    (found,) = decisions(source)
    assert "only the backward of MindSpore uses it" in found.reason
    assert "dist.send(x, dst=1, tag=3)" in port_source(source, "torch")


# ---- to primitives -------------------------------------------------------------------------------


def test_comments_stay_where_a_primitive_was() -> None:
    source = CELL.replace("        self.total", "        # one\n        self.total")
    source = source.replace("group=group", "").replace("def construct", "# two\n    def construct")
    text = port_source(source, "torch")
    assert "    def __init__(self, group):\n        # one\n        pass\n" in text
    assert "    # two\n    def construct" in text


def test_a_class_does_not_take_the_primitive_of_its_base() -> None:
    derived = LAYER.replace("class Layer:", "from main import Layer\n\nclass More(Layer):")
    derived = derived.replace("all_reduce(x)", "all_reduce(x, dist.ReduceOp.MAX)")
    derived = derived.replace("self.group = group", "super().__init__(group)")
    first, second = ported(program(main=LAYER, other=derived), "mindspore:ops")
    assert "self.all_reduce = ops.AllReduce()" in first
    assert 'self.more_all_reduce_max = ops.AllReduce("max")' in second


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("x, group=self.group)", "x, group=x.group)"), "something of the method"),
        (("self.group = group", "return"), "nothing after it is built"),
        (("        self.group = group", "        if group:\n            self.group = 1"), ""),
        (("def forward(self, x)", "@staticmethod\n    def forward(x)"), "no self"),
    ],
)
def test_what_init_cannot_know_is_built_at_the_call(change: tuple[str, str], reason: str) -> None:
    text = port_source(LAYER.replace("reduce(x)", "reduce(x, group=self.group)"), "mindspore:ops")
    assert "self.all_reduce = ops.AllReduce(" in text
    source = LAYER.replace("all_reduce(x)", "all_reduce(x, group=self.group)")
    text = port_source(source.replace(*change), "mindspore:ops")
    assert "self.all_reduce" not in text, reason


def test_a_name_that_a_function_changes_is_not_known_to_init() -> None:
    source = "GROUP = None\n" + LAYER.replace("all_reduce(x)", "all_reduce(x, group=GROUP)")
    assert "self.all_reduce = ops" in port_source(source, "mindspore:ops")
    source += "\n\ndef start():\n    global GROUP\n    GROUP = dist.new_group([0])\n"
    assert "self.all_reduce" not in port_source(source, "mindspore:ops")


def test_a_class_that_skips_init() -> None:
    source = LAYER + "\n\nclass More(Layer):\n    def __init__(self):\n        {}\n"
    called = port_source(source.format("super().__init__(None)"), "mindspore:ops")
    assert "self.all_reduce(x)" in called
    assert "self.all_reduce" not in port_source(source.format("pass"), "mindspore:ops")


def test_send_returns_its_tensor() -> None:
    source = "from mindspore import ops\nfrom mindspore.communication import comm_func\n"
    source += "import torch\ny = torch.ones(2)\ny = ops.{}(y)\ny, _ = comm_func.all_reduce(y)\n"
    assert "\ny = y.clone()" in port_source(source.format("Send(0, 1)"), "torch")
    assert "y.clone()" not in port_source(source.format("AllReduce()"), "torch")


def test_an_import_inside_a_function() -> None:
    source = LAYER.replace("import torch.distributed as dist\n\n\n", "").replace(
        "        dist", "        import torch.distributed as dist\n        dist"
    )
    text = port_source(source, "mindspore:ops")
    assert "        from mindspore import ops\n        x[...] = ops.AllReduce()(x)" in text


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("all_reduce(x, async_op=True)", "primitives have no async_op"),
        ("all_reduce(x, async_op=flag)", "primitives have no async_op"),
        ("all_to_all(a, b)", "no primitive for all_to_all"),
        ("all_to_all_single(a, b, [1], [1])", "torch counts rows"),
        ("batch_isend_irecv(a)", "no primitive for batch_isend_irecv"),
    ],
)
def test_what_has_no_primitive(call: str, reason: str) -> None:
    (found,) = decisions(f"import torch.distributed as d\nd.{call}\n", "mindspore:ops")
    assert found.verdict == Action.LEAVE and reason in found.reason


@pytest.mark.parametrize(
    "line",
    [
        "__slots__ = ('group',)",
        "def __setattr__(self, name, value): raise AttributeError(name)",
        "def __setstate__(self, state): self.group = state",
        "@classmethod\n    def make(cls): return cls.__new__(cls)",
    ],
)
def test_a_class_with_a_say_in_its_attributes_gets_none(line: str) -> None:
    source = LAYER.replace("    def forward", f"    {line}\n\n    def forward")
    base = source.replace("Layer:", "Base:").replace("    def forward", "    def other")
    derived = f"from base import Base\n{LAYER.replace('Layer:', 'Layer(Base):')}"
    assert "ops.AllReduce()(x)" in port_source(source, "mindspore:ops")
    assert "ops.AllReduce()(x)" in ported(program(base=base, main=derived), "mindspore:ops")[1]


def test_a_name_that_another_file_sets() -> None:
    """It may have another value when a method is called than when `__init__` was."""
    layer = "GROUP = 1\n" + LAYER.replace("(x)", "(x, group=GROUP)")
    primitive = "GROUP = 'g'\n" + CELL.replace("=group)", "=GROUP)")
    other = "import {}\ndef begin(): {}.GROUP = 2\n"
    (there,) = ported(program(layer=layer), "mindspore:ops")
    assert "self.all_reduce = ops.AllReduce(group=GROUP)" in there
    there, _ = ported(program(layer=layer, b=other.format("layer", "layer")), "mindspore:ops")
    assert "ops.AllReduce(group=GROUP)(x)" in there
    there, _ = ported(program(cell=primitive, b=other.format("cell", "cell")), "torch")
    assert "self.total_group = GROUP" in there
