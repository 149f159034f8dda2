"""Training with MindSpore's own code for data parallelism, over unisono: the same bits."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.mindspore_jobs import MINDSPORE_ALONE, run_as_msrun, run_by_unisono
from tests.helpers.thorough import essential

mindspore = pytest.importorskip("mindspore")

import unisono.mindspore.ops as ours  # noqa: E402  (after the check for MindSpore)
from unisono.mindspore._patch import internals  # noqa: E402

PROGRAM = """
import sys
import numpy as np
import mindspore as ms
import mindspore.dataset as ds
from mindspore import Model, ParallelMode, nn
from {prefix}mindspore.communication import get_group_size, get_rank, init

def learn(answers, mode, what):
    ms.set_context(mode=getattr(ms, mode), device_target="CPU")
    init()
    rank, size = get_rank(), get_group_size()
    assert size == 2
    parallel = ParallelMode.DATA_PARALLEL
    ms.set_auto_parallel_context(parallel_mode=parallel, gradients_mean=what != "sum")
    if what == "fusion":
        ms.set_auto_parallel_context(all_reduce_fusion_config=[1, 2], gradient_fp32_sync=True)
    if what == "broadcast":
        ms.set_auto_parallel_context(parameter_broadcast=True)
    assert ms.get_auto_parallel_context("device_num") == 1  # unless it is set, here and upstream
    ms.set_seed(1 + rank * (what == "broadcast"))
    network = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
    x = np.random.RandomState(0).randn(32, 4).astype(np.float32)
    data = ds.NumpySlicesDataset(
        (x, x.sum(1, keepdims=True)), ["x", "y"], num_shards=size, shard_id=rank, shuffle=False
    ).batch(4)
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    loss = nn.MSELoss()
    if what in ("model", "broadcast"):
        Model(network, loss, optimizer).train(2, data, dataset_sink_mode=False)
    elif what == "callbacks":  # these reduce the loss over the ranks
        watching = [
            ms.EarlyStopping(monitor="loss", patience=1, min_delta=1e-3),
            ms.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0),
        ]
        Model(network, loss, optimizer).train(3, data, callbacks=watching, dataset_sink_mode=False)
    elif what == "cell":
        step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
        for one in data.create_tuple_iterator(num_epochs=1):
            step(*one)
    else:
        def forward(x, y):
            return loss(network(x), y)
        gradient = ms.value_and_grad(forward, None, optimizer.parameters)
        reducer = nn.DistributedGradReducer(optimizer.parameters)
        for one in data.create_tuple_iterator(num_epochs=1):
            optimizer(reducer(gradient(*one)[1]))
    np.savez(f"{{answers}}{{rank}}.npz", *[weight.asnumpy() for weight in network.get_parameters()])
    ms.reset_auto_parallel_context()

for first in range(1, len(sys.argv), 3):
    learn(*sys.argv[first:first + 3])
"""

PYNATIVE, GRAPH = "PYNATIVE_MODE", "GRAPH_MODE"
Case = tuple[str, str]

#: What the program does, and its mode. The cases of a row follow one another on the same ranks:
#: MindSpore takes longer to start than they take to learn.
ROWS: list[list[Case]] = [
    [("model", GRAPH)],
    [("broadcast", GRAPH), ("reducer", GRAPH), ("fusion", GRAPH), ("cell", GRAPH)],
    [("reducer", PYNATIVE), ("model", PYNATIVE), ("sum", PYNATIVE)],
    [("fusion", PYNATIVE), ("cell", PYNATIVE), ("callbacks", PYNATIVE), ("callbacks", GRAPH)],
]


def arguments(answers: Path, cases: Sequence[Case]) -> list[str]:
    return [text for what, mode in cases for text in (f"{answers}-{what}-{mode}-", mode, what)]


def weights(answers: Path, case: Case) -> list[list[bytes]]:
    """The bits of each weight, of each rank."""
    what, mode = case
    files = [np.load(f"{answers}-{what}-{mode}-{rank}.npz") for rank in range(2)]
    return [[file[name].tobytes() for name in sorted(file.files)] for file in files]


@pytest.mark.parametrize("cases", essential(1, ROWS))
def test_weights_are_those_of_mindspore(tmp_path: Path, cases: Sequence[Case]) -> None:
    unchanged, prefixed = tmp_path / "unchanged.py", tmp_path / "prefixed.py"
    unchanged.write_text(PROGRAM.format(prefix=""))
    prefixed.write_text(PROGRAM.format(prefix="unisono."))
    run_as_msrun(unchanged, *arguments(tmp_path / "real", cases), tries=MINDSPORE_ALONE)
    for way, script, options in (
        ("patched", unchanged, ["--patch", "mindspore"]),
        ("prefixed", prefixed, []),
    ):
        done = run_by_unisono(options, script, *arguments(tmp_path / way, cases))
        assert done.returncode == 0, done.stderr
    for case in cases:
        real, *ours = (weights(tmp_path / way, case) for way in ("real", "patched", "prefixed"))
        assert ours == [real, real], case
        # The reduction mattered: both ranks have the same weights, from different shards.
        assert real[0] == real[1], case


REFUSED = """
import mindspore as ms
import unisono
{before}
try:
    {what}
except unisono.Unsupported as error:
    assert "data_parallel" in str(error)
else:
    raise AssertionError("accepted")
"""
SET = "ms.set_auto_parallel_context(parallel_mode={!r})"
INIT = "from unisono.mindspore.communication import init; init()"


MODES = {
    "before init": (SET.format("semi_auto_parallel"), INIT),
    "patched": ("unisono.patch('mindspore')", SET.format("semi_auto_parallel")),
    "after init": (INIT, SET.format("auto_parallel")),
    "hybrid": (INIT, SET.format("hybrid_parallel")),
}


@pytest.mark.parametrize("case", essential(2, list(MODES)))
def test_other_modes_are_refused(tmp_path: Path, case: str) -> None:
    before, what = MODES[case]
    script = tmp_path / "script.py"
    script.write_text(REFUSED.format(before=before, what=what))
    done = run_by_unisono([], script, ranks=1)
    assert done.returncode == 0, done.stderr


IMPORTED_LATER = """
from unisono.mindspore.communication import get_rank, init
init()
import mindspore as ms
from mindspore.dataset.dataloader import distributed
from mindspore.nn.wrap import grad_reducer
assert grad_reducer.get_group_size() == 2
assert distributed.ms.mint.distributed.get_rank() == get_rank()
# Its cache makes our primitives as well as its own.
from mindspore.ops._primitive_cache import _get_cache_prim
from unisono.mindspore import ops
x = ms.Tensor([1.0])
assert _get_cache_prim(ops.AllReduce)("sum")(x).asnumpy().tolist() == [2.0]
assert _get_cache_prim(ms.ops.ReduceSum)(False)(x, 0).asnumpy() == 1.0
# What MindSpore offers to programs is its own still.
for thing in (ms.communication.init, ms.ops.AllReduce, ms.mint.distributed.all_reduce):
    assert thing.__module__.startswith("mindspore."), thing
"""


def test_mindspore_may_be_imported_after_init(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IMPORTED_LATER)
    done = run_by_unisono([], script)
    assert done.returncode == 0, done.stderr


# ---- the lists of places in MindSpore ------------------------------------------------------------

ROOT = Path(mindspore.__file__).parent
#: What it offers to programs, and a compiler that is no part of it.
ELSEWHERE = ("communication/", "ops/", "mint/distributed/", "_akg/")
#: Modules of MindSpore under the names by which its own code has them.
ALIASES = {"ops", "P", "F", "inner", "mint"}


def own_code() -> list[Path]:
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    return [path for path in paths if not str(path).startswith(ELSEWHERE)]


def uses(path: Path) -> set[str]:
    """Primitives that a module finds as attributes of `ops` and the like, and `ms.mint` with it."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            owner, _, name = text.rpartition(".")
            if owner in ALIASES and name in ours.__all__ and name[0].isupper():
                found.add("operators")
            if text == "ms.mint.distributed":
                found.add("ranks")
    return found


@pytest.mark.thorough
def test_every_place_that_finds_primitives_by_a_module_is_known() -> None:
    found: dict[str, set[str]] = {"operators": set(), "ranks": set()}
    for path in own_code():
        for kind in uses(path):
            found[kind].add(".".join(["mindspore", *path.with_suffix("").parts]))
    assert found["operators"] == set(internals.OPERATORS_BY_MODULE)
    assert found["ranks"] == set(internals.RANKS_BY_MODULE)
    for path in (*internals.OPERATORS_BY_MODULE, *internals.RANKS_BY_MODULE):
        assert isinstance(importlib.import_module(path), ModuleType)
