"""Names of the MindSpore faces next to real MindSpore: communication is never MindSpore's own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

mindspore = pytest.importorskip("mindspore")

from unisono import mindspore as face  # noqa: E402  (after the check for MindSpore)
from unisono.mindspore import _names, mint, ops  # noqa: E402
from unisono.mindspore._patch.table import replacements  # noqa: E402
from unisono.mindspore.ops import operations  # noqa: E402

#: Where MindSpore defines communication, and where it offers it.
DEFINED = (
    "mindspore.communication",
    "mindspore.mint.distributed",
    "mindspore.ops.communication",
    "mindspore.ops.function.comm_func",
    "mindspore.ops.operations.comm_ops",
)
MINT = "mindspore.mint.distributed.distributed"
#: Beside communication there: caches of sizes that others tell, and unpickling.
HELPERS = {
    "get_cache_group_size",
    "get_cache_group_rank",
    "RestrictedUnpickler",
    "restricted_loads",
}
OFFERED = ("mindspore", "mindspore.ops", "mindspore.ops.operations", "mindspore.mint")


def origin(thing: object) -> str:
    attribute = "__name__" if isinstance(thing, ModuleType) else "__module__"
    return str(getattr(thing, attribute, ""))


@pytest.mark.parametrize("path", OFFERED)
def test_communication_is_ours_or_an_error(path: str) -> None:
    real, ours = importlib.import_module(path), importlib.import_module(f"unisono.{path}")
    communicating = [
        name for name, thing in vars(real).items() if origin(thing).startswith(DEFINED)
    ]
    assert communicating
    for name in communicating:
        found = getattr(ours, name, None)
        assert found is None or origin(found).startswith("unisono."), name
        if not name.startswith("_") and name in getattr(real, "__all__", ()):
            assert found is not None, name


@pytest.mark.parametrize("path", ["mindspore.communication.comm_func", MINT])
def test_a_patch_replaces_all_functions_of_a_module(path: str) -> None:
    """Those that the module does not list too: programs import them by their names."""
    real = importlib.import_module(path)
    defined = {
        name: thing
        for name, thing in vars(real).items()
        if not name.startswith("_") and callable(thing) and origin(thing) == path
    }
    left = [name for name, thing in defined.items() if id(thing) not in replacements()]
    assert len(defined) > 10
    assert set(left) <= HELPERS


@pytest.mark.parametrize("path", OFFERED)
def test_all_else_is_mindspores(path: str) -> None:
    real, ours = importlib.import_module(path), importlib.import_module(f"unisono.{path}")
    checked = 0
    for name, thing in vars(real).items():  # its __all__ has names that it does not have
        if not name.startswith("_") and not _names.is_communication(name, thing):
            found = getattr(ours, name)
            assert found is thing or origin(found).startswith("unisono."), name
            checked += 1
    assert checked > 40


def test_what_the_names_of_modules_do_not_tell() -> None:
    """Operators that communicate, and that MindSpore defines among the others."""
    words = ("all_gather", "all_reduce", "allreduce", "reduce_scatter", "all_to_all", "alltoall")
    for name in dir(mindspore.ops):
        if any(word in name.lower() for word in words):
            found = getattr(ops, name, None)
            assert found is None or origin(found).startswith("unisono."), name


def test_the_usual_imports() -> None:
    code = """
import sys
import unisono.mindspore as ms
from unisono.mindspore import ops
assert "mindspore" not in sys.modules
from unisono.mindspore import Model, Tensor, context, dataset, mint, nn, ops, set_context
from unisono.mindspore.ops import operations as P, functional as F
import mindspore
assert ms.nn is nn is mindspore.nn and Tensor is mindspore.Tensor
assert ops.Argmax is P.Argmax is mindspore.ops.Argmax and F is mindspore.ops.functional
assert mint.chunk is mindspore.mint.chunk and ops.gather is mindspore.ops.gather
assert mint.distributed.__name__.startswith("unisono.")
from unisono.mindspore import boost
assert boost.__name__ == "mindspore.boost"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


def test_names_that_nobody_has() -> None:
    for module in (face, ops, operations, mint):
        with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
            module.nonsense  # noqa: B018
    with pytest.raises(AttributeError, match="all_gather_matmul is not in unisono; nearest"):
        ops.all_gather_matmul  # noqa: B018


def test_listings_are_honest() -> None:
    for module in (ops, operations, mint):
        assert {"Argmax", "chunk"} & set(dir(module))
        assert all(hasattr(module, name) for name in dir(module) if not name.startswith("__"))
