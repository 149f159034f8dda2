"""Names of the MindSpore faces: which are unisono's, and what is said of the others."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from unisono.mindspore import communication, mint, ops
from unisono.mindspore.communication import _comm_helper, management
from unisono.mindspore.mint import distributed
from unisono.mindspore.mint.distributed import distributed as inner
from unisono.mindspore.ops import operations
from unisono.mindspore.ops.operations import comm_ops

PRIMITIVES = {name for name in ops.__all__ if name[0].isupper()}
WITHOUT_MINDSPORE = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is not None, reason="MindSpore is installed"
)


def test_faces_are_found_from_the_package() -> None:
    code = """
import sys, unisono.mindspore as ms
assert ms.communication.get_rank() == 0
assert ms.ops.AllReduce is ms.ops.operations.AllReduce is ms.ops.operations.comm_ops.AllReduce
assert not ms.mint.distributed.is_initialized()
assert {"communication", "mint", "ops"} <= set(dir(ms))
assert "mindspore" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_operations_have_the_primitives() -> None:
    assert set(comm_ops.__all__) == PRIMITIVES
    assert set(operations.__all__) == PRIMITIVES | {"comm_ops"}
    for name in PRIMITIVES:
        assert getattr(operations, name) is getattr(comm_ops, name) is getattr(ops, name)
    for name in ("_VirtualDataset", "_MirrorOperator", "check_collective_target_dtype"):
        assert not hasattr(comm_ops, name)


def test_ops_has_the_functions_too() -> None:
    """As upstream's, except where that has an operator of the same name."""
    for name in ("all_reduce", "broadcast", "reduce", "get_rank", "P2POp"):
        assert getattr(ops, name) is getattr(ops.communication, name)
        assert name in dir(ops)
    gather = getattr(ops, "gather", None)
    assert gather is not ops.communication.gather


def test_the_inner_module_of_mint_is_the_same() -> None:
    assert inner is distributed is distributed.distributed
    assert importlib.import_module("unisono.mindspore.mint.distributed.distributed") is distributed
    for name in ("TCPStore", "gather_into_tensor", "scatter_tensor"):  # only there upstream
        assert getattr(distributed.distributed, name)


def test_helpers() -> None:
    assert communication._comm_helper is _comm_helper
    assert _comm_helper._is_initialized() is False
    assert _comm_helper._is_available() is True
    assert _comm_helper._get_backend() == management.GlobalComm.BACKEND
    assert _comm_helper._get_rank_helper("hccl_world_group") == 0
    assert _comm_helper._get_size_helper("hccl_world_group") == 1
    assert not hasattr(_comm_helper, "_wait_all_comm_init")


@WITHOUT_MINDSPORE
@pytest.mark.parametrize(
    ("module", "name"),
    [(ops, "Argmax"), (operations, "Argmax"), (mint, "chunk"), (ops, "gather")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_without_mindspore_the_error_says_so(module: object, name: str) -> None:
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match="MindSpore's own, but: No module named 'mindspore'"):
        getattr(module, name)
    with pytest.raises(AttributeError) as caught:
        ops.Argmax  # noqa: B018
    assert "nearest" not in str(caught.value)


@WITHOUT_MINDSPORE
def test_without_mindspore_communication_is_told_apart() -> None:
    with pytest.raises(AttributeError, match="AllReducer is not in unisono; nearest: AllReduce"):
        ops.AllReducer  # noqa: B018
